// SPDX-License-Identifier: Apache-2.0
// ComputeWorkers: threads that begin jobs in the order given and report when each began and ended.
// One other thread gives the jobs and takes the results.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "core/base/status.h"

namespace weir::offload {

class ComputeWorkers {
 public:
  struct Finished {
    uint32_t id = 0;
    uint32_t worker = 0;
    Status status;
    uint64_t begin_ns = 0;
    uint64_t end_ns = 0;
  };

  // Thread i runs on cores[i % cores.size()]; empty: wherever the creating thread may run. kSystem
  // when a thread does not start. kInvalidArgument names a core that the process may not use.
  static Result<std::unique_ptr<ComputeWorkers>> create(uint32_t thread_count,
                                                        const std::vector<int>& cores = {});
  ~ComputeWorkers();  // drops jobs that have not begun

  void give(uint32_t id, std::function<Status()> job);
  // The jobs finished since the last call. With `wait`, at least one if any was given.
  std::vector<Finished> take(bool wait);
  // Drops jobs that have not begun, waits for the others, and discards their results.
  void drop_all();
  // Jobs given and not yet taken.
  uint32_t outstanding() const { return outstanding_; }

 private:
  struct Job {
    uint32_t id;
    std::function<Status()> run;
  };
  ComputeWorkers() = default;
  void work(uint32_t worker);

  uint32_t outstanding_ = 0;
  std::mutex mutex_;
  std::condition_variable given_;
  std::condition_variable ended_;
  std::deque<Job> waiting_;  // guarded by mutex_, like all below
  std::vector<Finished> finished_;
  uint32_t busy_count_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace weir::offload
