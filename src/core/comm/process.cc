// SPDX-License-Identifier: Apache-2.0
#include "core/comm/process.h"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "core/base/clock.h"
#include "core/base/per_process.h"
#include "core/base/settings.h"
#include "core/comm/communicator.h"
#include "core/comm/requests/callbacks.h"

namespace weir::comm {

namespace {

constexpr uint32_t kIdleMax = 1000;  // polls without progress before the thread sleeps in between
// So many polls without progress before it checks whether a beat is due: where many threads share a
// core, each poll costs milliseconds.
constexpr uint32_t kAttendPolls = 4;
// Of the other communicators of the process, a thread that waits polls so many at a time.
constexpr size_t kOthersPerTurn = 8;

struct Process {
  std::mutex lock;
  std::vector<Communicator*> communicators;
  size_t next_other = 0;  // in `communicators`; may be behind the end
  std::condition_variable work;
  std::thread thread;
  bool stop = false;
};

// Lives as long as there are communicators that threads may still touch. A forked child has neither
// its parent's threads nor the right to use the transports of its communicators.
Process& process() {
  static constinit PerProcess<Process> it;
  return it.get();
}

bool any_in_flight(const Process& it) {
  return std::any_of(it.communicators.begin(), it.communicators.end(),
                     [](const Communicator* comm) { return comm->has_requests(); });
}

// How the thread waits between polls that moved nothing: it yields while nobody else wants its
// core, and naps otherwise. The scheduler serves a thread that wakes up sooner than one that has
// yielded, and the other one, which computes, is interrupted less often.
class Idle {
 public:
  // There is something in flight again.
  void begin() { busy_since_ns_ = now_ns(); }

  void pass(uint32_t polls) {
    const uint64_t begin_ns = now_ns();
    if (begin_ns < contended_until_ns_) return nap((begin_ns - busy_since_ns_) / kNapsOfTime);
    if (polls > kIdleMax) return nap(0);
    sched_yield();
    const uint64_t end_ns = now_ns();
    if (end_ns - begin_ns >= kLateNs) {
      contended_until_ns_ = end_ns + contended_ns_;
      contended_ns_ = std::min(2 * contended_ns_, kContendedNsMax);
    } else if (end_ns - contended_until_ns_ > kContendedNsMax) {
      contended_ns_ = kContendedNsLeast;
    }
  }

 private:
  // A yield that takes longer has let another thread run.
  static constexpr uint64_t kLateNs = 50'000;
  // So long it does not yield again; longer when the core is wanted again soon after.
  static constexpr uint64_t kContendedNsLeast = 20'000'000;
  static constexpr uint64_t kContendedNsMax = 640'000'000;
  // On a contended core a nap is a small part of the time that operations have taken already.
  static constexpr uint64_t kNapsOfTime = 256;
  static constexpr uint64_t kNapNsLeast = 100'000;
  static constexpr uint64_t kNapNsMax = 500'000;

  static void nap(uint64_t ns) {
    const timespec time{0, static_cast<long>(std::clamp(ns, kNapNsLeast, kNapNsMax))};
    nanosleep(&time, nullptr);
  }

  uint64_t busy_since_ns_ = 0;
  uint64_t contended_until_ns_ = 0;
  uint64_t contended_ns_ = kContendedNsLeast;
};

void progress_loop() {
  Process& it = process();
  Idle between_polls;
  uint32_t idle = 0;
  for (;;) {
    {
      std::unique_lock lock(it.lock);
      if (!any_in_flight(it)) {
        it.work.wait(lock, [&] { return it.stop || any_in_flight(it); });
        between_polls.begin();
      }
      if (it.stop) return;
      bool moved = false;
      const uint64_t at_ns = now_ns();
      for (Communicator* comm : it.communicators) {
        if (!comm->has_requests()) {
          comm->tend(at_ns);
          continue;
        }
        moved = comm->try_poll() || moved;
        if (idle > kIdleMax || idle % kAttendPolls == kAttendPolls - 1) comm->attend();
      }
      idle = moved ? 0 : idle + 1;
    }
    run_ready();
    if (idle > 0) between_polls.pass(idle);
  }
}

}  // namespace

void register_communicator(Communicator* comm) {
  Process& it = process();
  std::lock_guard lock(it.lock);
  it.communicators.push_back(comm);
}

void unregister_communicator(Communicator* comm) {
  Process& it = process();
  std::thread ended;
  {
    std::lock_guard lock(it.lock);
    it.communicators.erase(std::remove(it.communicators.begin(), it.communicators.end(), comm),
                           it.communicators.end());
    if (it.communicators.empty() && it.thread.joinable()) {
      it.stop = true;
      it.work.notify_all();
      ended = std::move(it.thread);
    }
  }
  if (ended.joinable()) {
    ended.join();
    std::lock_guard lock(it.lock);
    it.stop = false;
  }
}

void request_started() {
  const Result<Settings>& settings = process_settings();
  if (settings.ok() && settings.value().progress_thread) watch_requests();
}

void watch_requests() {
  Process& it = process();
  std::lock_guard lock(it.lock);
  if (!it.thread.joinable() && !it.stop) it.thread = std::thread(progress_loop);
  it.work.notify_one();
}

void progress_others(const Communicator* mine) {
  Process& it = process();
  {
    const std::unique_lock lock(it.lock, std::try_to_lock);
    if (!lock.owns_lock()) return;
    const size_t count = it.communicators.size();
    const uint64_t at_ns = count > 1 || mine == nullptr ? now_ns() : 0;
    for (size_t i = 0; i < std::min(count, kOthersPerTurn); ++i) {
      Communicator* const comm = it.communicators[it.next_other++ % count];
      if (comm == mine || comm->is_polled()) continue;
      if (comm->has_requests()) {
        comm->try_poll();
      } else {
        comm->tend(at_ns);
      }
    }
  }
  run_ready();
}

}  // namespace weir::comm
