// SPDX-License-Identifier: Apache-2.0
// NVML over the emulated devices: those of the machine, whatever CUDA_VISIBLE_DEVICES says. To ask
// it is no use of CUDA, so that a process may fork afterwards. Thread-safe.
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>

#include "hostcuda/core/facts.h"
#include "hostcuda/core/settings.h"
#include "hostcuda/nvml/functions.h"

#define WEIR_NVML extern "C" __attribute__((visibility("default")))

using weir::hostcuda::device_settings;
using weir::hostcuda::kDevicesMax;
using weir::hostcuda::NvLinks;
using weir::hostcuda::PciAddress;
using weir::hostcuda::placed_gpus;
using weir::hostcuda::PlacedGpu;

struct nvmlDevice_st {};  // only its address counts

namespace {

constexpr int kCudaVersion = 13000;
constexpr unsigned kCapability = 9;  // as the driver says (facts.cc)
constexpr unsigned kPciDevice = 0x000010de;
constexpr unsigned kMemoryVersion2 = sizeof(nvmlMemory_v2_t) | (2u << 24);
constexpr unsigned kPciVersion1 = sizeof(nvmlPciInfoExt_t) | (1u << 24);
constexpr unsigned kFabricVersion2 = offsetof(nvmlGpuFabricInfo_v3_t, healthSummary) | (2u << 24);
constexpr unsigned kFabricVersion3 = sizeof(nvmlGpuFabricInfo_v3_t) | (3u << 24);

std::atomic<int> init_count{0};
nvmlDevice_st devices[kDevicesMax];

struct ErrorText {
  nvmlReturn_t number;
  const char* text;
};
constexpr ErrorText kTexts[] = {
    {NVML_SUCCESS, "Success"},
    {NVML_ERROR_UNINITIALIZED, "Uninitialized"},
    {NVML_ERROR_INVALID_ARGUMENT, "Invalid Argument"},
    {NVML_ERROR_NOT_SUPPORTED, "Not Supported"},
    {NVML_ERROR_NO_PERMISSION, "Insufficient Permissions"},
    {NVML_ERROR_ALREADY_INITIALIZED, "Already Initialized"},
    {NVML_ERROR_NOT_FOUND, "Not Found"},
    {NVML_ERROR_INSUFFICIENT_SIZE, "Insufficient Size"},
    {NVML_ERROR_DRIVER_NOT_LOADED, "Driver Not Loaded"},
    {NVML_ERROR_TIMEOUT, "Timeout"},
    {NVML_ERROR_LIBRARY_NOT_FOUND, "NVML Shared Library Not Found"},
    {NVML_ERROR_FUNCTION_NOT_FOUND, "Function Not Found"},
    {NVML_ERROR_GPU_IS_LOST, "GPU is lost"},
    {NVML_ERROR_LIB_RM_VERSION_MISMATCH, "Driver/library version mismatch"},
    {NVML_ERROR_MEMORY, "Insufficient Memory"},
    {NVML_ERROR_NO_DATA, "No data"},
    {NVML_ERROR_ARGUMENT_VERSION_MISMATCH, "Argument version mismatch"},
};

int machine_count() { return device_settings().machine_count; }

// -1: not a handle.
int index_of(nvmlDevice_t device) {
  for (int i = 0; i < machine_count(); ++i) {
    if (device == &devices[i]) return i;
  }
  return -1;
}

// The outcome of `body`, once the library is initialized; nothing throws across it.
template <class Body>
nvmlReturn_t call(Body body) {
  if (init_count.load() == 0) return NVML_ERROR_UNINITIALIZED;
  try {
    return body();
  } catch (const std::exception&) {
    return NVML_ERROR_MEMORY;
  }
}

// The same for functions of a device that write to `out`: body(index).
template <class Body>
nvmlReturn_t device_call(nvmlDevice_t device, const void* out, Body body) {
  return call([&] {
    const int index = index_of(device);
    return index < 0 || out == nullptr ? NVML_ERROR_INVALID_ARGUMENT : body(index);
  });
}

nvmlReturn_t not_supported(nvmlDevice_t device, const void* out) {
  return device_call(device, out, [](int) { return NVML_ERROR_NOT_SUPPORTED; });
}

nvmlReturn_t put_text(std::string_view text, char* out, unsigned length) {
  if (out == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  if (text.size() >= length) return NVML_ERROR_INSUFFICIENT_SIZE;
  std::memcpy(out, text.data(), text.size());
  out[text.size()] = '\0';
  return NVML_SUCCESS;
}

template <class Info>
void put_address(const PciAddress& address, Info* info) {
  info->domain = address.domain;
  info->bus = address.bus;
  info->device = address.device;
  info->pciDeviceId = kPciDevice;
  info->pciSubSystemId = 0;
  std::snprintf(info->busId, sizeof info->busId, "%08X:%02X:%02X.0", info->domain, info->bus,
                info->device);
}

void put_address(const PciAddress& address, nvmlPciInfo_t* info) {
  std::memset(info, 0, sizeof *info);
  put_address<nvmlPciInfo_t>(address, info);
  std::snprintf(info->busIdLegacy, sizeof info->busIdLegacy, "%04X:%02X:%02X.0",
                info->domain & 0xffff, info->bus & 0xff, info->device & 0xff);
}

struct Bytes {
  unsigned long long total, reserved, used, free;
};

Bytes bytes_of(int index) {
  const auto& settings = device_settings();
  Bytes bytes{};
  bytes.total = settings.nominal_bytes;
  bytes.reserved = settings.nominal_bytes - settings.device_bytes;
  bytes.used = weir::hostcuda::used_bytes(index);
  bytes.free = settings.device_bytes - bytes.used;
  return bytes;
}

// The list of processes on a device, of which only this one is known: put(process, bytes).
template <class Put>
nvmlReturn_t own_process(nvmlDevice_t device, unsigned* count, const void* list, Put put) {
  return device_call(device, count, [&](int index) {
    const size_t used = weir::hostcuda::used_bytes(index);
    const unsigned room = *count;
    *count = used > 0 ? 1 : 0;
    if (*count > room) return NVML_ERROR_INSUFFICIENT_SIZE;
    if (*count == 0) return NVML_SUCCESS;
    if (list == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    put(static_cast<unsigned>(getpid()), used);
    return NVML_SUCCESS;
  });
}

}  // namespace

// ---- Library ------------------------------------------------------------------------------------

WEIR_NVML nvmlReturn_t nvmlInitWithFlags(unsigned int) {
  if (machine_count() == 0) return NVML_ERROR_DRIVER_NOT_LOADED;
  init_count.fetch_add(1);
  return NVML_SUCCESS;
}

WEIR_NVML nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
WEIR_NVML nvmlReturn_t nvmlInit(void) { return nvmlInitWithFlags(0); }

WEIR_NVML nvmlReturn_t nvmlShutdown(void) {
  int count = init_count.load();
  while (count > 0 && !init_count.compare_exchange_weak(count, count - 1)) {
  }
  return count > 0 ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

WEIR_NVML const char* nvmlErrorString(nvmlReturn_t result) {
  for (const ErrorText& row : kTexts) {
    if (row.number == result) return row.text;
  }
  return "Unknown Error";
}

WEIR_NVML nvmlReturn_t nvmlSystemGetDriverVersion(char* version, unsigned int length) {
  return call([&] { return put_text("580.0", version, length); });
}

WEIR_NVML nvmlReturn_t nvmlSystemGetNVMLVersion(char* version, unsigned int length) {
  return call([&] { return put_text("13.580.0", version, length); });
}

WEIR_NVML nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int* version) {
  if (version == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *version = kCudaVersion;
  return NVML_SUCCESS;
}

WEIR_NVML nvmlReturn_t nvmlSystemGetCudaDriverVersion(int* version) {
  return nvmlSystemGetCudaDriverVersion_v2(version);
}

// ---- Which devices there are --------------------------------------------------------------------

WEIR_NVML nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int* count) {
  return call([&] {
    if (count == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    *count = static_cast<unsigned>(machine_count());
    return NVML_SUCCESS;
  });
}

WEIR_NVML nvmlReturn_t nvmlDeviceGetCount(unsigned int* count) {
  return nvmlDeviceGetCount_v2(count);
}

WEIR_NVML nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t* device) {
  return call([&] {
    if (device == nullptr || index >= static_cast<unsigned>(machine_count())) {
      return NVML_ERROR_INVALID_ARGUMENT;
    }
    *device = &devices[index];
    return NVML_SUCCESS;
  });
}

WEIR_NVML nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t* device) {
  return nvmlDeviceGetHandleByIndex_v2(index, device);
}

WEIR_NVML nvmlReturn_t nvmlDeviceGetHandleByUUID(const char* uuid, nvmlDevice_t* device) {
  return call([&] {
    if (uuid == nullptr || device == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    for (int i = 0; i < machine_count(); ++i) {
      if (weir::hostcuda::uuid_text(i) != uuid) continue;
      *device = &devices[i];
      return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
  });
}

WEIR_NVML nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char* text, nvmlDevice_t* device) {
  return call([&] {
    if (text == nullptr || device == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    PciAddress wanted;
    if (!weir::hostcuda::parse_pci(text, &wanted)) return NVML_ERROR_INVALID_ARGUMENT;
    for (int i = 0; i < machine_count(); ++i) {
      if (weir::hostcuda::pci_address(i) != wanted) continue;
      *device = &devices[i];
      return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
  });
}

WEIR_NVML nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char* text, nvmlDevice_t* device) {
  return nvmlDeviceGetHandleByPciBusId_v2(text, device);
}

// ---- What a device is ---------------------------------------------------------------------------

WEIR_NVML nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int* out) {
  return device_call(device, out, [&](int index) {
    *out = static_cast<unsigned>(index);
    return NVML_SUCCESS;
  });
}

WEIR_NVML nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int* number) {
  return nvmlDeviceGetIndex(device, number);
}

WEIR_NVML nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char* name, unsigned int length) {
  return device_call(device, name,
                     [&](int) { return put_text(weir::hostcuda::kDeviceName, name, length); });
}

WEIR_NVML nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char* uuid, unsigned int length) {
  return device_call(device, uuid, [&](int index) {
    return put_text(weir::hostcuda::uuid_text(index), uuid, length);
  });
}

WEIR_NVML nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t* info) {
  return device_call(device, info, [&](int index) {
    put_address(weir::hostcuda::pci_address(index), info);
    return NVML_SUCCESS;
  });
}

WEIR_NVML nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t* info) {
  return nvmlDeviceGetPciInfo_v3(device, info);
}

WEIR_NVML nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t* info) {
  return nvmlDeviceGetPciInfo_v3(device, info);
}

WEIR_NVML nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_t* info) {
  return device_call(device, info, [&](int index) {
    if (info->version != kPciVersion1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    put_address(weir::hostcuda::pci_address(index), info);
    info->baseClass = 3;  // display controller, 3D
    info->subClass = 2;
    return NVML_SUCCESS;
  });
}

WEIR_NVML nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int* major,
                                                          int* minor) {
  return device_call(device, major, [&](int) {
    if (minor == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    *major = kCapability;
    *minor = 0;
    return NVML_SUCCESS;
  });
}

WEIR_NVML nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
  return device_call(device, memory, [&](int index) {
    const Bytes bytes = bytes_of(index);
    // The first form counts what is reserved as used.
    *memory = {bytes.total, bytes.free, bytes.used + bytes.reserved};
    return NVML_SUCCESS;
  });
}

WEIR_NVML nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t* memory) {
  return device_call(device, memory, [&](int index) {
    if (memory->version != kMemoryVersion2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    const Bytes bytes = bytes_of(index);
    *memory = {memory->version, bytes.total, bytes.reserved, bytes.free, bytes.used};
    return NVML_SUCCESS;
  });
}

WEIR_NVML nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device,
                                                               unsigned int* count,
                                                               nvmlProcessInfo_t* list) {
  constexpr unsigned kNone = 0xffffffff;  // no part of a device
  return own_process(device, count, list, [&](unsigned process, size_t used) {
    list[0] = {process, used, kNone, kNone};
  });
}

WEIR_NVML nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device,
                                                               unsigned int* count,
                                                               nvmlProcessInfo_t* list) {
  return nvmlDeviceGetComputeRunningProcesses_v3(device, count, list);
}

WEIR_NVML nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device,
                                                            unsigned int* count,
                                                            nvmlProcessInfo_v1_t* list) {
  return own_process(device, count, list, [&](unsigned process, size_t used) {
    list[0] = {process, used};
  });
}

// ---- What a device of host memory has none of ---------------------------------------------------

WEIR_NVML nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device,
                                                     nvmlUtilization_t* rates) {
  return not_supported(device, rates);
}

WEIR_NVML nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, int, unsigned int* degrees) {
  return not_supported(device, degrees);
}

WEIR_NVML nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int* milliwatts) {
  return not_supported(device, milliwatts);
}

WEIR_NVML nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, int, unsigned int* mhz) {
  return not_supported(device, mhz);
}

WEIR_NVML nvmlReturn_t nvmlDeviceGetMaxPcieLinkGeneration(nvmlDevice_t device, unsigned int* out) {
  return not_supported(device, out);
}

WEIR_NVML nvmlReturn_t nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice_t device, unsigned int* width) {
  return not_supported(device, width);
}

WEIR_NVML nvmlReturn_t nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t device, unsigned int* out) {
  return not_supported(device, out);
}

WEIR_NVML nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t device, unsigned int* width) {
  return not_supported(device, width);
}

WEIR_NVML nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int* now, unsigned int*) {
  return not_supported(device, now);
}

WEIR_NVML nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count,
                                                nvmlFieldValue_t* values) {
  return device_call(device, values, [&](int) {
    if (count < 0) return NVML_ERROR_INVALID_ARGUMENT;
    for (int i = 0; i < count; ++i) values[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
    return NVML_SUCCESS;
  });
}

// The call succeeds and the state, 0, says that there is no fabric, as on a GPU without one.
WEIR_NVML nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t* info) {
  return device_call(device, info, [&](int) {
    *info = {};
    info->status = NVML_ERROR_NOT_SUPPORTED;
    return NVML_SUCCESS;
  });
}

WEIR_NVML nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device,
                                                   nvmlGpuFabricInfo_v3_t* info) {
  return device_call(device, info, [&](int) {
    const unsigned version = info->version;
    if (version != kFabricVersion2 && version != kFabricVersion3) {
      return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    std::memset(info, 0, version & 0xffffff);
    info->version = version;
    info->status = NVML_ERROR_NOT_SUPPORTED;
    return NVML_SUCCESS;
  });
}

WEIR_NVML nvmlReturn_t nvmlDeviceGetPlatformInfo(nvmlDevice_t device, void* info) {
  return not_supported(device, info);
}

WEIR_NVML nvmlReturn_t nvmlSystemGetConfComputeState(void*) {
  return call([] { return NVML_ERROR_NOT_SUPPORTED; });
}

WEIR_NVML nvmlReturn_t nvmlSystemGetConfComputeSettings(void*) {
  return call([] { return NVML_ERROR_NOT_SUPPORTED; });
}

// ---- Links --------------------------------------------------------------------------------------

namespace {

constexpr unsigned kNvLinksMax = 18;

// Where the topology file has a device; nullptr without a file.
const PlacedGpu* place_of(int index) {
  const auto& placed = placed_gpus();
  const auto at = static_cast<size_t>(index);
  return at < placed.size() ? &placed[at] : nullptr;
}

// The link with that number; nullptr if it is not there.
const NvLinks* link_of(int index, unsigned number) {
  const PlacedGpu* const place = place_of(index);
  if (place == nullptr) return nullptr;
  for (const NvLinks& links : place->links) {
    if (number < links.count) return &links;
    number -= links.count;
  }
  return nullptr;
}

// put(link) for a link that is there. Devices without any have no support for links.
template <class Put>
nvmlReturn_t link_call(nvmlDevice_t device, unsigned number, const void* out, Put put) {
  return device_call(device, out, [&](int index) {
    if (number >= kNvLinksMax) return NVML_ERROR_INVALID_ARGUMENT;
    if (link_of(index, 0) == nullptr) return NVML_ERROR_NOT_SUPPORTED;
    return put(link_of(index, number));
  });
}

// Directly, or by a switch that both have links to.
bool nvlinked(int index, int peer) {
  const PlacedGpu* const place = place_of(index);
  const PlacedGpu* const other = place_of(peer);
  if (place == nullptr || other == nullptr) return false;
  const auto has_switch = [](const PlacedGpu& gpu) {
    return std::any_of(gpu.links.begin(), gpu.links.end(),
                       [](const NvLinks& links) { return links.to_switch; });
  };
  return (has_switch(*place) && has_switch(*other)) ||
         std::any_of(place->links.begin(), place->links.end(),
                     [&](const NvLinks& links) { return links.target == other->address; });
}

// Of the words of an affinity, "00000000,ffff0000", the highest first, the one with that number.
unsigned affinity_word(const std::string& text, size_t number) {
  size_t end = text.size();
  while (number > 0 && end != std::string::npos) {
    const size_t comma = end == 0 ? std::string::npos : text.rfind(',', end - 1);
    end = comma;
    --number;
  }
  if (end == std::string::npos) return 0;
  const size_t before = end == 0 ? std::string::npos : text.rfind(',', end - 1);
  const size_t begin = before == std::string::npos ? 0 : before + 1;
  return static_cast<unsigned>(std::strtoul(text.substr(begin, end - begin).c_str(), nullptr, 16));
}

}  // namespace

WEIR_NVML nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t device, nvmlDevice_t peer,
                                              nvmlGpuP2PCapsIndex_t index,
                                              nvmlGpuP2PStatus_t* status) {
  constexpr int kRead = 0;
  constexpr int kWrite = 1;
  constexpr int kNvLink = 2;
  constexpr int kIndexEnd = 6;
  constexpr int kOk = 0;
  constexpr int kNotSupported = 5;
  return device_call(device, status, [&](int own) {
    const int other = index_of(peer);
    if (other < 0 || other == own || index < 0 || index >= kIndexEnd) {
      return NVML_ERROR_INVALID_ARGUMENT;
    }
    const bool has =
        index == kRead || index == kWrite || (index == kNvLink && nvlinked(own, other));
    *status = has ? kOk : kNotSupported;
    return NVML_SUCCESS;
  });
}

WEIR_NVML nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device, nvmlDevice_t peer,
                                                           nvmlGpuTopologyLevel_t* level) {
  constexpr int kInternal = 0;
  constexpr int kSingle = 10;    // one switch
  constexpr int kMultiple = 20;  // several
  constexpr int kNode = 40;
  constexpr int kSystem = 50;
  return device_call(device, level, [&](int own) {
    const int other = index_of(peer);
    if (other < 0) return NVML_ERROR_INVALID_ARGUMENT;
    const PlacedGpu* const place = place_of(own);
    const PlacedGpu* const its = place_of(other);
    if (own == other) {
      *level = kInternal;
      return NVML_SUCCESS;
    }
    // Without a file, the memory of a device has no place of its own in the machine.
    *level = kSystem;
    if (place == nullptr || its == nullptr) return NVML_SUCCESS;
    size_t shared = 0;
    while (shared < place->above.size() && shared < its->above.size() &&
           place->above[shared].number == its->above[shared].number) {
      ++shared;
    }
    if (shared < 2) return NVML_SUCCESS;  // the first element is the system
    if (!place->above[shared - 1].is_pci) {
      *level = kNode;
    } else {
      const bool one = shared == place->above.size() && shared == its->above.size();
      *level = one ? kSingle : kMultiple;
    }
    return NVML_SUCCESS;
  });
}

WEIR_NVML nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int count,
                                                unsigned long* words) {
  return device_call(device, words, [&](int index) {
    if (count == 0) return NVML_ERROR_INVALID_ARGUMENT;
    const size_t bytes = count * sizeof *words;
    std::memset(words, 0, bytes);
    const PlacedGpu* const place = place_of(index);
    if (place != nullptr && !place->affinity.empty()) {
      for (size_t i = 0; i < count; ++i) {
        const auto low = static_cast<unsigned long>(affinity_word(place->affinity, 2 * i));
        const auto high = static_cast<unsigned long>(affinity_word(place->affinity, 2 * i + 1));
        words[i] = low | high << 32;
      }
      return NVML_SUCCESS;
    }
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0) return NVML_ERROR_UNKNOWN;
    std::memcpy(words, &set, std::min(bytes, sizeof set));
    return NVML_SUCCESS;
  });
}

WEIR_NVML nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link,
                                                int* active) {
  return link_call(device, link, active, [&](const NvLinks* links) {
    *active = links != nullptr ? 1 : 0;
    return NVML_SUCCESS;
  });
}

WEIR_NVML nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned int,
                                                  unsigned int* version) {
  return not_supported(device, version);
}

WEIR_NVML nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned int link,
                                                     int capability, unsigned int* result) {
  constexpr int kPeerToPeer = 0;
  return link_call(device, link, result, [&](const NvLinks* links) {
    *result = links != nullptr && capability == kPeerToPeer ? 1 : 0;
    return NVML_SUCCESS;
  });
}

WEIR_NVML nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link,
                                                           nvmlPciInfo_t* info) {
  return link_call(device, link, info, [&](const NvLinks* links) {
    if (links == nullptr) return NVML_ERROR_NOT_SUPPORTED;
    put_address(links->target, info);
    return NVML_SUCCESS;
  });
}

WEIR_NVML nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t device, unsigned int link,
                                                        nvmlPciInfo_t* info) {
  return nvmlDeviceGetNvLinkRemotePciInfo_v2(device, link, info);
}

WEIR_NVML nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link,
                                                           int* type) {
  constexpr int kGpu = 0;
  constexpr int kSwitch = 2;
  return link_call(device, link, type, [&](const NvLinks* links) {
    if (links == nullptr) return NVML_ERROR_NOT_SUPPORTED;
    *type = links->to_switch ? kSwitch : kGpu;
    return NVML_SUCCESS;
  });
}
