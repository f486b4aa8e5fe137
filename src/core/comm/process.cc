// SPDX-License-Identifier: Apache-2.0
#include "core/comm/process.h"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

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

void progress_loop() {
  Process& it = process();
  uint32_t idle = 0;
  for (;;) {
    {
      std::unique_lock lock(it.lock);
      it.work.wait(lock, [&] { return it.stop || any_in_flight(it); });
      if (it.stop) return;
      bool moved = false;
      for (Communicator* comm : it.communicators) {
        if (!comm->has_requests()) continue;
        moved = comm->try_poll() || moved;
        if (idle > kIdleMax || idle % kAttendPolls == kAttendPolls - 1) comm->attend();
      }
      idle = moved ? 0 : idle + 1;
    }
    run_ready();
    if (idle > kIdleMax) {
      const timespec nap{0, 100'000};
      nanosleep(&nap, nullptr);
    } else if (idle > 0) {
      sched_yield();
    }
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
    for (size_t i = 0; i < std::min(count, kOthersPerTurn); ++i) {
      Communicator* const comm = it.communicators[it.next_other++ % count];
      if (comm == mine || !comm->has_requests() || comm->is_polled()) continue;
      comm->try_poll();
    }
  }
  run_ready();
}

}  // namespace weir::comm
