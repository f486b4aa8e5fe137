// SPDX-License-Identifier: Apache-2.0
// A library in the place of CUDA's driver, with what Weir asks of it. FAKE_CUDA_DEVICES: how many
// devices it has (8), -1: it does not start. FAKE_CUDA_SHARED: all of them are the same one.
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "support/cuda_prototypes.h"

namespace {

constexpr Result kNoDevice = 100;
constexpr Result kInvalid = 101;
constexpr Result kNoContext = 201;

thread_local int chosen = -1;

int devices() {
  const char* text = std::getenv("FAKE_CUDA_DEVICES");
  return text != nullptr ? std::atoi(text) : 8;
}

}  // namespace

extern "C" {

Result cuInit(unsigned) { return devices() < 0 ? kNoDevice : kSuccess; }

Result cuDeviceGetCount(int* count) {
  *count = devices();
  return kSuccess;
}

Result cuDeviceGet(Device* device, int ordinal) {
  if (ordinal < 0 || ordinal >= devices()) return kInvalid;
  *device = ordinal;
  return kSuccess;
}

Result cuDeviceGetUuid_v2(Uuid* uuid, Device device) {
  const int value = std::getenv("FAKE_CUDA_SHARED") != nullptr ? 1 : device + 1;
  std::memset(uuid->bytes, value, sizeof uuid->bytes);
  return kSuccess;
}

// A context is its device's number plus one.
Result cuDevicePrimaryCtxRetain(Context* context, Device device) {
  *context = reinterpret_cast<Context>(static_cast<intptr_t>(device) + 1);
  return kSuccess;
}

Result cuCtxSetCurrent(Context context) {
  chosen = static_cast<int>(reinterpret_cast<intptr_t>(context)) - 1;
  return kSuccess;
}

Result cuCtxGetDevice(Device* device) {
  if (chosen < 0) return kNoContext;
  *device = chosen;
  return kSuccess;
}

}  // extern "C"
