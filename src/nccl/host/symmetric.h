// SPDX-License-Identifier: Apache-2.0
// Symmetric memory: what ncclMemAlloc returns. Where the process uses CUDA it is memory of a device
// (cuda/device_memory.h). Elsewhere it is unnamed shared memory, which other processes of this
// machine can map when they are given a Share of it.
//
// A process opens the memory of another through /proc/PID/fd (its own through its descriptor),
// which the kernel allows only to the same user, and checks it before it uses it: its name, its
// seals, its size, and a number at its end that only the holder of a share knows. If a check fails
// there is no mapping, and the caller uses messages.
//
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/base/process_generation.h"
#include "nccl/base/outcome.h"
#include "nccl/cuda/device_memory.h"

namespace weir::nccl {

// A range of symmetric memory as another process finds it. Crosses the wire.
struct Share {
  int32_t process = 0;
  int32_t descriptor = -1;    // in that process; -1: it cannot be shared
  uint64_t mapped_bytes = 0;  // without the page at its end
  uint64_t offset = 0;        // of the range
  unsigned char number[16] = {};
};

class Allocation {
 public:
  ~Allocation();
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;

  // Zeroed memory, rounded up to pages; freed with its last owner.
  static Outcome make(const char* function, size_t bytes, std::shared_ptr<Allocation>* made);

  unsigned char* base() const { return base_; }
  size_t bytes() const { return bytes_; }
  Share share_of(const void* memory) const;
  // No process maps it from now on.
  void stop_sharing();
  const MakingProcess& maker() const { return maker_; }

 private:
  Allocation() = default;

  const MakingProcess maker_;
  unsigned char* base_ = nullptr;
  size_t bytes_ = 0;
  int descriptor_ = -1;
  unsigned char number_[16] = {};
};

// For ncclMemAlloc and ncclMemFree, of either kind. Memory that a window uses is freed with the
// window. A child of fork() may use memory of its parent, and not free it.
Outcome allocate_symmetric(const char* function, size_t bytes, void** memory);
Outcome free_symmetric(const char* function, void* memory);
// The error for a child of the process that allocated the memory.
Outcome not_freed(const char* function, const MakingProcess& maker);
// The allocation that the range lies in; empty when there is none.
std::shared_ptr<Allocation> symmetric_owner(const void* memory, size_t bytes);
std::shared_ptr<cuda::DeviceMemory> device_owner(const void* memory, size_t bytes);

// Symmetric memory of another process, or of this one, mapped in this one.
class Mapping {
 public:
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  // Empty when it cannot be mapped, or does not match the share.
  static std::unique_ptr<Mapping> open(const Share& share, uint64_t range_bytes);

  unsigned char* range() const { return range_; }

 private:
  Mapping(void* base, size_t bytes, unsigned char* range)
      : base_(base), bytes_(bytes), range_(range) {}

  void* base_;
  size_t bytes_;
  unsigned char* range_;
};

}  // namespace weir::nccl
