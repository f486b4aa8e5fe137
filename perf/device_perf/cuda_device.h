// SPDX-License-Identifier: Apache-2.0
// What device_perf needs of CUDA's driver, looked up in the libcuda.so.1 that the loader finds: the
// GPU's, or the stand-in's. Not by src/cuda, whose table has what the library uses (not device memory, for one): a perf
// tool stands where a program of a user does, and uses what such a program could. One thread.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace weir::perf {

class CudaDevice {
 public:
  // The device that rank `rank` uses: the ranks take turns. Throws std::runtime_error.
  explicit CudaDevice(int rank) {
    library_ = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (library_ == nullptr) {
      throw std::runtime_error(std::string("no libcuda.so.1 (") + dlerror() +
                               "): it comes with the driver of a GPU; Weir's stand-in is one, too");
    }
    call<int (*)(unsigned)>("cuInit", 0u);
    int count = 0;
    call<int (*)(int*)>("cuDeviceGetCount", &count);
    if (count < 1) throw std::runtime_error("the driver has no device");
    call<int (*)(int*, int)>("cuDeviceGet", &device_, rank % count);
    void* context = nullptr;
    call<int (*)(void**, int)>("cuDevicePrimaryCtxRetain", &context, device_);
    call<int (*)(void*)>("cuCtxSetCurrent", context);
    call<int (*)(void**, unsigned)>("cuStreamCreate", &stream_, 1u);
  }

  std::string name() const {
    char text[256] = "";
    call<int (*)(char*, int, int)>("cuDeviceGetName", text, static_cast<int>(sizeof text), device_);
    return text;
  }
  void* stream() const { return stream_; }
  // Lives as long as the process.
  void* allocate(size_t bytes) const {
    uint64_t address = 0;
    call<int (*)(uint64_t*, size_t)>("cuMemAlloc_v2", &address, bytes);
    return reinterpret_cast<void*>(static_cast<uintptr_t>(address));
  }
  // Any direction, in stream order.
  void copy(void* to, const void* from, size_t bytes) const {
    call<int (*)(uint64_t, uint64_t, size_t, void*)>(
        "cuMemcpyAsync", reinterpret_cast<uintptr_t>(to), reinterpret_cast<uintptr_t>(from), bytes,
        stream_);
  }
  void synchronize() const { call<int (*)(void*)>("cuStreamSynchronize", stream_); }

 private:
  template <typename Function, typename... Arguments>
  void call(const char* name, Arguments... arguments) const {
    const auto function = reinterpret_cast<Function>(dlsym(library_, name));
    if (function == nullptr)
      throw std::runtime_error(std::string(name) + " is not in libcuda.so.1");
    const int result = function(arguments...);
    if (result != 0) {
      throw std::runtime_error(std::string(name) + " failed with CUDA's error " +
                               std::to_string(result));
    }
  }

  void* library_ = nullptr;
  int device_ = 0;
  void* stream_ = nullptr;
};

}  // namespace weir::perf
