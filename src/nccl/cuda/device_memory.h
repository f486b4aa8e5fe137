// SPDX-License-Identifier: Apache-2.0
// Memory of a device as ncclMemAlloc gives it, where the process uses CUDA: made by mapping, so
// that other processes can open it through a descriptor (core/comm/stream/exports.h), and
// accessible to all devices that can reach it. Thread-safe.
#pragma once

#include <cstddef>
#include <memory>

#include "core/base/process_generation.h"
#include "cuda/driver.h"
#include "nccl/base/outcome.h"

namespace weir::cuda {

class DeviceMemory {
 public:
  // Rounded up to the driver's granularity; on the calling thread's device, or the first one where
  // the thread has chosen none. Freed with its last owner.
  static nccl::Outcome make(const Driver& driver, const char* function, size_t bytes,
                            std::shared_ptr<DeviceMemory>* made);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  void* base() const { return reinterpret_cast<void*>(static_cast<uintptr_t>(address_)); }
  size_t bytes() const { return bytes_; }
  const MakingProcess& maker() const { return maker_; }

 private:
  explicit DeviceMemory(const Driver& driver) : driver_(driver) {}

  const MakingProcess maker_;
  const Driver& driver_;
  DevicePointer address_ = 0;  // 0: nothing is reserved
  size_t bytes_ = 0;
  bool mapped_ = false;
};

// The driver that gives such memory; nullptr in a process that does not use CUDA, and where CUDA
// has no device or is too old. Starts the driver.
const Driver* memory_driver();

}  // namespace weir::cuda
