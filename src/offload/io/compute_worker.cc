// SPDX-License-Identifier: Apache-2.0
#include "offload/io/compute_worker.h"

#include <signal.h>

#include <system_error>
#include <utility>

#include "core/base/clock.h"

namespace weir::offload {

Result<std::unique_ptr<ComputeWorker>> ComputeWorker::create() {
  std::unique_ptr<ComputeWorker> worker(new ComputeWorker());
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  Status started;
  try {
    worker->thread_ = std::thread([raw = worker.get()] { raw->work(); });
  } catch (const std::system_error& error) {
    started = system_error("start the compute thread", error.code().value());
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!started.ok()) return started;
  return worker;
}

ComputeWorker::~ComputeWorker() {
  {
    const std::lock_guard lock(mutex_);
    waiting_.clear();
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void ComputeWorker::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !waiting_.empty(); });
    if (stop_) return;
    const Job job = std::move(waiting_.front());
    waiting_.pop_front();
    busy_ = true;
    lock.unlock();
    Finished finished;
    finished.id = job.id;
    finished.begin_ns = now_ns();
    finished.status = job.run();
    finished.end_ns = now_ns();
    lock.lock();
    busy_ = false;
    finished_.push_back(std::move(finished));
    changed_.notify_all();
  }
}

void ComputeWorker::give(uint32_t id, std::function<Status()> job) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back({id, std::move(job)});
  }
  ++outstanding_;
  changed_.notify_all();
}

std::vector<ComputeWorker::Finished> ComputeWorker::take(bool wait) {
  std::vector<Finished> taken;
  std::unique_lock lock(mutex_);
  if (wait && outstanding_ > 0) changed_.wait(lock, [this] { return !finished_.empty(); });
  taken.swap(finished_);
  outstanding_ -= static_cast<uint32_t>(taken.size());
  return taken;
}

void ComputeWorker::drop_all() {
  std::unique_lock lock(mutex_);
  waiting_.clear();
  changed_.wait(lock, [this] { return !busy_; });
  finished_.clear();
  outstanding_ = 0;
}

}  // namespace weir::offload
