// SPDX-License-Identifier: Apache-2.0
// Promises: times that the library promises, held on a machine that others use, too.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <new>

namespace weir::test {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Times that are promised. A shared machine may stall any process, so a scenario in which something
// was late runs again; what is late five times is late by itself. Where the promise is a share of a
// timeout, the scenario takes `scale` times that timeout: it doubles with every attempt, and stalls
// do not.
class Promises {
 public:
  Promises()
      : late_(new (mmap(nullptr, sizeof(std::atomic<bool>), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0)) std::atomic<bool>(false)) {}
  ~Promises() { munmap(late_, sizeof *late_); }
  Promises(const Promises&) = delete;
  Promises& operator=(const Promises&) = delete;

  // Of any thread or forked rank.
  void within(double seconds, Clock::time_point start) {
    if (seconds_since(start) >= seconds) late_->store(true);
  }
  // The machine did not get as far as the scenario needs.
  void miss() { late_->store(true); }
  int scale() const { return scale_; }
  template <class Scenario>
  void hold(Scenario scenario) {
    scale_ = 1;
    for (int attempt = 0; attempt < 5; ++attempt, scale_ *= 2) {
      late_->store(false);
      scenario();
      if (testing::Test::HasFailure() || !late_->load()) return;
    }
    ADD_FAILURE() << "later than promised, five times";
  }

 private:
  std::atomic<bool>* const late_;
  int scale_ = 1;
};

}  // namespace weir::test
