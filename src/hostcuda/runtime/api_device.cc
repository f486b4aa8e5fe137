// SPDX-License-Identifier: Apache-2.0
// Devices: their number, the one that a thread has chosen, and their attributes.
#include <cstdio>
#include <cstring>

#include "hostcuda/core/facts.h"
#include "hostcuda/core/memory.h"
#include "hostcuda/runtime/call.h"

using namespace weir::hostcuda;           // NOLINT: this file is their C interface
using namespace weir::hostcuda::runtime;  // NOLINT

WEIR_CUDART cudaError_t cudaGetDeviceCount(int* count) {
  return plain_call([&] {
    if (count == nullptr) return Error::kInvalidValue;
    *count = device_count();
    return *count == 0 ? Error::kNoDevice : Error::kSuccess;
  });
}

WEIR_CUDART cudaError_t cudaSetDevice(int device) {
  return plain_call([&] {
    if (device_count() == 0) return Error::kNoDevice;
    if (device_at(device) == nullptr) return Error::kInvalidDevice;
    choose_device(device);
    return use_device();
  });
}

WEIR_CUDART cudaError_t cudaGetDevice(int* device) {
  return plain_call([&] {
    if (device == nullptr) return Error::kInvalidValue;
    if (device_count() == 0) return Error::kNoDevice;
    *device = chosen_device() < 0 ? 0 : chosen_device();
    return Error::kSuccess;
  });
}

WEIR_CUDART cudaError_t cudaInitDevice(int device, unsigned int, unsigned int) {
  return plain_call([&] {
    Device* const found = device_at(device);
    if (found == nullptr) return Error::kInvalidDevice;
    const std::lock_guard lock(found->state);
    found->active = true;
    return Error::kSuccess;
  });
}

WEIR_CUDART cudaError_t cudaSetValidDevices(int* devices, int count) {
  return plain_call([&] {
    if (count < 0 || (count > 0 && devices == nullptr)) return Error::kInvalidValue;
    for (int i = 0; i < count; ++i) {
      if (device_at(devices[i]) == nullptr) return Error::kInvalidDevice;
    }
    return Error::kSuccess;
  });
}

WEIR_CUDART cudaError_t cudaSetDeviceFlags(unsigned int flags) {
  return plain_call([&] {
    if ((flags & ~0xffu) != 0) return Error::kInvalidValue;
    Device* const device = current_device();
    if (device == nullptr) return Error::kNoDevice;
    const std::lock_guard lock(device->state);
    device->flags = flags;
    return Error::kSuccess;
  });
}

WEIR_CUDART cudaError_t cudaGetDeviceFlags(unsigned int* flags) {
  return plain_call([&] {
    if (flags == nullptr) return Error::kInvalidValue;
    Device* const device = current_device();
    if (device == nullptr) return Error::kNoDevice;
    const std::lock_guard lock(device->state);
    *flags = device->flags;
    return Error::kSuccess;
  });
}

WEIR_CUDART cudaError_t cudaChooseDevice(int* device, const struct cudaDeviceProp* properties) {
  return plain_call([&] {
    if (device == nullptr || properties == nullptr) return Error::kInvalidValue;
    if (device_count() == 0) return Error::kNoDevice;
    *device = 0;  // all are alike
    return Error::kSuccess;
  });
}

WEIR_CUDART cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp* properties, int index) {
  return plain_call([&] {
    const Device* const device = device_at(index);
    if (properties == nullptr) return Error::kInvalidValue;
    if (device == nullptr) return Error::kInvalidDevice;
    cudaDeviceProp p;
    std::memset(&p, 0, sizeof p);
    const auto fact = [&](int attribute) {
      int value = 0;
      (void)device_attribute(*device, attribute, &value);
      return value;
    };
    std::snprintf(p.name, sizeof p.name, "%s", kDeviceName);
    device_uuid(device->machine_index, p.uuid.bytes);
    p.totalGlobalMem = device->arena.total_bytes();
    p.maxThreadsPerBlock = fact(1);
    for (int i = 0; i < 3; ++i) {
      p.maxThreadsDim[i] = fact(2 + i);
      p.maxGridSize[i] = fact(5 + i);
    }
    p.sharedMemPerBlock = static_cast<size_t>(fact(8));
    p.totalConstMem = static_cast<size_t>(fact(9));
    p.warpSize = fact(10);
    p.memPitch = static_cast<size_t>(fact(11));
    p.regsPerBlock = fact(12);
    p.textureAlignment = static_cast<size_t>(fact(14));
    p.multiProcessorCount = fact(16);
    p.canMapHostMemory = fact(19);
    p.surfaceAlignment = static_cast<size_t>(fact(30));
    p.concurrentKernels = fact(31);
    p.pciBusID = fact(33);
    p.pciDeviceID = fact(34);
    p.pciDomainID = fact(50);
    p.memoryBusWidth = fact(37);
    p.l2CacheSize = fact(38);
    p.maxThreadsPerMultiProcessor = fact(39);
    p.asyncEngineCount = fact(40);
    p.unifiedAddressing = fact(41);
    p.texturePitchAlignment = static_cast<size_t>(fact(51));
    p.major = fact(75);
    p.minor = fact(76);
    p.streamPrioritiesSupported = fact(78);
    p.sharedMemPerMultiprocessor = static_cast<size_t>(fact(81));
    p.regsPerMultiprocessor = fact(82);
    p.managedMemory = fact(83);
    p.hostNativeAtomicSupported = fact(86);
    p.concurrentManagedAccess = fact(89);
    p.canUseHostPointerForRegisteredMem = fact(91);
    p.cooperativeLaunch = fact(95);
    p.sharedMemPerBlockOptin = static_cast<size_t>(fact(97));
    p.hostRegisterSupported = fact(99);
    p.maxBlocksPerMultiProcessor = fact(106);
    p.accessPolicyMaxWindowSize = fact(109);
    p.memoryPoolsSupported = fact(115);
    p.ipcEventSupported = fact(125);
    p.hostNumaId = -1;
    p.deviceNumaId = -1;
    *properties = p;
    return Error::kSuccess;
  });
}

WEIR_CUDART cudaError_t cudaDeviceGetAttribute(int* value, enum cudaDeviceAttr attribute,
                                               int index) {
  return plain_call([&] {
    if (value == nullptr) return Error::kInvalidValue;
    const Device* const device = device_at(index);
    if (device == nullptr) return Error::kInvalidDevice;
    return device_attribute(*device, static_cast<int>(attribute), value);
  });
}

WEIR_CUDART cudaError_t cudaDeviceGetP2PAttribute(int* value, enum cudaDeviceP2PAttr attribute,
                                                  int source, int destination) {
  return plain_call([&] {
    if (value == nullptr || source == destination) return Error::kInvalidValue;
    if (device_at(source) == nullptr || device_at(destination) == nullptr) {
      return Error::kInvalidDevice;
    }
    *value = attribute == cudaDevP2PAttrAccessSupported ? 1 : 0;
    return Error::kSuccess;
  });
}

WEIR_CUDART cudaError_t cudaDeviceGetPCIBusId(char* text, int bytes, int device) {
  return plain_call([&] {
    if (text == nullptr || bytes <= 0) return Error::kInvalidValue;
    const Device* const found = device_at(device);
    if (found == nullptr) return Error::kInvalidDevice;
    const int length = std::snprintf(text, static_cast<size_t>(bytes), "%s",
                                     pci_text(found->machine_index).c_str());
    return length < bytes ? Error::kSuccess : Error::kInvalidValue;
  });
}

WEIR_CUDART cudaError_t cudaDeviceGetByPCIBusId(int* device, const char* text) {
  return plain_call([&] {
    if (device == nullptr || text == nullptr) return Error::kInvalidValue;
    return device_of_pci(text, device);
  });
}

WEIR_CUDART cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return device_call([&] {
    if (least != nullptr) *least = kPriorityLow;
    if (greatest != nullptr) *greatest = kPriorityHigh;
    return Error::kSuccess;
  });
}

WEIR_CUDART cudaError_t cudaDeviceSetLimit(enum cudaLimit limit, size_t) {
  return device_call(
      [&] { return static_cast<unsigned>(limit) > 6 ? Error::kNotSupported : Error::kSuccess; });
}

WEIR_CUDART cudaError_t cudaDeviceGetLimit(size_t* value, enum cudaLimit limit) {
  return device_call([&] {
    if (value == nullptr) return Error::kInvalidValue;
    if (static_cast<unsigned>(limit) > 6) return Error::kNotSupported;
    *value = 0;  // no device code, no stack or heap of it
    return Error::kSuccess;
  });
}

WEIR_CUDART cudaError_t cudaDeviceSetCacheConfig(enum cudaFuncCache) {
  return device_call([] { return Error::kSuccess; });
}

WEIR_CUDART cudaError_t cudaDeviceGetCacheConfig(enum cudaFuncCache* config) {
  return device_call([&] {
    if (config == nullptr) return Error::kInvalidValue;
    *config = cudaFuncCachePreferNone;
    return Error::kSuccess;
  });
}

WEIR_CUDART cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  return plain_call([&] {
    if (can == nullptr) return Error::kInvalidValue;
    if (device_at(device) == nullptr || device_at(peer) == nullptr) return Error::kInvalidDevice;
    *can = device != peer ? 1 : 0;
    return Error::kSuccess;
  });
}

WEIR_CUDART cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags) {
  return device_call(
      [&] { return flags != 0 ? Error::kInvalidValue : set_peer(*current_device(), peer, true); });
}

WEIR_CUDART cudaError_t cudaDeviceDisablePeerAccess(int peer) {
  return device_call([&] { return set_peer(*current_device(), peer, false); });
}

WEIR_CUDART cudaError_t cudaDeviceSynchronize(void) {
  return device_call([] { return synchronize_device(*current_device()); });
}

WEIR_CUDART cudaError_t cudaDeviceReset(void) {
  return device_call([] { return reset_device(*current_device()); });
}

// A graph's memory is freed with the graph: nothing is kept for the next one.
WEIR_CUDART cudaError_t cudaDeviceGraphMemTrim(int device) {
  return plain_call(
      [&] { return device_at(device) == nullptr ? Error::kInvalidDevice : Error::kSuccess; });
}

WEIR_CUDART cudaError_t cudaCtxResetPersistingL2Cache(void) {
  return device_call([] { return Error::kSuccess; });
}
