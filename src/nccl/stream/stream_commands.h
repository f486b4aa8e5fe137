// SPDX-License-Identifier: Apache-2.0
// StreamCommands: the stream's half of tasks: copies and flags, as calls to CUDA in the order in
// which the stream carries them out. All of them may be captured into a graph. Not thread-safe.
//
// A call may wait: a launch queue has room for about 1024 calls, and a stream that waits for a peer
// takes none. The commands of one group, whose ranks may be each other's peers, are therefore
// enqueued in steps by the same thread: the first step of all, which waits for no peer; the turns
// of those whose slices take turns, one of each; the last step of the others.
#pragma once

#include <vector>

#include "cuda/driver.h"
#include "nccl/base/outcome.h"
#include "nccl/stream/calls_in_flight.h"
#include "nccl/stream/proxy_task.h"

namespace weir::nccl {

class StreamCommands {
 public:
  // `tasks` have their staging and numbers. The stream rings for all of them before it waits for
  // one, except where a task's slices take turns: that task is alone. `joined`: the same thread
  // enqueues steps of other ranks in between. `calls`: bounds those in flight; nullptr: no bound.
  StreamCommands(const cuda::Driver& driver, cuda::Stream stream, bool joined, CallsInFlight* calls,
                 std::vector<ProxyTask*> tasks);

  // Enqueues the next step. An error stays, and nothing more is enqueued.
  Outcome enqueue_step();
  bool ended() const { return step_ == step_count_ || !outcome_.ok(); }
  bool takes_turns() const { return tasks_[0]->takes_turns; }

  // How often the stream will ring for a task after what has been enqueued.
  size_t rings(size_t task) const { return enqueued_rings_[task]; }

 private:
  void hand_over();
  void take_back();
  void take_back(const ProxyTask& task, bool copied);
  void turn(const ProxyTask& task, size_t step);
  void copy_scalar(const ProxyTask& task, const Subtask& subtask);
  void copy_in(const ProxyTask& task, const Subtask& subtask, size_t slice);
  void copy_out(const ProxyTask& task, const Subtask& subtask, size_t slice);
  void move(char* to, size_t to_stride, const char* from, size_t from_stride, size_t blocks,
            size_t bytes);
  void copy(void* to, const void* from, size_t bytes);
  void ring(size_t index, comm::Mailbox& mailbox);
  void await(comm::Mailbox& mailbox);
  void clear(comm::Mailbox& mailbox);
  void mark();
  // Before so many calls.
  void count(size_t calls);
  void add(uint32_t operation, uint32_t* flag, uint32_t value, unsigned flags);
  void flush();
  void hold(const char* call, cuda::Result result);

  const cuda::Driver& driver_;
  const cuda::Stream stream_;
  const bool joined_;
  CallsInFlight* const calls_;
  const std::vector<ProxyTask*> tasks_;
  size_t step_ = 0;
  size_t step_count_ = 2;
  std::vector<cuda::BatchEntry> entries_;
  std::vector<size_t> rings_;  // of each task, with those that are not enqueued yet
  std::vector<size_t> enqueued_rings_;
  Outcome outcome_;
};

}  // namespace weir::nccl
