// SPDX-License-Identifier: Apache-2.0
#include "offload/kernels/worker_pool.h"

#include <algorithm>
#include <string>
#include <system_error>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "offload/kernels/cores.h"
#include "offload/kernels/float_environment.h"

namespace weir::offload {

uint32_t WorkerPool::default_thread_count() { return usable_core_count(); }

Result<std::unique_ptr<WorkerPool>> WorkerPool::create(const WorkerPoolOptions& options) {
  std::unique_ptr<WorkerPool> pool(new WorkerPool(options));
  const Status status = pool->start_threads();
  if (!status.ok()) return status;
  return Result<std::unique_ptr<WorkerPool>>(std::move(pool));
}

Status WorkerPool::start_threads() {
  const std::vector<int>& cores = options_.cores;
  WEIR_RETURN_IF_ERROR(check_cores(cores));
  thread_count_ = options_.thread_count != 0 ? options_.thread_count : default_thread_count();
  const uint32_t started = thread_count_ - (options_.caller_helps ? 1 : 0);
  threads_.reserve(started);
  for (uint32_t worker = 0; worker < started; ++worker) {
    try {
      threads_.emplace_back([this] { work(); });
    } catch (const std::system_error& error) {
      return system_error("offload: cannot start worker " + std::to_string(worker) + " of " +
                              std::to_string(started) + "; ask for fewer threads",
                          error.code().value());
    }
    const size_t place = worker + (options_.caller_helps ? 1 : 0);
    if (!cores.empty()) WEIR_RETURN_IF_ERROR(pin(&threads_.back(), cores[place % cores.size()]));
  }
  return Status();
}

WorkerPool::~WorkerPool() {
  wait();
  stop_.store(true, std::memory_order_relaxed);
  job_.fetch_add(1, std::memory_order_release);
  job_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void WorkerPool::start_job(uint64_t count, uint64_t block, void* context, Function function) {
  WEIR_CHECK(block != 0, "a block has elements");
  wait();
  // A worker that came late to the last job may still be looking for a block of it.
  gate_.fetch_or(kClosed, std::memory_order_acq_rel);
  while (gate_.load(std::memory_order_acquire) != kClosed) cpu_relax();
  count_ = count;
  block_ = block;
  block_count_ = count / block + (count % block != 0 ? 1 : 0);
  context_ = context;
  function_ = function;
  finished_.store(0, std::memory_order_relaxed);
  next_.store(0, std::memory_order_relaxed);
  job_.fetch_add(1, std::memory_order_release);
  gate_.fetch_and(~kClosed, std::memory_order_release);
  if (!threads_.empty()) job_.notify_all();
}

void WorkerPool::wait() {
  if (done()) return;
  if (options_.caller_helps) {
    const FloatEnvironment environment;
    run_blocks();
  }
  while (!done()) {
    const uint64_t finished = finished_.load(std::memory_order_acquire);
    if (finished == block_count_) break;
    const uint64_t give_up_ns = now_ns() + uint64_t{options_.spin_us} * 1000;
    while (finished_.load(std::memory_order_acquire) == finished && now_ns() < give_up_ns) {
      cpu_relax();
    }
    finished_.wait(finished, std::memory_order_acquire);
  }
}

void WorkerPool::run_blocks() {
  for (;;) {
    const uint64_t index = next_.fetch_add(1, std::memory_order_relaxed);
    if (index >= block_count_) return;
    const uint64_t begin = index * block_;
    function_(context_, begin, std::min(count_, begin + block_));
    if (finished_.fetch_add(1, std::memory_order_acq_rel) + 1 == block_count_) {
      finished_.notify_all();
    }
  }
}

// Waits until the job's number differs from `seen`; false when there will be no further job.
bool WorkerPool::await_job(uint32_t seen) {
  const uint64_t sleep_ns = now_ns() + uint64_t{options_.spin_us} * 1000;
  while (job_.load(std::memory_order_acquire) == seen) {
    // A worker that missed the last job may have taken the number that announces the end for a
    // job's.
    if (stop_.load(std::memory_order_relaxed)) return false;
    if (now_ns() < sleep_ns) {
      cpu_relax();
    } else {
      job_.wait(seen, std::memory_order_acquire);
    }
  }
  return !stop_.load(std::memory_order_relaxed);
}

bool WorkerPool::enter() {
  if ((gate_.fetch_add(1, std::memory_order_acq_rel) & kClosed) == 0) return true;
  gate_.fetch_sub(1, std::memory_order_release);
  cpu_relax();
  return false;
}

void WorkerPool::work() {
  const FloatEnvironment environment;
  uint32_t seen = 0;
  while (await_job(seen)) {
    if (!enter()) continue;  // the next job is being written
    seen = job_.load(std::memory_order_acquire);
    run_blocks();
    gate_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace weir::offload
