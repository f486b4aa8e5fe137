// SPDX-License-Identifier: Apache-2.0
// SharedCounter: a number in memory that forked processes share, 0 at the start.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <new>

namespace weir::test {

class SharedCounter {
 public:
  SharedCounter()
      : count_(new (mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_ANONYMOUS, -1, 0)) std::atomic<int>(0)) {}
  ~SharedCounter() { munmap(count_, sizeof *count_); }
  SharedCounter(const SharedCounter&) = delete;
  SharedCounter& operator=(const SharedCounter&) = delete;

  std::atomic<int>& get() const { return *count_; }

  // Until it is n at least, for a minute at most.
  void wait_for(int n) const {
    for (int i = 0; i < 600'000 && count_->load() < n; ++i) usleep(100);
  }

  // Until all n ranks are here, without a word over the communicator: whoever goes on may then end
  // it. That its own barrier has ended tells a rank nothing of the others'.
  void meet(int n) const {
    count_->fetch_add(1);
    wait_for(n);
  }

 private:
  std::atomic<int>* count_;
};

}  // namespace weir::test
