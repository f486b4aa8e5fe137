// SPDX-License-Identifier: Apache-2.0
// A stand-in for libnvidia-ml.so.1 with four GPUs: 0 and 1 are joined by four direct links, 2 and 3
// have three links each into one switch. WEIR_FAKE_NVML_FAULT = "init" makes the driver fail.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "core/topo/nvml_api.h"

namespace nvml = weir::topo::nvml;

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr nvml::Return kNotFound = 6;
constexpr nvml::Return kDriverNotLoaded = 9;
constexpr unsigned kBus[] = {0x11, 0x12, 0x21, 0x22};
constexpr unsigned kSwitchBus = 0xc0;

unsigned index_of(nvml::Device device) {
  return static_cast<unsigned>(reinterpret_cast<size_t>(device) - 1);
}

void fill(unsigned bus, nvml::PciInfo* info) {
  std::memset(info, 0, sizeof *info);
  info->bus = bus;
  info->pci_device_id = 0x20b510de;
  std::snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", bus);
}

}  // namespace

EXPORT nvml::Return nvmlInit_v2() {
  const char* fault = std::getenv("WEIR_FAKE_NVML_FAULT");
  return fault != nullptr && std::strcmp(fault, "init") == 0 ? kDriverNotLoaded : nvml::kSuccess;
}
EXPORT nvml::Return nvmlShutdown() { return nvml::kSuccess; }
EXPORT const char* nvmlErrorString(nvml::Return result) {
  return result == kDriverNotLoaded ? "Driver Not Loaded" : "Not Found";
}
EXPORT nvml::Return nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 4;
  return nvml::kSuccess;
}
EXPORT nvml::Return nvmlDeviceGetHandleByIndex_v2(unsigned index, nvml::Device* device) {
  *device = reinterpret_cast<nvml::Device>(size_t{index} + 1);
  return nvml::kSuccess;
}
EXPORT nvml::Return nvmlDeviceGetPciInfo_v3(nvml::Device device, nvml::PciInfo* info) {
  fill(kBus[index_of(device)], info);
  return nvml::kSuccess;
}
EXPORT nvml::Return nvmlDeviceGetName(nvml::Device, char* name, unsigned length) {
  std::snprintf(name, length, "NVIDIA A100-SXM4-80GB");
  return nvml::kSuccess;
}
EXPORT nvml::Return nvmlDeviceGetUUID(nvml::Device device, char* uuid, unsigned length) {
  std::snprintf(uuid, length, "GPU-0000-%u", index_of(device));
  return nvml::kSuccess;
}
EXPORT nvml::Return nvmlDeviceGetMemoryInfo(nvml::Device, nvml::Memory* memory) {
  *memory = {80ull << 30, 80ull << 30, 0};
  return nvml::kSuccess;
}
EXPORT nvml::Return nvmlDeviceGetCudaComputeCapability(nvml::Device, int* major, int* minor) {
  *major = 8;
  *minor = 0;
  return nvml::kSuccess;
}
EXPORT nvml::Return nvmlDeviceGetMaxPcieLinkGeneration(nvml::Device, unsigned* generation) {
  *generation = 4;
  return nvml::kSuccess;
}
EXPORT nvml::Return nvmlDeviceGetMaxPcieLinkWidth(nvml::Device, unsigned* width) {
  *width = 16;
  return nvml::kSuccess;
}
EXPORT nvml::Return nvmlDeviceGetNvLinkState(nvml::Device device, unsigned link, int* active) {
  const unsigned count = index_of(device) < 2 ? 4 : 3;
  if (link > 5) return kNotFound;
  *active = link < count ? 1 : 0;
  return nvml::kSuccess;
}
EXPORT nvml::Return nvmlDeviceGetNvLinkRemotePciInfo_v2(nvml::Device device, unsigned,
                                                        nvml::PciInfo* info) {
  const unsigned index = index_of(device);
  fill(index < 2 ? kBus[1 - index] : kSwitchBus, info);
  return nvml::kSuccess;
}
EXPORT nvml::Return nvmlDeviceGetNvLinkRemoteDeviceType(nvml::Device device, unsigned, int* type) {
  *type = index_of(device) < 2 ? nvml::kRemoteGpu : nvml::kRemoteSwitch;
  return nvml::kSuccess;
}
EXPORT nvml::Return nvmlDeviceGetFieldValues(nvml::Device, int, nvml::FieldValue* field) {
  field->result = field->field_id == nvml::kFieldLinkSpeedMbps ? nvml::kSuccess : kNotFound;
  field->value.u32 = 25781;
  return nvml::kSuccess;
}
