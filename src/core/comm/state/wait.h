// SPDX-License-Identifier: Apache-2.0
// Waiter: how a thread waits when a run is blocked: spin, then yield, then sleep until a peer
// signals. How long it spins depends on whether the ranks of this machine have a core each, and
// whether another thread wants the core meanwhile. One object per wait.
#pragma once

#include <atomic>
#include <cstdint>

namespace weir::comm {

struct WaitPolicy {
  // Polls with a pause between them. Now and then one yields, and if it comes back late, since
  // another thread wants the core, it was the last one.
  uint32_t spin_count = 2000;
  uint32_t yield_count = 2000;  // polls with sched_yield between them, for 5 ms at most
  uint32_t nap_us = 50;         // where no peer can wake it: between two polls
  // Of a core that many ranks share, otherwise 0: how many. A yield that takes longer than a nap is
  // the last one then, and all that wait there poll for half of the time at most, together.
  uint32_t crowd = 0;
  // Before sleeping, ranks that share cores hand the core on.
  static WaitPolicy with_own_core();
  static WaitPolicy with_shared_core(uint32_t ranks_per_core);
  // WEIR_SPIN_US: spin for about this long.
  static WaitPolicy spin_for(int64_t spin_us);
};

// Where to sleep: the wake-up words of the peer that is waited for; nullptr when there is none.
struct SleepPlace {
  std::atomic<uint32_t>* sleepers = nullptr;
  std::atomic<uint32_t>* wake = nullptr;
};

class Waiter {
 public:
  explicit Waiter(const WaitPolicy& policy) : policy_(policy) {}

  // Something moved: start over.
  void reset() { polls_ = 0, yields_since_ns_ = 0, woke_cpu_ns_ = 0; }
  // Call after a poll that moved nothing. True when it is time for slow checks (deadline, peers'
  // health).
  bool pause();
  // It hands the core on: the next poll may be long in coming.
  bool yields() const { return polls_ > policy_.spin_count; }
  // True when spinning and yielding were in vain; then `sleep` instead of `pause`.
  bool should_sleep() const { return polls_ > policy_.spin_count + policy_.yield_count; }
  // Sleeps for a millisecond at most; `still_blocked` is asked after announcing the sleep.
  template <typename StillBlocked>
  void sleep(SleepPlace place, StillBlocked still_blocked) {
    ++polls_;
    if (place.wake == nullptr) return nap();
    const uint32_t seen = place.wake->load(std::memory_order_acquire);
    place.sleepers->store(1, std::memory_order_seq_cst);
    if (still_blocked()) futex_wait(place.wake, seen);
  }

 private:
  bool is_time();
  void look_at_yields(uint64_t now_ns);
  void end_yields();
  void nap();
  static void futex_wait(std::atomic<uint32_t>* word, uint32_t seen);

  WaitPolicy policy_;
  uint32_t polls_ = 0;
  uint64_t looked_ns_ = 0;  // when it was time last
  uint64_t yields_since_ns_ = 0;
  uint64_t woke_cpu_ns_ = 0;  // the thread's processor time after a nap; 0: something moved since
};

}  // namespace weir::comm
