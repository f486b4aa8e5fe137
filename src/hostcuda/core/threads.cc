// SPDX-License-Identifier: Apache-2.0
#include "hostcuda/core/threads.h"

#include <pthread.h>
#include <signal.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace weir::hostcuda {

bool start_thread(std::function<void()> body) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  bool started = true;
  try {
    std::thread(std::move(body)).detach();
  } catch (const std::system_error& error) {
    std::fprintf(stderr, "hostcuda: no thread for a stream: %s; raise the limit of processes\n",
                 error.what());
    started = false;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

namespace {

struct ThreadPool {
  std::mutex mutex;
  std::condition_variable wake;
  std::deque<std::function<void()>> jobs;
  size_t idle_count = 0;
};

// Never destroyed: its threads may outlive the static objects of the program.
ThreadPool& pool() {
  static ThreadPool* const instance = new ThreadPool;
  return *instance;
}

void serve() {
  ThreadPool& shared = pool();
  std::unique_lock lock(shared.mutex);
  for (;;) {
    while (!shared.jobs.empty()) {
      std::function<void()> job = std::move(shared.jobs.front());
      shared.jobs.pop_front();
      lock.unlock();
      job();
      job = nullptr;
      lock.lock();
    }
    ++shared.idle_count;
    const bool called =
        shared.wake.wait_for(lock, std::chrono::seconds(5), [&] { return !shared.jobs.empty(); });
    --shared.idle_count;
    if (!called) return;
  }
}

}  // namespace

bool run_aside(std::function<void()> job) {
  ThreadPool& shared = pool();
  const std::lock_guard lock(shared.mutex);
  shared.jobs.push_back(std::move(job));
  if (shared.idle_count >= shared.jobs.size()) {
    shared.wake.notify_one();
    return true;
  }
  if (start_thread(serve)) return true;
  shared.jobs.pop_back();
  return false;
}

}  // namespace weir::hostcuda
