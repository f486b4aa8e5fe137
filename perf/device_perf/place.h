// SPDX-License-Identifier: Apache-2.0
// What a rank of device_perf computes on: a device with a stream, or the host without CUDA. One
// thread.
#pragma once

#include <cstdlib>
#include <cstring>
#include <new>
#include <optional>
#include <string>

#include "perf/device_perf/cuda_device.h"

namespace weir::perf {

class Place {
 public:
  // Of the devices the one that belongs to the rank. Throws std::runtime_error.
  Place(int rank, bool on_host) {
    if (!on_host) device_.emplace(rank);
  }

  std::string name() const { return device_ ? device_->name() : "the host"; }
  int device_count() const { return device_ ? device_->device_count() : 0; }
  void* stream() const { return device_ ? device_->stream() : nullptr; }
  // Lives as long as the process.
  void* allocate(size_t bytes) const {
    if (device_) return device_->allocate(bytes);
    constexpr size_t kPageBytes = 4096;
    void* memory =
        std::aligned_alloc(kPageBytes, (bytes + kPageBytes - 1) / kPageBytes * kPageBytes);
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
  }
  // On a device in any direction, in stream order.
  void copy(void* to, const void* from, size_t bytes) const {
    if (device_) return device_->copy(to, from, bytes);
    std::memcpy(to, from, bytes);
  }
  void synchronize() const {
    if (device_) device_->synchronize();
  }

 private:
  std::optional<CudaDevice> device_;
};

}  // namespace weir::perf
