// SPDX-License-Identifier: Apache-2.0
// The library, its errors, and devices.
#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <cstring>

#include "hostcuda/core/facts.h"
#include "hostcuda/driver/call.h"

namespace {

constexpr int kVersion = 13000;

// The file that has the code at `address`.
const char* file_of(const void* address) {
  Dl_info found{};
  return dladdr(address, &found) != 0 && found.dli_fname != nullptr ? found.dli_fname
                                                                    : "the program";
}

}  // namespace

using namespace weir::hostcuda;          // NOLINT: this file is their C interface
using namespace weir::hostcuda::driver;  // NOLINT

WEIR_CUDA CUresult cuInit(unsigned int flags) {
  if (flags != 0) return number(Error::kInvalidValue);
  if (check_process() != Error::kSuccess) return number(Error::kNotInitialized);
  if (device_count() == 0) return number(Error::kNoDevice);
  mark_initialized();
  return CUDA_SUCCESS;
}

WEIR_CUDA CUresult cuDriverGetVersion(int* version) {
  if (version == nullptr) return number(Error::kInvalidValue);
  *version = kVersion;
  return CUDA_SUCCESS;
}

WEIR_CUDA CUresult cuGetErrorName(CUresult error, const char** text) {
  if (text == nullptr) return number(Error::kInvalidValue);
  const ErrorText* const row = error_text(error);
  *text = row == nullptr ? nullptr : row->driver_name;
  return *text == nullptr ? number(Error::kInvalidValue) : CUDA_SUCCESS;
}

WEIR_CUDA CUresult cuGetErrorString(CUresult error, const char** text) {
  if (text == nullptr) return number(Error::kInvalidValue);
  const ErrorText* const row = error_text(error);
  *text = row == nullptr || row->driver_name == nullptr ? nullptr : row->text;
  return *text == nullptr ? number(Error::kInvalidValue) : CUDA_SUCCESS;
}

// What these tables contain is not documented: it is between NVIDIA's runtime and driver.
WEIR_CUDA CUresult cuGetExportTable(const void** table, const CUuuid* id) {
  if (table == nullptr || id == nullptr) return number(Error::kInvalidValue);
  *table = nullptr;
  static std::atomic<bool> told{false};
  if (!told.exchange(true)) {
    std::fprintf(stderr,
                 "hostcuda: '%s' asks the driver for tables that NVIDIA does not document "
                 "(cuGetExportTable); they are refused. If it is because CUDA's runtime is linked "
                 "into it, it cannot work without a GPU: build it with 'nvcc -cudart shared', or "
                 "link with -lcudart. If it is NVIDIA's libcudart.so, let the program find Weir's "
                 "first: by LD_LIBRARY_PATH or LD_PRELOAD (docs/hostcuda.md).\n",
                 file_of(__builtin_return_address(0)));
  }
  return number(Error::kNotSupported);
}

WEIR_CUDA CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  return plain_call([&] {
    if (device == nullptr) return Error::kInvalidValue;
    if (device_at(ordinal) == nullptr) return Error::kInvalidDevice;
    *device = ordinal;
    return Error::kSuccess;
  });
}

WEIR_CUDA CUresult cuDeviceGetCount(int* count) {
  return plain_call([&] {
    if (count == nullptr) return Error::kInvalidValue;
    *count = device_count();
    return Error::kSuccess;
  });
}

WEIR_CUDA CUresult cuDeviceGetName(char* name, int bytes, CUdevice device) {
  return plain_call([&] {
    if (name == nullptr || bytes <= 0) return Error::kInvalidValue;
    if (device_at(device) == nullptr) return Error::kInvalidDevice;
    std::snprintf(name, static_cast<size_t>(bytes), "%s", kDeviceName);
    return Error::kSuccess;
  });
}

WEIR_CUDA CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  return plain_call([&] {
    if (uuid == nullptr) return Error::kInvalidValue;
    const Device* const found = device_at(device);
    if (found == nullptr) return Error::kInvalidDevice;
    device_uuid(found->machine_index, uuid->bytes);
    return Error::kSuccess;
  });
}

WEIR_CUDA CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice index) {
  return plain_call([&] {
    if (bytes == nullptr) return Error::kInvalidValue;
    const Device* const device = device_at(index);
    if (device == nullptr) return Error::kInvalidDevice;
    *bytes = device->arena.total_bytes();
    return Error::kSuccess;
  });
}

WEIR_CUDA CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice index) {
  return plain_call([&] {
    if (value == nullptr) return Error::kInvalidValue;
    const Device* const device = device_at(index);
    if (device == nullptr) return Error::kInvalidDevice;
    return device_attribute(*device, static_cast<int>(attribute), value);
  });
}

WEIR_CUDA CUresult cuDeviceGetPCIBusId(char* text, int bytes, CUdevice device) {
  return plain_call([&] {
    if (text == nullptr || bytes <= 0) return Error::kInvalidValue;
    const Device* const found = device_at(device);
    if (found == nullptr) return Error::kInvalidDevice;
    const int length = std::snprintf(text, static_cast<size_t>(bytes), "%s",
                                     pci_text(found->machine_index).c_str());
    return length < bytes ? Error::kSuccess : Error::kInvalidValue;
  });
}

WEIR_CUDA CUresult cuDeviceGetByPCIBusId(CUdevice* device, const char* text) {
  return plain_call([&] {
    if (device == nullptr || text == nullptr) return Error::kInvalidValue;
    return device_of_pci(text, device);
  });
}

WEIR_CUDA CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  return plain_call([&] {
    if (can == nullptr) return Error::kInvalidValue;
    if (device_at(device) == nullptr || device_at(peer) == nullptr) return Error::kInvalidDevice;
    *can = device != peer ? 1 : 0;
    return Error::kSuccess;
  });
}

WEIR_CUDA CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attribute,
                                           CUdevice source, CUdevice destination) {
  return plain_call([&] {
    if (value == nullptr || source == destination) return Error::kInvalidValue;
    if (device_at(source) == nullptr || device_at(destination) == nullptr) {
      return Error::kInvalidDevice;
    }
    *value = attribute == CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED ? 1 : 0;
    return Error::kSuccess;
  });
}
