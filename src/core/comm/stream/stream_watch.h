// SPDX-License-Identifier: Apache-2.0
// StreamWatch: what a thread of the host does for a call that is work of a stream alone: nothing,
// while it makes progress. It finds out that a peer has died, aborted, made another call or not
// come before the deadline; then the communicator fails, and from then on the watch lets the stream
// pass whatever it waits for in this call. Of collectives (collective_watch.h) and of messages
// (message_watch.h); stream_watches.h has the thread.
//
// Used by that thread, but for what is const.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/comm/state/wait_time.h"
#include "core/comm/stream/staging.h"
#include "core/comm/stream/stream_memory.h"
#include "core/comm/stream/stream_owner.h"
#include "core/comm/stream/stream_record.h"

namespace weir::comm {

// What is watched.
struct WatchedCall {
  const char* function = "";  // of the program, for texts; static
  std::shared_ptr<StreamOwner> owner;
  std::shared_ptr<StreamMemory> memory;
  std::shared_ptr<StreamRecord> record;  // empty: it is not recorded
  StreamWords words;
  uint32_t number = 0;  // as the stream writes it; in a graph, of its calls, from 1 on
  bool in_graph = false;
  int64_t timeout_ms = 0;  // 0: none
};

class StreamWatch {
 public:
  explicit StreamWatch(WatchedCall call) : call_(std::move(call)) {}
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
  // Those of its order that were called later begin when it has ended.
  virtual bool is_followed_only() const { return true; }

  // A part of the call is on the stream, or in the graph. By the thread that enqueues; may be
  // repeated.
  virtual void note_begun() = 0;
  // After `ended`.
  void finish() {
    end_wait();
    note_ended();
  }
  // Its stream is in it; may be repeated.
  virtual void note_running() {}

  // The stream has passed it; never true in a graph. Stays true, whatever becomes of the words. Any
  // thread.
  bool ended() const;
  // The stream is in it now.
  bool running() const;
  // Looks whether something is wrong.
  void look();
  // The peers are shown that it waits.
  bool shows_wait() const { return shows_wait_; }
  void end_wait();
  // Will never end: the program has reset the device.
  void lose() {
    memory().lose();
    lost_.store(true, std::memory_order_release);
  }
  bool lost() const { return lost_.load(std::memory_order_acquire); }

 protected:
  virtual void note_ended() = 0;
  // It has ended, although its stream does not tell.
  virtual bool has_moved_all() const { return false; }
  // Changes with everything that moves in the call.
  virtual uint64_t progress_mark() const = 0;
  // Lets the stream pass, now; the communicator is spoilt.
  virtual void release() = 0;
  // Whether the ranks do not agree; then fails.
  virtual bool finds_fault() = 0;
  // Those of the ranks, which have gone, without which the call does not end.
  virtual std::vector<Rank> needed_of(const std::vector<Rank>& gone) const = 0;
  // The ranks for which it may wait: all for which it does, and no rank that is known to have done
  // its part.
  virtual std::vector<Rank> awaited() const = 0;
  // Those that have not come to it, as far as that is known.
  virtual std::vector<Rank> late_ranks() const = 0;
  // After "nothing has moved for ... ms, the deadline". `culprits`: the ranks at fault; none: it is
  // not known.
  virtual std::string late_text(const std::vector<Rank>& culprits) const = 0;
  virtual void record_wait(uint64_t since_ns) const = 0;

  // With "ncclSend, rank 1 of 2: " before the text.
  void fail(Code code, const std::string& what, const std::vector<Rank>& blamed = {}) const;
  StreamMemory& memory() const { return *call_.memory; }
  StreamOwner& owner() const { return *call_.owner; }
  // nullptr: it is not recorded, or is in a graph, of which only the capture is.
  StreamRecord* record() const { return call_.in_graph ? nullptr : call_.record.get(); }
  // Of a call in a graph, once.
  bool in_graph() const { return call_.in_graph; }
  void record_capture(uint64_t bytes) const {
    if (call_.record != nullptr) call_.record->captured(bytes);
  }

 private:
  using Clock = std::chrono::steady_clock;

  void check_stuck(Clock::time_point now);
  void meet_deadline();
  // Whether CUDA has lost what the stream held; asks at times.
  bool finds_loss(Clock::time_point now);

  uint64_t timeout_ns() const { return static_cast<uint64_t>(call_.timeout_ms) * 1'000'000; }

  const WatchedCall call_;
  bool seen_ = false;
  uint64_t mark_ = 0;        // progress_mark
  Clock::time_point since_;  // nothing has moved
  uint64_t since_ns_ = 0;    // the same, of the recorder's clock
  WaitTime wait_time_;       // since then
  bool waits_ = false;       // as the record says
  bool shows_wait_ = false;
  Clock::time_point next_check_;
  Clock::time_point next_question_;  // to CUDA; the beginning of the clock: not looked at yet
  std::atomic<bool> lost_{false};
  std::shared_ptr<const std::atomic<bool>> may_run_;  // empty: it is not held
  bool let_go_ = false;
  mutable std::atomic<bool> ended_{false};
  std::shared_ptr<void> kept_;
};

}  // namespace weir::comm
