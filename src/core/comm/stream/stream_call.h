// SPDX-License-Identifier: Apache-2.0
// StreamCall: one collective as calls to CUDA on the program's stream: the steps of its
// StreamProgram. No thread of the host takes part once they are enqueued, and all of them may be
// captured into a graph.
//
// Or those of a ScheduledProgram, where that is faster by the links (stream_ways.h).
//
// Two words in memory of the host tell which call the stream is in: `started` when it comes to
// this one, `ended` when it has passed it. Nothing waits for them but threads that watch
// (stream_watch.h).
//
// Plain memory of the host is copied by functions that the stream calls, by way of pinned memory: a
// copy of CUDA's would make the calling thread wait until the stream has come to it.
//
// What a rank copies from several others in one step is one kernel, which reads from all of them at
// the same time; where the kernel cannot use a buffer, copies of CUDA's follow each other.
//
// Not thread-safe; used by the thread that enqueues.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/comm/stream/call_on_stream.h"
#include "core/comm/stream/scheduled_program.h"
#include "core/comm/stream/staging.h"
#include "core/comm/stream/stream_memory.h"
#include "core/comm/stream/stream_program.h"
#include "core/engine/call.h"
#include "cuda/kernels/copy_arguments.h"
#include "cuda/kernels/reduce_arguments.h"

namespace weir::comm {

// The call for peers and texts, and its fingerprint (core/engine/call.h).
struct CallWords {
  uint64_t what = 0;
  uint64_t count = 0;
  uint32_t fingerprint = 0;
};
CallWords words_of(const engine::Call& call);
bool is_rooted(const engine::Call& call);

// Where the buffers of a call that peers read lie in windows.
struct CallInWindows {
  DeviceWindow::Place send;
  uint64_t stride = 0;       // each rank's send buffer lies its number of strides behind that
  DeviceWindow::Place recv;  // of an all-reduce and a broadcast
  bool is_so() const { return send.window != nullptr || recv.window != nullptr; }
};

// The way that a call goes, for texts and the record.
struct CallWay {
  bool has_two_phases = false;
  bool in_windows = false;
  size_t round_count = 1;
  const char* schedule = nullptr;  // the algorithm's name; nullptr: straight from all ranks

  const char* phases() const {
    if (schedule != nullptr) return schedule;
    return has_two_phases ? "two phases" : "one phase";
  }
  const char* place() const { return in_windows ? "windows" : "scratch"; }
  // "directly, in two phases and 3 rounds, through scratch"; "directly, by rings, in 3 rounds, …"
  std::string text() const;
};

// What the functions of a call use. It must stay until the stream has passed the call; in a graph,
// as long as that may be launched.
struct HostCopies {
  std::deque<HostCopy> all;
  std::shared_ptr<Staging> pinned;  // with room for one slot
  std::function<void()> check;      // when the stream comes to the call; may be empty
};

class StreamCall {
 public:
  // The context of the stream is current. `function`: of the program's call, for texts. `factor`:
  // on a device, instead of call.scale, or nullptr. `number`: what the stream writes into the
  // words. `rooted_number`: the number that it will have among the calls with a root
  // (StreamMemory::next_rooted_call); 0 of one without, and in a graph. `pinned`: of the
  // communicator, made where it is needed and there is none.
  static Status make(const char* function, const engine::Call& call, const void* factor,
                     const std::shared_ptr<StreamMemory>& memory, cuda::Stream stream,
                     const StreamWords& words, uint32_t number, uint64_t rooted_number,
                     std::shared_ptr<Staging>* pinned, std::unique_ptr<StreamCall>* made);
  // It uses its buffers in windows.
  bool in_windows() const { return windows_.is_so(); }
  CallWay way() const {
    if (scheduled_) return {false, false, scheduled_->round_count(), schedule_->name()};
    return {program_.has_two_phases(), in_windows(), program_.round_count(), nullptr};
  }
  // Of the buffer, or of a block.
  uint64_t bytes() const { return call_words_.count * element_bytes_; }
  // Its data flow to a root, or from one, so that it may end on ranks although another one has made
  // another call.
  bool has_root() const { return has_root_; }
  // Of the call, its number and the places of its buffers in windows.
  const CallWords& words() const { return call_words_; }
  // The ranks for whose data the stream waits.
  std::vector<Rank> writers() const;
  // nullptr: there are none.
  const std::shared_ptr<HostCopies>& host_copies() const { return host_copies_; }

  // Before the first step: what a thread of the host does when the stream comes to the call.
  void check_first(std::function<void()> check);
  // Before the first step, of a captured call: each launch takes back that the one before has
  // ended.
  void repeats() { repeats_ = true; }
  // Before the first step: the stream waits until the word is 1, and clears it.
  void wait_for(uint32_t* word);

  size_t step_count() const {
    return scheduled_ ? scheduled_->step_count() : program_.step_count();
  }
  // Enqueues the next step. An error stays, and nothing more is enqueued.
  Status enqueue_step();
  bool done() const { return calls_.ok() && next_ == step_count(); }
  // Something is on the stream.
  bool begun() const { return calls_.begun(); }
  // After an error: the stream tells the end of it when it has passed what it holds. False: it will
  // not, since CUDA refuses that, too.
  bool abandon() { return calls_.write_after_error(ended_, number_); }

 private:
  StreamCall(const char* function, const engine::Call& call, std::shared_ptr<StreamMemory> memory,
             std::shared_ptr<const StreamSchedule> schedule, CallInWindows windows,
             cuda::Stream stream, const StreamWords& words, uint32_t number,
             uint64_t rooted_number);
  Status prepare(const engine::Call& call, const void* factor);
  Status prepare_reduction(const engine::Call& call, const void* factor);
  void prepare_copies();
  Status prepare_host_copies(std::shared_ptr<Staging>* pinned);
  void copy_on_host(void* to, const void* from, uint64_t bytes);
  void enqueue_check();

  char* at(const StreamPlace& place) const;
  cuda::MemoryPlace place_of(const StreamPlace& place) const;
  void set_sources(const StreamOp& op, kernels::ReduceArguments* arguments);
  void add_copy(const StreamOp& op);
  bool needs_one_left(const StreamOp& op) const;
  void make_copies();
  bool reads_peer(const StreamOp& op) const;
  bool is_for_kernels(const StreamPlace& place) const;
  void copy_by_cuda(const StreamOp& op);
  void copy(char* to, cuda::MemoryPlace to_place, const char* from, cuda::MemoryPlace from_place,
            uint64_t bytes);
  void scale(char* data, uint64_t count);
  void reduce(const StreamOp& op);
  void reduce_piece(const StreamOp& op);
  void launch(kernels::ReduceArguments* arguments);

  const std::shared_ptr<StreamMemory> memory_;
  CallOnStream calls_;
  const uint32_t number_;
  const cuda::DevicePointer started_;
  const cuda::DevicePointer ended_;
  const char* const send_;
  char* const recv_;
  const uint32_t element_bytes_;
  const CallInWindows windows_;
  const bool has_root_;
  const CallWords call_words_;
  const StreamProgram program_;
  const std::shared_ptr<const StreamSchedule> schedule_;
  std::optional<ScheduledProgram> scheduled_;  // in place of program_
  cuda::Function kernel_ = nullptr;            // of a reduction
  cuda::Function copies_ = nullptr;            // if kernels copy
  kernels::ReduceFold fold_ = kernels::ReduceFold::kSum;
  uint32_t divisor_ = 1;
  bool is_scaled_ = false;
  unsigned char factor_[8] = {};
  const char* factor_memory_ = nullptr;  // where it lies instead
  // Of the buffers that are used.
  cuda::MemoryPlace send_place_ = cuda::MemoryPlace::kDevice;
  cuda::MemoryPlace recv_place_ = cuda::MemoryPlace::kDevice;
  std::shared_ptr<HostCopies> host_copies_;
  bool repeats_ = false;
  bool reads_send_ = false;   // kernels may read the send buffer
  bool writes_recv_ = false;  // kernels may store into the receive buffer
  size_t next_ = 0;
  std::vector<StreamOp> ops_;
  std::vector<StreamOp> copies_left_;  // that follow each other in a step
};

}  // namespace weir::comm
