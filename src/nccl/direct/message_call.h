// SPDX-License-Identifier: Apache-2.0
// MessageCall: the messages of one group on one communicator as work of one stream: a kernel that
// moves all of them (cuda/kernels/message_loop.h). No thread of the host takes part once it is
// enqueued, and all of it may be captured into a graph.
//
// It is enqueued in two parts, between which other work of the group can be put on other streams: a
// kernel that runs holds up nothing that stands behind it in a hardware queue, but what waits for
// its end does.
//
// The two words are as those of StreamCall. Memory that the kernel does not reach is copied by way
// of pinned memory: plain memory of the host by functions that the stream calls, that of another
// device by the stream.
//
// Not thread-safe; used by the thread that enqueues.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "cuda/kernels/message_arguments.h"
#include "nccl/base/outcome.h"
#include "nccl/cuda/staging.h"
#include "nccl/direct/call_on_stream.h"
#include "nccl/direct/stream_memory.h"
#include "nccl/host/operation.h"

namespace weir::nccl {

// What a stream uses besides the program's buffers. It must stay until the stream has passed the
// call; in a graph, as long as that may be launched.
struct MessageStaging {
  std::deque<HostCopy> copies;      // of functions that the stream calls
  std::shared_ptr<Staging> pinned;  // for data
  std::shared_ptr<Staging> list;    // of messages, where the arguments have no room for them
  std::vector<Operation> checked;   // when the stream comes to the call
  std::shared_ptr<StreamMemory> memory;
};

class MessageCall {
 public:
  // The messages of one peer and direction, in order.
  struct Order {
    Rank peer = 0;
    bool sends = false;
    std::vector<size_t> operations;
  };

  // The context of the stream is current. `number`: what the stream writes into the words.
  static Outcome make(const std::vector<Operation>& operations,
                      const std::shared_ptr<StreamMemory>& memory, cuda::Stream stream,
                      uint32_t number, uint32_t* started, uint32_t* ended,
                      std::unique_ptr<MessageCall>* made);

  static std::vector<Order> orders_of(const std::vector<Operation>& operations);

  const std::shared_ptr<MessageStaging>& staging() const { return staging_; }
  // When the stream comes to the call it checks the buffers; one that has been freed since fails
  // the communicator.
  void check_first(const std::vector<Operation>& operations) { staging_->checked = operations; }
  // Before the kernel: the stream waits until the word is 1, and clears it.
  void wait_for(uint32_t* word) { gate_ = word; }

  // Up to the kernel, and the rest. An error stays, and nothing more is enqueued.
  Outcome enqueue_kernel();
  Outcome enqueue_end();
  bool done() const { return done_; }
  // Something is on the stream.
  bool begun() const { return calls_.begun(); }
  // After an error: the stream tells the end of the call when it has passed what it holds. False:
  // it will not, since CUDA refuses that, too.
  bool abandon() { return calls_.write_after_error(ended_, number_); }

 private:
  // What is copied from or to the kernel's place of a message.
  struct Bounce {
    size_t operation;
    char* buffer;
    char* pinned;
    uint64_t bytes;
    bool sends;
    bool by_host;
  };

  MessageCall(const char* function, std::shared_ptr<StreamMemory> memory, cuda::Stream stream,
              uint32_t number, uint32_t* started, uint32_t* ended);
  Outcome lay_out(const std::vector<Operation>& operations);
  Outcome find_places(const std::vector<Operation>& operations, std::vector<char*>* places);
  void copy(const Bounce& bounce);
  void enqueue_check();

  const std::shared_ptr<StreamMemory> memory_;
  CallOnStream calls_;
  const uint32_t number_;
  const cuda::DevicePointer started_;
  const cuda::DevicePointer ended_;
  uint32_t* gate_ = nullptr;
  cuda::Function kernel_ = nullptr;
  unsigned blocks_ = 1;
  kernels::MessageArguments arguments_;
  std::vector<Bounce> bounces_;
  std::shared_ptr<MessageStaging> staging_;
  bool done_ = false;
};

}  // namespace weir::nccl
