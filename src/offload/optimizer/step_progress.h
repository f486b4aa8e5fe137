// SPDX-License-Identifier: Apache-2.0
// StepProgress: which chunks of the step under way are done, and in which order, for threads that
// wait for some of them. Thread-safe.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

namespace weir::offload {

class StepProgress {
 public:
  void begin(uint64_t chunk_count) {
    const std::lock_guard lock(mutex_);
    place_.assign(chunk_count, 0);
    done_count_ = 0;
    running_ = true;
  }
  void done(uint64_t chunk) {
    {
      const std::lock_guard lock(mutex_);
      place_[chunk] = ++done_count_;
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
  // Waits until chunks [first, end) are done or nothing runs. Returns how many were done when the
  // last of them was: 0 when no step has run, or it ended without them.
  uint64_t wait(uint64_t first, uint64_t end) {
    std::unique_lock lock(mutex_);
    uint64_t at = first;
    uint64_t place = 0;
    const auto look = [&] {
      for (; at < std::min<uint64_t>(end, place_.size()) && place_[at] != 0; ++at)
        place = std::max(place, place_[at]);
      return at == end;
    };
    changed_.wait(lock, [&] { return look() || !running_; });
    return at == end ? place : 0;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<uint64_t> place_;  // by chunk: how many were done with it; 0: it is not
  uint64_t done_count_ = 0;
  bool running_ = false;
};

}  // namespace weir::offload
