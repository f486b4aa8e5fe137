// SPDX-License-Identifier: Apache-2.0
// MessageCall: the messages of one group on one communicator as work of one stream: a kernel that
// moves all of them (cuda/kernels/message_loop.h). No thread of the host takes part once it is
// enqueued, and all of it may be captured into a graph.
//
// It is enqueued in two parts, between which other work of the group can be put on other streams: a
// kernel that runs holds up nothing that stands behind it in a hardware queue, but what waits for
// its end does.
//
// The words are as those of StreamCall. Memory that the kernel does not reach is copied by way
// of pinned memory: plain memory of the host by functions that the stream calls, that of another
// device by the stream.
//
// Not thread-safe; used by the thread that enqueues.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "core/base/status.h"
#include "core/comm/stream/call_on_stream.h"
#include "core/comm/stream/staging.h"
#include "core/comm/stream/stream_memory.h"
#include "cuda/kernels/message_arguments.h"

namespace weir::comm {

// One message of the calling rank.
struct StreamMessage {
  Rank peer = 0;
  bool sends = false;
  char* buffer = nullptr;
  uint64_t bytes = 0;
};

// What a stream uses besides the program's buffers. It must stay until the stream has passed the
// call; in a graph, as long as that may be launched.
struct MessageStaging {
  std::deque<HostCopy> copies;      // of functions that the stream calls
  std::shared_ptr<Staging> pinned;  // for data
  std::shared_ptr<Staging> list;    // of messages, where the arguments have no room for them
  std::shared_ptr<Staging> begun;   // with what counters the kernel has begun
  std::function<void()> check;      // when the stream comes to the call; may be empty
};

class MessageCall {
 public:
  // The messages of one peer and direction, in order.
  struct Order {
    Rank peer = 0;
    bool sends = false;
    std::vector<size_t> messages;
  };

  // The context of the stream is current. `function`: of the program's call, for texts. `number`:
  // what the stream writes into the words.
  static Status make(const char* function, const std::vector<StreamMessage>& messages,
                     const std::shared_ptr<StreamMemory>& memory, cuda::Stream stream,
                     const StreamWords& words, uint32_t number, std::unique_ptr<MessageCall>* made);

  static std::vector<Order> orders_of(const std::vector<StreamMessage>& messages);

  const std::shared_ptr<MessageStaging>& staging() const { return staging_; }
  // What a thread of the host does when the stream comes to the call.
  void check_first(std::function<void()> check) { staging_->check = std::move(check); }
  // Of a captured call: each launch takes back that the one before has ended.
  void repeats() { repeats_ = true; }
  // The kernel tells with what counters it begins (MessageOrder::begun), for MessageEnd: words of
  // the staging, those of an order after those of the one before it. Before it is enqueued.
  Status tell_begin(const uint64_t** words);
  // Before the kernel: the stream waits until the word is 1, and clears it.
  void wait_for(uint32_t* word) { gate_ = word; }

  // Up to the kernel, and the rest. An error stays, and nothing more is enqueued.
  Status enqueue_kernel();
  Status enqueue_end();
  // Something is copied after the kernel.
  bool copies_after() const;
  bool done() const { return done_; }
  // Something is on the stream.
  bool begun() const { return calls_.begun(); }
  // After an error: the stream tells the end of the call when it has passed what it holds. False:
  // it will not, since CUDA refuses that, too.
  bool abandon() { return calls_.write_after_error(ended_, number_); }

 private:
  // What is copied from or to the kernel's place of a message.
  struct Bounce {
    size_t message;
    char* buffer;
    char* pinned;
    uint64_t bytes;
    bool sends;
    bool by_host;
  };

  MessageCall(const char* function, std::shared_ptr<StreamMemory> memory, cuda::Stream stream,
              const StreamWords& words, uint32_t number);
  Status lay_out(const std::vector<StreamMessage>& messages);
  Status find_places(const std::vector<StreamMessage>& messages, std::vector<char*>* places);
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
  bool repeats_ = false;
  bool done_ = false;
};

}  // namespace weir::comm
