// SPDX-License-Identifier: Apache-2.0
// Memory of a rank's device, through CUDA's driver, which is found when the rank runs. One thread
// at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "conformance/harness.h"
#include "cuda/driver_table.h"

namespace weir::conformance {

// The device of a rank. CUDA is started in the rank, never before.
struct Cuda {
  const cuda::Driver* driver = cuda::find_driver(cuda::Look::kAnyhow);

  explicit Cuda(Rank& r) {
    r.require(driver != nullptr, "there is no libcuda.so.1");
    r.require(driver->can_choose_device() &&
                  cuda::Driver::has(driver->cuMemAlloc_v2, driver->cuMemFree_v2,
                                    driver->cuMemcpyHtoD_v2, driver->cuMemcpyDtoH_v2),
              "libcuda.so.1 lacks functions of CUDA's driver");
    cuda::Device device = 0;
    cuda::Context context = nullptr;
    r.require(driver->cuInit(0) == 0 &&
                  driver->cuDeviceGet(&device, static_cast<int>(r.rank())) == 0 &&
                  driver->cuDevicePrimaryCtxRetain(&context, device) == 0 &&
                  driver->cuCtxSetCurrent(context) == 0,
              "there is no device for this rank");
  }
};

// Of `words` times 8 bytes.
class DeviceBuffer {
 public:
  DeviceBuffer(Rank& r, const Cuda& cuda, size_t words) : driver_(*cuda.driver), bytes_(words * 8) {
    r.require(driver_.cuMemAlloc_v2(&address_, bytes_) == 0, "no memory on the device");
  }
  ~DeviceBuffer() { (void)driver_.cuMemFree_v2(address_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  void* data() const { return reinterpret_cast<void*>(static_cast<uintptr_t>(address_)); }
  template <typename T>
  void write(const std::vector<T>& values) {
    (void)driver_.cuMemcpyHtoD_v2(address_, values.data(), values.size() * sizeof(T));
  }
  template <typename T>
  std::vector<T> read(size_t count) const {
    std::vector<T> values(count);
    (void)driver_.cuMemcpyDtoH_v2(values.data(), address_, count * sizeof(T));
    return values;
  }

 private:
  const cuda::Driver& driver_;
  size_t bytes_;
  cuda::DevicePointer address_ = 0;
};

}  // namespace weir::conformance
