// SPDX-License-Identifier: Apache-2.0
// WorkerPool: persistent threads that share the blocks of one loop at a time, each wherever the
// calling thread may run, or on a core that the caller lists. Every worker runs under
// FloatEnvironment; so does the calling thread while it helps, and its own settings are restored
// afterwards. Nothing is allocated per call. Between loops workers spin for a while, then sleep.
//
// One thread at a time per pool. The body is called from several threads at once and must neither
// throw nor call the pool. Blocks are handed out in order, to whichever thread is free: what a body
// computes must not depend on the thread that runs it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

#include "core/base/status.h"

namespace weir::offload {

struct WorkerPoolOptions {
  uint32_t thread_count = 0;  // that work, the caller included when it helps; 0: one per core
  bool caller_helps = true;   // else wait() only waits
  // Thread i runs on cores[i % cores.size()]; the caller, where it helps, is thread 0 and stays
  // where it is. Empty: wherever the creating thread may run.
  std::vector<int> cores = {};
  uint32_t spin_us = 50;  // before a worker sleeps
};

class WorkerPool {
 public:
  // kSystem when a thread does not start. kInvalidArgument names a core that the process may not
  // use.
  static Result<std::unique_ptr<WorkerPool>> create(const WorkerPoolOptions& options);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  uint32_t thread_count() const { return thread_count_; }
  // One thread per core that the process may use.
  static uint32_t default_thread_count();

  // body(begin, end) for [0, block), [block, 2 block) … of [0, count), the last one shorter;
  // returns when all have run. Blocks have the same borders for any thread count.
  template <class Body>
  void parallel_for(uint64_t count, uint64_t block, Body&& body) {
    start(count, block, body);
    wait();
  }

  // The same in two halves, so that the caller can do something else (reap a disk) in between.
  // `body` must live until wait() has returned, or done() has said true.
  template <class Body>
  void start(uint64_t count, uint64_t block, Body& body) {
    using Plain = std::remove_reference_t<Body>;
    start_job(count, block, const_cast<void*>(static_cast<const void*>(&body)),
              [](void* context, uint64_t begin, uint64_t end) {
                (*static_cast<Plain*>(context))(begin, end);
              });
  }
  bool done() const { return finished_.load(std::memory_order_acquire) == block_count_; }
  void wait();

 private:
  static constexpr uint32_t kClosed = 1u << 31;

  using Function = void (*)(void* context, uint64_t begin, uint64_t end);

  explicit WorkerPool(const WorkerPoolOptions& options) : options_(options) {}
  Status start_threads();
  void start_job(uint64_t count, uint64_t block, void* context, Function function);
  void work();
  bool await_job(uint32_t seen);
  bool enter();
  void run_blocks();

  const WorkerPoolOptions options_;
  uint32_t thread_count_ = 1;

  // The job; written by the caller while the gate is closed and no worker inside.
  uint64_t count_ = 0;
  uint64_t block_ = 1;
  uint64_t block_count_ = 0;
  void* context_ = nullptr;
  Function function_ = nullptr;

  alignas(64) std::atomic<uint32_t> job_{0};  // number of the job; a change starts it
  std::atomic<bool> stop_{false};
  alignas(64) std::atomic<uint64_t> next_{0};      // block to hand out
  alignas(64) std::atomic<uint64_t> finished_{0};  // blocks that have run
  alignas(64) std::atomic<uint32_t> gate_{0};      // workers that use the job, and kClosed
  std::vector<std::thread> threads_;
};

}  // namespace weir::offload
