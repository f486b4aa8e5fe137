// SPDX-License-Identifier: Apache-2.0
// StreamWatch: what the proxy does for a collective that is work of the stream alone (StreamCall):
// nothing, while it makes progress. It finds out that a peer has died, aborted, made another call
// or not come before the deadline; then the communicator fails, and from then on the watch lets the
// stream pass whatever it waits for in this call.
//
// Used by the proxy's thread, but for what is const.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "nccl/comm/comm.h"
#include "nccl/cuda/staging.h"
#include "nccl/direct/stream_call.h"
#include "nccl/direct/stream_memory.h"
#include "nccl/stream/stream_record.h"

namespace weir::nccl {

class StreamWatch {
 public:
  // `words`: the first mailbox holds the words `started` (ready) and `ended` (done) of the stream's
  // calls. `number`: of this one; in a graph, of its calls, from 1 on.
  StreamWatch(const Operation& operation, std::shared_ptr<StreamMemory> memory,
              std::shared_ptr<Staging> words, uint32_t number, bool in_graph);

  // The stream waits, before the call, until `may_run`: by the word `done` of the second mailbox,
  // which it clears. Before the call is enqueued.
  void hold(std::shared_ptr<const std::atomic<bool>> may_run) { may_run_ = std::move(may_run); }
  bool held() const { return may_run_ != nullptr && !may_run_->load(std::memory_order_acquire); }

  // Stays as long as this object.
  void keep(std::shared_ptr<HostCopies> copies) { copies_ = std::move(copies); }

  // A part of the call, which is in no graph, is on the stream: tells the peers. By the thread that
  // enqueues; may be repeated.
  void note_begun(const CallWords& words);

  // After `ended`.
  void note_ended() const;

  const std::shared_ptr<StreamMemory>& memory() const { return memory_; }
  // The stream has passed it; never true in a graph.
  bool ended() const;
  // The stream is in it now.
  bool running() const;
  // Looks whether something is wrong.
  void look();
  // Will never end: the program has reset the device.
  void lose() { lost_.store(true, std::memory_order_release); }
  bool lost() const { return lost_.load(std::memory_order_acquire); }

 private:
  using Clock = std::chrono::steady_clock;

  void release();
  void check_stuck(Clock::time_point now);
  bool differs();
  void fail(ncclResult_t code, const std::string& what);
  // Those that have made no such call.
  std::vector<Rank> late_ranks() const;
  void record_wait() const;

  const std::shared_ptr<Comm> comm_;
  const std::shared_ptr<StreamMemory> memory_;
  const std::shared_ptr<StreamRecord> record_;  // empty: it is not recorded
  const std::shared_ptr<Staging> words_;
  const char* const function_;
  const uint32_t number_;
  const bool in_graph_;
  std::atomic<uint64_t> call_{0};  // StreamMemory::next_call; 0: not begun, or in a graph
  const CallWords call_words_;
  const int64_t timeout_ms_;
  bool seen_ = false;
  uint64_t mark_ = 0;        // StreamMemory::progress_mark
  Clock::time_point since_;  // nothing has moved
  uint64_t since_ns_ = 0;    // the same, of the recorder's clock
  bool waits_ = false;       // as the record says
  Clock::time_point next_check_;
  std::atomic<bool> lost_{false};
  std::shared_ptr<const std::atomic<bool>> may_run_;  // empty: it is not held
  bool let_go_ = false;
  std::shared_ptr<HostCopies> copies_;
};

}  // namespace weir::nccl
