// SPDX-License-Identifier: Apache-2.0
// Attempts: how often a test repeats what a busy machine may spoil, as a measurement is.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace weir::test {

// `for (Attempts attempts; !done && attempts.next();)`. The pauses grow, so that a burst of other
// work passes meanwhile.
class Attempts {
 public:
  // False after 90 seconds.
  bool next() {
    if (std::chrono::steady_clock::now() - begin_ > std::chrono::seconds(90)) return false;
    if (count_ > 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(std::min(20 * count_, 1000)));
    }
    ++count_;
    return true;
  }

 private:
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  int count_ = 0;
};

}  // namespace weir::test
