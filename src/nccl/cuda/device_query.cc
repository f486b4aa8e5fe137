// SPDX-License-Identifier: Apache-2.0
#include "nccl/cuda/device_query.h"

#include <fmt/format.h>

#include "cuda/driver_table.h"

namespace weir::nccl {

namespace {

// nullptr, with `reason`: no driver that the real NCCL could use.
const cuda::Driver* driver(const char** reason) {
  const cuda::Driver* it = cuda::find_driver(cuda::Look::kAnyhow);
  if (it == nullptr) {
    *reason = "there is no CUDA driver (libcuda.so.1)";
  } else if (it->is_stand_in) {
    *reason = "libcuda.so.1 is Weir's stand-in, whose devices are host memory";
  } else if (!it->can_choose_device()) {
    *reason = "libcuda.so.1 lacks driver functions that Weir needs; install a newer NVIDIA driver";
  } else {
    return it;
  }
  return nullptr;
}

// Looked for once: all communicators of a process must get the same answer.
const cuda::Driver* usable(const char** why = nullptr) {
  static const char* reason = "";
  static const cuda::Driver* it = driver(&reason);
  if (why != nullptr) *why = reason;
  return it;
}

}  // namespace

bool cuda_is_there() { return usable() != nullptr; }

int cuda_device_count(std::string* reason) {
  const char* why = "";
  const cuda::Driver* it = usable(&why);
  if (it == nullptr) {
    *reason = why;
    return 0;
  }
  if (const int error = it->cuInit(0); error != 0) {
    *reason = fmt::format("the CUDA driver does not start (cuInit: error {})", error);
    return 0;
  }
  int count = 0;
  if (const int error = it->cuDeviceGetCount(&count); error != 0) {
    *reason = fmt::format("the CUDA driver does not count its devices (error {})", error);
    return 0;
  }
  if (count <= 0) *reason = "the CUDA driver has no device";
  return count > 0 ? count : 0;
}

bool cuda_device_id(int device, DeviceId* id) {
  const cuda::Driver* it = usable();
  cuda::Device found = 0;
  cuda::Uuid uuid;
  if (it == nullptr || it->cuDeviceGet(&found, device) != cuda::kSuccess ||
      it->cuDeviceGetUuid_v2(&uuid, found) != cuda::kSuccess) {
    return false;
  }
  for (size_t i = 0; i < id->size(); ++i) (*id)[i] = uuid.bytes[i];
  return true;
}

int cuda_current_device() {
  const cuda::Driver* it = usable();
  cuda::Device device = 0;
  return it != nullptr && it->cuCtxGetDevice(&device) == cuda::kSuccess ? device : 0;
}

bool cuda_choose_device(int device) {
  const cuda::Driver* it = usable();
  cuda::Device found = 0;
  cuda::Context context = nullptr;
  // The runtime retains the same context, once per process, and never releases it.
  return it != nullptr && it->cuDeviceGet(&found, device) == cuda::kSuccess &&
         it->cuDevicePrimaryCtxRetain(&context, found) == cuda::kSuccess &&
         it->cuCtxSetCurrent(context) == cuda::kSuccess;
}

}  // namespace weir::nccl
