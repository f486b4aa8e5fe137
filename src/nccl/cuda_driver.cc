// SPDX-License-Identifier: Apache-2.0
#include "nccl/cuda_driver.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace weir::nccl {

namespace {

// The driver's types, which are pointers and numbers.
using Device = int;
using Context = void*;
struct Uuid {
  unsigned char bytes[16];
};

struct Driver {
  bool there = false;
  std::string reason;
  int (*init)(unsigned flags) = nullptr;
  int (*device_count)(int* count) = nullptr;
  int (*device_get)(Device* device, int ordinal) = nullptr;
  int (*device_uuid)(Uuid* uuid, Device device) = nullptr;
  int (*context_device)(Device* device) = nullptr;
  int (*primary_context)(Context* context, Device device) = nullptr;
  int (*context_choose)(Context context) = nullptr;
};

template <typename Function>
bool resolve(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

Driver load() {
  Driver driver;
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    driver.reason = "there is no CUDA driver (libcuda.so.1)";
    return driver;
  }
  // A stand-in's devices are host memory, which the real NCCL cannot use.
  if (dlsym(library, "weir_hostcuda_register_kernel") != nullptr) {
    driver.reason = "libcuda.so.1 is Weir's stand-in, whose devices are host memory";
    return driver;
  }
  driver.there = resolve(library, "cuInit", &driver.init) &&
                 resolve(library, "cuDeviceGetCount", &driver.device_count) &&
                 resolve(library, "cuDeviceGet", &driver.device_get) &&
                 (resolve(library, "cuDeviceGetUuid_v2", &driver.device_uuid) ||
                  resolve(library, "cuDeviceGetUuid", &driver.device_uuid)) &&
                 resolve(library, "cuCtxGetDevice", &driver.context_device) &&
                 resolve(library, "cuDevicePrimaryCtxRetain", &driver.primary_context) &&
                 resolve(library, "cuCtxSetCurrent", &driver.context_choose);
  if (!driver.there) driver.reason = "libcuda.so.1 lacks functions of CUDA's driver";
  return driver;
}

// Stays loaded. Threads may use it while the process ends: never destroyed.
const Driver& driver() {
  static const Driver* it = new Driver(load());
  return *it;
}

}  // namespace

bool cuda_is_there() { return driver().there; }

int cuda_device_count(std::string* reason) {
  const Driver& cuda = driver();
  if (!cuda.there) {
    *reason = cuda.reason;
    return 0;
  }
  if (const int error = cuda.init(0); error != 0) {
    *reason = fmt::format("the CUDA driver does not start (cuInit: error {})", error);
    return 0;
  }
  int count = 0;
  if (const int error = cuda.device_count(&count); error != 0) {
    *reason = fmt::format("the CUDA driver does not count its devices (error {})", error);
    return 0;
  }
  if (count <= 0) *reason = "the CUDA driver has no device";
  return count > 0 ? count : 0;
}

bool cuda_device_id(int device, DeviceId* id) {
  const Driver& cuda = driver();
  Device found = 0;
  Uuid uuid{};
  if (!cuda.there || cuda.device_get(&found, device) != 0 || cuda.device_uuid(&uuid, found) != 0) {
    return false;
  }
  for (size_t i = 0; i < id->size(); ++i) (*id)[i] = uuid.bytes[i];
  return true;
}

int cuda_current_device() {
  const Driver& cuda = driver();
  Device device = 0;
  if (!cuda.there || cuda.context_device(&device) != 0) return 0;
  return device;
}

bool cuda_choose_device(int device) {
  const Driver& cuda = driver();
  Device found = 0;
  Context context = nullptr;
  // The runtime retains the same context, once a process, and never gives it back.
  return cuda.there && cuda.device_get(&found, device) == 0 &&
         cuda.primary_context(&context, found) == 0 && cuda.context_choose(context) == 0;
}

}  // namespace weir::nccl
