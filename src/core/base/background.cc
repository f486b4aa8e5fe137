// SPDX-License-Identifier: Apache-2.0
#include "core/base/background.h"

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <list>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/per_process.h"

namespace weir {

namespace {

constexpr std::chrono::seconds kIdle{2};
// How long an exiting process waits for jobs, which may be waiting for other ranks.
constexpr std::chrono::milliseconds kExit{100};

struct Workers {
  std::mutex lock;
  std::condition_variable work;
  std::condition_variable left;
  std::deque<std::function<void()>> jobs;
  std::list<std::thread> threads;      // running
  std::vector<std::thread> have_left;  // finished; joining them takes no time
  size_t idle_count = 0;
  bool stop = false;
  bool leaves_at_exit = false;  // a handler of exit() is registered
};

// Never destroyed, since threads may use it while the process ends. (The library stays loaded after
// dlclose for the same reason.) A forked child has none of its parent's threads.
Workers& workers() {
  static constinit PerProcess<Workers> it;
  return it.get();
}

void join_all(std::vector<std::thread> threads) {
  for (std::thread& thread : threads) thread.join();
}

void leave_at_exit() {
  Workers& it = workers();
  std::unique_lock lock(it.lock);
  it.stop = true;
  it.work.notify_all();
  it.left.wait_for(lock, kExit, [&] { return it.threads.empty(); });
  // Exit handlers of the program that follow may bring further jobs. Threads that have not left
  // stay listed, and end with the process.
  it.stop = false;
  it.leaves_at_exit = false;
  std::vector<std::thread> left = std::move(it.have_left);
  it.have_left.clear();
  lock.unlock();
  join_all(std::move(left));
}

void serve(std::list<std::thread>::iterator self) {
  Workers& it = workers();
  std::unique_lock lock(it.lock);
  for (;;) {
    ++it.idle_count;
    it.work.wait_for(lock, kIdle, [&] { return it.stop || !it.jobs.empty(); });
    --it.idle_count;
    if (it.jobs.empty()) break;
    std::function<void()> job = std::move(it.jobs.front());
    it.jobs.pop_front();
    lock.unlock();
    job();
    job = nullptr;  // frees what it holds before the thread is idle
    lock.lock();
    // Registered after the first job, and so run before the exit handlers of the libraries that
    // jobs use; after a job of an exit handler, run when that returns.
    if (!std::exchange(it.leaves_at_exit, true)) (void)std::atexit(leave_at_exit);
    if (it.stop) break;
  }
  it.have_left.push_back(std::move(*self));
  it.threads.erase(self);
  it.left.notify_all();
}

}  // namespace

void run_in_background(std::function<void()> job) {
  Workers& it = workers();
  std::vector<std::thread> left;
  {
    std::lock_guard lock(it.lock);
    left = std::move(it.have_left);
    it.have_left.clear();
    it.jobs.push_back(std::move(job));
    if (it.idle_count >= it.jobs.size()) {
      it.work.notify_one();
    } else {
      try {
        const auto self = it.threads.emplace(it.threads.end());
        try {
          *self = std::thread(serve, self);
        } catch (...) {
          it.threads.erase(self);
          throw;
        }
      } catch (...) {
        it.jobs.pop_back();
        for (std::thread& thread : left) it.have_left.push_back(std::move(thread));
        throw;
      }
    }
  }
  join_all(std::move(left));
}

}  // namespace weir
