// SPDX-License-Identifier: Apache-2.0
// Memory of each kind that a window may have.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>

#include "nccl/support.h"

namespace weir::nccl::test {

enum class MemoryKind : unsigned char { kMapped, kAllocated, kHeap };
constexpr MemoryKind kMemoryKinds[] = {MemoryKind::kMapped, MemoryKind::kAllocated,
                                       MemoryKind::kHeap};

class WindowMemory {
 public:
  WindowMemory(MemoryKind kind, size_t bytes) : kind_(kind), bytes_(bytes) {
    if (kind == MemoryKind::kMapped) {
      base_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      EXPECT_NE(base_, MAP_FAILED);
    } else if (kind == MemoryKind::kAllocated) {
      EXPECT_NCCL(ncclMemAlloc(&base_, bytes));
    } else {
      base_ = std::calloc(1, bytes);
    }
  }
  ~WindowMemory() { free(); }
  WindowMemory(const WindowMemory&) = delete;
  WindowMemory& operator=(const WindowMemory&) = delete;

  void* base() const { return base_; }
  void fill(unsigned char value) { std::fill_n(static_cast<unsigned char*>(base_), bytes_, value); }
  bool holds_only(unsigned char value) const {
    const auto* begin = static_cast<const unsigned char*>(base_);
    return std::all_of(begin, begin + bytes_, [value](unsigned char one) { return one == value; });
  }
  void free() {
    if (base_ == nullptr) return;
    if (kind_ == MemoryKind::kMapped) {
      munmap(base_, bytes_);
    } else if (kind_ == MemoryKind::kAllocated) {
      EXPECT_NCCL(ncclMemFree(base_));
    } else {
      std::free(base_);
    }
    base_ = nullptr;
  }

 private:
  const MemoryKind kind_;
  const size_t bytes_;
  void* base_ = nullptr;
};

}  // namespace weir::nccl::test
