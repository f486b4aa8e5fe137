// SPDX-License-Identifier: Apache-2.0
// Pause: how a thread waits between two checks of a condition that changes soon: it yields, and
// sleeps when that has not helped for a while. Not thread-safe; one for each wait.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace weir {

class Pause {
 public:
  void reset() { looks_ = 0; }
  void wait() {
    if (++looks_ <= kYields) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(nap());
    }
  }
  // How long to sleep now; 0 while yielding is better.
  std::chrono::microseconds nap() const {
    if (looks_ <= kYields) return std::chrono::microseconds(0);
    const int doublings = std::min((looks_ - kYields) / kLooksPerNap, kDoublingsMax);
    return kNapMin * (1 << doublings);
  }
  void look() { ++looks_; }

 private:
  static constexpr int kYields = 200;
  static constexpr int kLooksPerNap = 100;
  static constexpr int kDoublingsMax = 6;
  static constexpr std::chrono::microseconds kNapMin{20};

  int looks_ = 0;
};

}  // namespace weir
