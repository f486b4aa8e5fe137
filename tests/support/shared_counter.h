// SPDX-License-Identifier: Apache-2.0
// SharedCounter: a number in memory that forked processes share, 0 at the start.
#pragma once

#include <sys/mman.h>

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

 private:
  std::atomic<int>* count_;
};

}  // namespace weir::test
