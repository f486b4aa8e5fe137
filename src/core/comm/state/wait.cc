// SPDX-License-Identifier: Apache-2.0
#include "core/comm/state/wait.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

#include "core/base/clock.h"

namespace weir::comm {

namespace {

// A signal between the check and the sleep can be missed: the signaller does not fence on its hot
// path. So a sleep is short.
constexpr timespec kSleep{0, 1'000'000};
// Of more ranks a core, those that wait would take all of the core from what they wait for. So
// yields are fewer in proportion, and naps longer with the square of their number.
constexpr uint32_t kRanksPerCore = 8;
constexpr uint32_t kNapUsMax = 20'000;
// Between slow checks, while the core is handed on: polls, or time, since a poll may take the time
// slices of many other threads.
constexpr uint32_t kYieldsPerCheck = 64;
constexpr uint32_t kYieldsPerClock = 4;
constexpr uint64_t kCheckNs = 1'000'000;
// A poll of many connections is long: where many ranks wait for connections, yields without an end
// would take the cores from the threads that make these.
constexpr uint64_t kYieldNsMax = 5'000'000;
// Between two yields of a thread that spins, and how late it comes back where another thread wants
// the core: then it spins no more.
constexpr uint32_t kSpinsPerYield = 1024;
constexpr uint64_t kLateNs = 20'000;
constexpr uint32_t kPollsPerUs = 20;  // a pause instruction and loads of a few cache lines

uint64_t thread_cpu_ns() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(t.tv_nsec);
}

// Hands the core on, and returns for how long.
uint64_t yield_ns() {
  const uint64_t begin_ns = now_ns();
  sched_yield();
  return now_ns() - begin_ns;
}

}  // namespace

WaitPolicy WaitPolicy::with_own_core() { return {20'000, 2'000}; }
WaitPolicy WaitPolicy::with_shared_core(uint32_t ranks_per_core) {
  WaitPolicy policy = {2, 2'000};
  const uint32_t crowd = std::max(ranks_per_core, kRanksPerCore);
  policy.yield_count = policy.yield_count * kRanksPerCore / crowd;
  const uint64_t nap_us = uint64_t{policy.nap_us} * crowd * crowd / (kRanksPerCore * kRanksPerCore);
  policy.nap_us = static_cast<uint32_t>(std::min<uint64_t>(nap_us, kNapUsMax));
  if (crowd > kRanksPerCore) policy.crowd = crowd;
  return policy;
}
WaitPolicy WaitPolicy::spin_for(int64_t spin_us) {
  return {static_cast<uint32_t>(std::min<int64_t>(spin_us, 10'000'000)) * kPollsPerUs, 100};
}

bool Waiter::pause() {
  ++polls_;
  if (polls_ <= policy_.spin_count) {
    cpu_relax();
    if (polls_ % kSpinsPerYield != 0) return false;
    if (yield_ns() > kLateNs) polls_ = policy_.spin_count;
    return true;
  }
  if (policy_.crowd == 0) {
    sched_yield();
  } else if (yield_ns() > uint64_t{policy_.nap_us} * 1000) {
    end_yields();
  }
  if (polls_ % kYieldsPerCheck == 0) return true;
  return polls_ % kYieldsPerClock == 0 && is_time();
}

bool Waiter::is_time() {
  const uint64_t now = now_ns();
  look_at_yields(now);
  if (looked_ns_ == 0) looked_ns_ = now;
  if (now - looked_ns_ < kCheckNs) return false;
  looked_ns_ = now;
  return true;
}

// Ends the yields that have lasted too long.
void Waiter::look_at_yields(uint64_t now_ns) {
  if (yields_since_ns_ == 0) yields_since_ns_ = now_ns;
  if (now_ns - yields_since_ns_ >= kYieldNsMax) end_yields();
}

void Waiter::end_yields() {
  polls_ = std::max(polls_, policy_.spin_count + policy_.yield_count + 1);
}

void Waiter::nap() {
  uint64_t nap_ns = uint64_t{policy_.nap_us} * 1000;
  if (policy_.crowd != 0 && woke_cpu_ns_ != 0) {
    const uint64_t poll_ns = thread_cpu_ns() - woke_cpu_ns_;
    nap_ns = std::clamp(2 * policy_.crowd * poll_ns, nap_ns, uint64_t{kNapUsMax} * 1000);
  }
  const timespec time{0, static_cast<long>(nap_ns)};
  nanosleep(&time, nullptr);
  if (policy_.crowd != 0) woke_cpu_ns_ = thread_cpu_ns();
}

void Waiter::futex_wait(std::atomic<uint32_t>* word, uint32_t seen) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT, seen, &kSleep, nullptr, 0);
}

}  // namespace weir::comm
