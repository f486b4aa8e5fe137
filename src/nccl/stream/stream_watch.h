// SPDX-License-Identifier: Apache-2.0
// StreamWatch: what the proxy does for a call that is work of the stream alone: nothing, while it
// makes progress. It finds out that a peer has died, aborted, made another call or not come before
// the deadline; then the communicator fails, and from then on the watch lets the stream pass
// whatever it waits for in this call. Of collectives (collective_watch.h) and of messages
// (message_watch.h).
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
#include "nccl/direct/stream_memory.h"
#include "nccl/host/operation.h"
#include "nccl/stream/stream_record.h"

namespace weir::nccl {

class StreamWatch {
 public:
  // The mailboxes of calls of one kind, whose streams come to one after the other.
  struct Words {
    std::shared_ptr<Staging> staging;
    size_t first = 0;  // `started` (ready) and `ended` (done); in the next one, `done`: may run

    Mailbox& calls() const { return staging->mailboxes[first]; }
    Mailbox& gate() const { return staging->mailboxes[first + 1]; }
  };

  // `number`: of the call, as the stream writes it; in a graph, of its calls, from 1 on.
  StreamWatch(const Operation& operation, std::shared_ptr<StreamMemory> memory, Words words,
              uint32_t number, bool in_graph);
  virtual ~StreamWatch() = default;
  StreamWatch(const StreamWatch&) = delete;
  StreamWatch& operator=(const StreamWatch&) = delete;

  // The stream waits, before the call, until `may_run`: by the gate, which it clears. Before the
  // call is enqueued.
  void hold(std::shared_ptr<const std::atomic<bool>> may_run) { may_run_ = std::move(may_run); }
  bool held() const { return may_run_ != nullptr && !may_run_->load(std::memory_order_acquire); }

  // Stays as long as this object.
  void keep(std::shared_ptr<void> what) { kept_ = std::move(what); }

  // Calls of another order run beside those of this one.
  virtual size_t order() const = 0;
  static constexpr size_t kOrders = 2;

  // A part of the call, which is in no graph, is on the stream. By the thread that enqueues; may be
  // repeated.
  virtual void note_begun() = 0;
  // After `ended`.
  virtual void note_ended() = 0;

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

 protected:
  // Changes with everything that moves in the call.
  virtual uint64_t progress_mark() const = 0;
  // Lets the stream pass, now; the communicator is spoilt.
  virtual void release() = 0;
  // Whether the ranks do not agree; then fails.
  virtual bool finds_fault() = 0;
  // Those of the ranks, which have gone, without which the call does not end.
  virtual std::vector<Rank> needed_of(const std::vector<Rank>& gone) const = 0;
  // After "nothing has moved for ... ms, the deadline".
  virtual std::string late_text() const = 0;
  virtual void record_wait(uint64_t since_ns) const = 0;

  void fail(ncclResult_t code, const std::string& what) const;
  std::string at_rank() const;  // "ncclSend, rank 1 of 2: "

  const std::shared_ptr<Comm> comm_;
  const std::shared_ptr<StreamMemory> memory_;
  const std::shared_ptr<StreamRecord> record_;  // empty: it is not recorded
  const bool in_graph_;

 private:
  using Clock = std::chrono::steady_clock;

  void check_stuck(Clock::time_point now);

  const Words words_;
  const char* const function_;
  const uint32_t number_;
  const int64_t timeout_ms_;
  bool seen_ = false;
  uint64_t mark_ = 0;        // progress_mark
  Clock::time_point since_;  // nothing has moved
  uint64_t since_ns_ = 0;    // the same, of the recorder's clock
  bool waits_ = false;       // as the record says
  Clock::time_point next_check_;
  std::atomic<bool> lost_{false};
  std::shared_ptr<const std::atomic<bool>> may_run_;  // empty: it is not held
  bool let_go_ = false;
  std::shared_ptr<void> kept_;
};

}  // namespace weir::nccl
