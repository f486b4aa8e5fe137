// SPDX-License-Identifier: Apache-2.0
#include "nccl/background.h"

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <new>
#include <thread>

namespace weir::nccl {

namespace {

constexpr std::chrono::seconds kIdle{2};

struct Workers {
  std::mutex lock;
  std::condition_variable work;
  std::deque<std::function<void()>> jobs;
  size_t idle_count = 0;
};

// Idle threads hold on to it while the process ends: never destroyed. (The library stays loaded
// after dlclose for the same reason.)
Workers& workers() {
  static Workers* it = new Workers();
  return *it;
}

// A forked child has none of its parent's threads.
void forget_after_fork() { new (&workers()) Workers(); }

void serve() {
  Workers& it = workers();
  std::unique_lock lock(it.lock);
  for (;;) {
    ++it.idle_count;
    it.work.wait_for(lock, kIdle, [&] { return !it.jobs.empty(); });
    --it.idle_count;
    if (it.jobs.empty()) return;
    std::function<void()> job = std::move(it.jobs.front());
    it.jobs.pop_front();
    lock.unlock();
    job();
    job = nullptr;  // what it holds goes before the thread is idle
    lock.lock();
  }
}

}  // namespace

void run_in_background(std::function<void()> job) {
  static const int once = pthread_atfork(nullptr, nullptr, forget_after_fork);
  (void)once;
  Workers& it = workers();
  std::lock_guard lock(it.lock);
  it.jobs.push_back(std::move(job));
  if (it.idle_count >= it.jobs.size()) {
    it.work.notify_one();
    return;
  }
  try {
    std::thread(serve).detach();
  } catch (...) {
    it.jobs.pop_back();
    throw;
  }
}

}  // namespace weir::nccl
