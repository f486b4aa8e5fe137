// SPDX-License-Identifier: Apache-2.0
#include "offload/io/compute_workers.h"

#include <signal.h>

#include <system_error>
#include <utility>

#include "core/base/clock.h"
#include "offload/kernels/cores.h"

namespace weir::offload {

Result<std::unique_ptr<ComputeWorkers>> ComputeWorkers::create(uint32_t thread_count,
                                                               const std::vector<int>& cores) {
  WEIR_RETURN_IF_ERROR(check_cores(cores));
  std::unique_ptr<ComputeWorkers> workers(new ComputeWorkers());
  // Signals are left to the program's own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  Status started;
  try {
    for (uint32_t i = 0; i < thread_count && started.ok(); ++i) {
      workers->threads_.emplace_back([raw = workers.get(), i] { raw->work(i); });
      if (!cores.empty()) started = pin(&workers->threads_.back(), cores[i % cores.size()]);
    }
  } catch (const std::system_error& error) {
    started = system_error("start a compute thread", error.code().value());
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!started.ok()) return started;
  return workers;
}

ComputeWorkers::~ComputeWorkers() {
  {
    const std::lock_guard lock(mutex_);
    waiting_.clear();
    stop_ = true;
  }
  given_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ComputeWorkers::work(uint32_t worker) {
  std::unique_lock lock(mutex_);
  while (true) {
    given_.wait(lock, [this] { return stop_ || !waiting_.empty(); });
    if (stop_) return;
    const Job job = std::move(waiting_.front());
    waiting_.pop_front();
    ++busy_count_;
    lock.unlock();
    Finished finished;
    finished.id = job.id;
    finished.worker = worker;
    finished.begin_ns = now_ns();
    finished.status = job.run();
    finished.end_ns = now_ns();
    lock.lock();
    --busy_count_;
    finished_.push_back(std::move(finished));
    ended_.notify_all();
  }
}

void ComputeWorkers::give(uint32_t id, std::function<Status()> job) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back({id, std::move(job)});
  }
  ++outstanding_;
  given_.notify_one();
}

std::vector<ComputeWorkers::Finished> ComputeWorkers::take(bool wait) {
  std::vector<Finished> taken;
  std::unique_lock lock(mutex_);
  if (wait && outstanding_ > 0) ended_.wait(lock, [this] { return !finished_.empty(); });
  taken.swap(finished_);
  outstanding_ -= static_cast<uint32_t>(taken.size());
  return taken;
}

void ComputeWorkers::drop_all() {
  std::unique_lock lock(mutex_);
  waiting_.clear();
  ended_.wait(lock, [this] { return busy_count_ == 0; });
  finished_.clear();
  outstanding_ = 0;
}

}  // namespace weir::offload
