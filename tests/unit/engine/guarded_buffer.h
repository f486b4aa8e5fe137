// SPDX-License-Identifier: Apache-2.0
// Memory between two pages that cannot be touched, for tests that a kernel neither reads nor writes
// past its arrays. Not thread-safe.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/base/check.h"

namespace weir::test {

class GuardedBuffer {
 public:
  static constexpr uint8_t kCanary = 0xa5;

  explicit GuardedBuffer(size_t bytes) {
    const auto page_bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    bytes_ = (bytes + page_bytes - 1) / page_bytes * page_bytes;
    map_bytes_ = bytes_ + 2 * page_bytes;
    map_ = static_cast<uint8_t*>(
        mmap(nullptr, map_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    WEIR_CHECK(map_ != MAP_FAILED, "mmap for a test");
    begin_ = map_ + page_bytes;
    WEIR_CHECK(mprotect(begin_, bytes_, PROT_READ | PROT_WRITE) == 0, "mprotect for a test");
    std::memset(begin_, kCanary, bytes_);
  }
  ~GuardedBuffer() { munmap(map_, map_bytes_); }
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;

  // `bytes` that begin `offset` after the first guard, or end `offset` before the second.
  uint8_t* from_begin(size_t offset) { return begin_ + offset; }
  uint8_t* to_end(size_t offset, size_t bytes) { return begin_ + bytes_ - offset - bytes; }

  void fill(uint8_t* at, size_t bytes) { std::memset(at, kCanary, bytes); }

  // That the bytes around [at, at + bytes), as far as `reach` or the guards, are as they were.
  bool canaries_hold(const uint8_t* at, size_t bytes, size_t reach) const {
    const size_t before =
        static_cast<size_t>(at - begin_) < reach ? static_cast<size_t>(at - begin_) : reach;
    const auto room = static_cast<size_t>(begin_ + bytes_ - (at + bytes));
    const size_t after = room < reach ? room : reach;
    for (size_t i = 1; i <= before; ++i) {
      if (*(at - i) != kCanary) return false;
    }
    for (size_t i = 0; i < after; ++i) {
      if (at[bytes + i] != kCanary) return false;
    }
    return true;
  }

 private:
  size_t bytes_ = 0;
  size_t map_bytes_ = 0;
  uint8_t* map_ = nullptr;
  uint8_t* begin_ = nullptr;
};

}  // namespace weir::test
