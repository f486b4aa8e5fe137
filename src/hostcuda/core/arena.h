// SPDX-License-Identifier: Apache-2.0
// The memory of an emulated device: one range of addresses over an anonymous file, whose pages the
// kernel provides when they are touched and takes back when they are freed. Nothing of it outlives
// the process, and another process can map it through the descriptor. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "hostcuda/core/error.h"

namespace weir::hostcuda {

class Arena {
 public:
  explicit Arena(size_t total_bytes) : total_bytes_(total_bytes) {}
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // `bytes` > 0; the address is a multiple of `alignment`, a power of two of 512 or more.
  Error allocate(size_t bytes, void** out, size_t alignment = kAlignment);
  // `address` came from allocate() and was not freed.
  void free(void* address);
  // Reduces what can be allocated by `bytes`, for memory of the device that lies elsewhere.
  Error charge(size_t bytes);
  void discharge(size_t bytes);

  size_t total_bytes() const { return total_bytes_; }
  size_t free_bytes() const;
  int descriptor() const { return descriptor_; }  // -1 before the first allocation
  size_t offset_of(const void* address) const {
    return static_cast<size_t>(static_cast<const char*>(address) - base_);
  }

  static constexpr size_t kAlignment = 512;  // the alignment of cudaMalloc

 private:
  Error map_range();

  const size_t total_bytes_;
  mutable std::mutex mutex_;
  int descriptor_ = -1;
  char* base_ = nullptr;
  size_t used_bytes_ = 0;
  std::map<size_t, size_t> free_;  // offset -> bytes, neighbours merged
  std::map<size_t, size_t> used_;  // offset -> bytes, rounded
};

}  // namespace weir::hostcuda
