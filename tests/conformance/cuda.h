// SPDX-License-Identifier: Apache-2.0
// Memory of a rank's device, through CUDA's driver, which is found when the rank runs. One thread at a time.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "conformance/harness.h"

namespace weir::conformance {

// CUDA's driver as far as the memory of a rank goes; it is started in the rank, never before.
struct Cuda {
  int (*init)(unsigned) = nullptr;
  int (*device_get)(int*, int) = nullptr;
  int (*retain)(void**, int) = nullptr;
  int (*set_current)(void*) = nullptr;
  int (*alloc)(unsigned long long*, size_t) = nullptr;
  int (*free)(unsigned long long) = nullptr;
  int (*to_device)(unsigned long long, const void*, size_t) = nullptr;
  int (*to_host)(void*, unsigned long long, size_t) = nullptr;

  explicit Cuda(Rank& r) {
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    r.require(library != nullptr, "there is no libcuda.so.1");
    const auto find = [&](auto* function, const char* name) {
      *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(library, name));
      r.require(*function != nullptr, std::string("libcuda.so.1 has no ") + name);
    };
    find(&init, "cuInit");
    find(&device_get, "cuDeviceGet");
    find(&retain, "cuDevicePrimaryCtxRetain");
    find(&set_current, "cuCtxSetCurrent");
    find(&alloc, "cuMemAlloc_v2");
    find(&free, "cuMemFree_v2");
    find(&to_device, "cuMemcpyHtoD_v2");
    find(&to_host, "cuMemcpyDtoH_v2");
    int device = 0;
    void* context = nullptr;
    r.require(init(0) == 0 && device_get(&device, static_cast<int>(r.rank())) == 0 &&
                  retain(&context, device) == 0 && set_current(context) == 0,
              "there is no device for this rank");
  }
};

// Of `words` times 8 bytes.
class DeviceBuffer {
 public:
  DeviceBuffer(Rank& r, const Cuda& cuda, size_t words) : cuda_(cuda), bytes_(words * 8) {
    r.require(cuda_.alloc(&address_, bytes_) == 0, "no memory on the device");
  }
  ~DeviceBuffer() { (void)cuda_.free(address_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  void* data() const { return reinterpret_cast<void*>(static_cast<uintptr_t>(address_)); }
  template <typename T>
  void write(const std::vector<T>& values) {
    (void)cuda_.to_device(address_, values.data(), values.size() * sizeof(T));
  }
  template <typename T>
  std::vector<T> read(size_t count) const {
    std::vector<T> values(count);
    (void)cuda_.to_host(values.data(), address_, count * sizeof(T));
    return values;
  }

 private:
  const Cuda& cuda_;
  size_t bytes_;
  unsigned long long address_ = 0;
};

}  // namespace weir::conformance
