// SPDX-License-Identifier: Apache-2.0
// The functions of CUDA's driver that device_perf needs, from the GPU's driver or the stand-in. One
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "cuda/driver_table.h"

namespace weir::perf {

class CudaDevice {
 public:
  // The device that rank `rank` uses: devices are assigned in turn. Throws std::runtime_error.
  explicit CudaDevice(int rank) : driver_(cuda::find_driver(cuda::Look::kAnyhow)) {
    if (driver_ == nullptr) {
      throw std::runtime_error(
          "no libcuda.so.1: it comes with the driver of a GPU; Weir's stand-in is one, too");
    }
    if (!driver_->can_choose_device() ||
        !cuda::Driver::has(driver_->cuStreamCreate, driver_->cuDeviceGetName,
                           driver_->cuMemAlloc_v2, driver_->cuMemcpyAsync,
                           driver_->cuStreamSynchronize)) {
      throw std::runtime_error("libcuda.so.1 lacks driver functions that this program needs");
    }
    check("cuInit", driver_->cuInit(0));
    check("cuDeviceGetCount", driver_->cuDeviceGetCount(&device_count_));
    if (device_count_ < 1) throw std::runtime_error("the driver has no device");
    check("cuDeviceGet", driver_->cuDeviceGet(&device_, rank % device_count_));
    cuda::Context context = nullptr;
    check("cuDevicePrimaryCtxRetain", driver_->cuDevicePrimaryCtxRetain(&context, device_));
    check("cuCtxSetCurrent", driver_->cuCtxSetCurrent(context));
    check("cuStreamCreate", driver_->cuStreamCreate(&stream_, cuda::kStreamNonBlocking));
  }

  std::string name() const {
    char text[256] = "";
    check("cuDeviceGetName",
          driver_->cuDeviceGetName(text, static_cast<int>(sizeof text), device_));
    return text;
  }
  void* stream() const { return stream_; }
  const cuda::Driver& driver() const { return *driver_; }
  // Throws std::runtime_error unless the call of a driver function has succeeded.
  static void check(const char* name, cuda::Result result) {
    if (result == cuda::kSuccess) return;
    throw std::runtime_error(std::string(name) + " failed with CUDA's error " +
                             std::to_string(result));
  }
  int device_count() const { return device_count_; }
  // Lives as long as the process.
  void* allocate(size_t bytes) const {
    cuda::DevicePointer address = 0;
    check("cuMemAlloc", driver_->cuMemAlloc_v2(&address, bytes));
    return reinterpret_cast<void*>(static_cast<uintptr_t>(address));
  }
  // Copies in any direction, in stream order.
  void copy(void* to, const void* from, size_t bytes) const {
    check("cuMemcpyAsync",
          driver_->cuMemcpyAsync(reinterpret_cast<uintptr_t>(to), reinterpret_cast<uintptr_t>(from),
                                 bytes, stream_));
  }
  void synchronize() const { check("cuStreamSynchronize", driver_->cuStreamSynchronize(stream_)); }

 private:
  const cuda::Driver* driver_;
  int device_count_ = 0;
  cuda::Device device_ = 0;
  cuda::Stream stream_ = nullptr;
};

}  // namespace weir::perf
