// SPDX-License-Identifier: Apache-2.0
// StepProgress: which chunks of the step under way are done, for those who wait for some of them.
// Thread-safe.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

namespace weir::offload {

class StepProgress {
 public:
  void begin(uint64_t chunk_count) {
    const std::lock_guard lock(mutex_);
    done_.assign(chunk_count, false);
    running_ = true;
  }
  void done(uint64_t chunk) {
    {
      const std::lock_guard lock(mutex_);
      done_[chunk] = true;
    }
    changed_.notify_all();
  }
  void end() {
    {
      const std::lock_guard lock(mutex_);
      running_ = false;
    }
    changed_.notify_all();
  }
  // Until chunks [first, end) are done or nothing runs.
  void wait(uint64_t first, uint64_t end) {
    std::unique_lock lock(mutex_);
    uint64_t at = first;
    changed_.wait(lock, [&] {
      if (!running_) return true;
      while (at < end && done_[at]) ++at;
      return at == end;
    });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> done_;
  bool running_ = false;
};

}  // namespace weir::offload
