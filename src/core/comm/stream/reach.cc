// SPDX-License-Identifier: Apache-2.0
#include "core/comm/stream/reach.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <vector>

#include "core/base/per_process.h"
#include "core/comm/stream/cuda_error.h"
#include "core/comm/stream/exports.h"
#include "core/comm/stream/imports.h"

namespace weir::comm {

namespace {

// Another process's allocation in this one.
struct Mapping {
  cuda::Context context = nullptr;
  ProcessNumber owner{};
  uint64_t base = 0;
  uint64_t bytes = 0;
  uint64_t allocation = 0;
  uint32_t shared = kSharedNot;
  cuda::DevicePointer pointer = 0;
  std::string reason;  // where there is no pointer

  bool is(cuda::Context wanted, const ProcessNumber& of, const DeviceRange& range) const {
    return context == wanted && owner == of && allocation == range.allocation &&
           base == range.base && bytes == range.bytes && shared == range.shared;
  }
};

static_assert(sizeof(ExportKey) <= sizeof(cuda::IpcHandle));

struct Mappings {
  std::mutex lock;
  std::vector<Mapping> all;
};

// Threads may use it until the process ends, when CUDA frees everything: never destroyed.
Mappings& mappings() {
  static constinit PerProcess<Mappings> it;
  return it.get();
}

bool lies_in(const DeviceRange& range, uint64_t bytes) {
  return range.address >= range.base && range.address - range.base <= range.bytes &&
         bytes <= range.bytes - (range.address - range.base) &&
         range.bytes <= UINT64_MAX - range.base;
}

char* pointer_of(uint64_t address) {
  return reinterpret_cast<char*>(static_cast<uintptr_t>(address));
}

// True when the mapping is kept, with a pointer or without; else `reason` says why there is none.
bool open_mapping(const cuda::Driver& driver, const DeviceRange& range, Mapping* made,
                  std::string* reason) {
  const cuda::RelaxedCapture relaxed(driver);
  if (range.shared == kSharedByExport) {
    ExportKey key;
    std::memcpy(static_cast<void*>(&key), range.handle.reserved, sizeof key);
    Imported imported = import_memory(driver, made->owner, key, range.allocation, range.bytes);
    made->pointer = imported.pointer;
    made->reason = imported.reason;
    *reason = std::move(imported.reason);
    return made->pointer != 0 || imported.is_stuck;
  }
  if (!driver.can_share()) {
    *reason = "this CUDA has no IPC";
    return false;
  }
  const cuda::Result result =
      driver.cuIpcOpenMemHandle_v2(&made->pointer, range.handle, cuda::kIpcLazyEnablePeerAccess);
  if (result == cuda::kSuccess) return true;
  *reason = cuda_failed(driver, "CUDA IPC", "cuIpcOpenMemHandle", result).text();
  return false;
}

// Whether the program has given the device access to all of it.
bool is_given(const cuda::Driver& driver, cuda::Device device, uint64_t address, uint64_t bytes) {
  if (driver.cuMemGetAccess == nullptr || driver.cuMemGetAddressRange_v2 == nullptr) return false;
  const cuda::MemoryLocation here{cuda::kLocationDevice, device};
  const uint64_t end = address + bytes;
  for (uint64_t at = address; at < end;) {
    unsigned long long flags = 0;
    cuda::DevicePointer base = 0;
    size_t length = 0;
    if (driver.cuMemGetAccess(&flags, &here, at) != cuda::kSuccess ||
        flags != cuda::kAccessReadWrite ||
        driver.cuMemGetAddressRange_v2(&base, &length, at) != cuda::kSuccess || base > at ||
        length <= at - base) {
      return false;
    }
    at = base + length;
  }
  return true;
}

}  // namespace

DeviceRange range_of(const cuda::Driver& driver, const void* memory, bool for_others,
                     uint64_t bytes) {
  DeviceRange range;
  range.address = reinterpret_cast<uintptr_t>(memory);
  if (!for_others) return range;
  const cuda::RelaxedCapture relaxed(driver);
  cuda::DevicePointer base = 0;
  size_t range_bytes = 0;
  unsigned long long number = 0;
  unsigned capable = 0;
  int attributes[] = {cuda::kAttributeRangeStart, cuda::kAttributeRangeBytes,
                      cuda::kAttributeBufferId, cuda::kAttributeIsIpcCapable};
  void* data[] = {&base, &range_bytes, &number, &capable};
  if (driver.cuPointerGetAttributes(4, attributes, data, range.address) != cuda::kSuccess) {
    range.refusal = static_cast<uint32_t>(Refusal::kUnknown);
    return range;
  }
  if (capable != 0 && driver.can_share() &&
      driver.cuIpcGetMemHandle(&range.handle, base) == cuda::kSuccess) {
    range.base = base;
    range.bytes = range_bytes;
    range.allocation = number;
    range.shared = kSharedByIpc;
    return range;
  }
  Export exported;
  const Refusal refusal = export_memory(driver, range.address, bytes, &exported);
  range.refusal = static_cast<uint32_t>(refusal);
  if (refusal != Refusal::kNone) return range;
  range.base = exported.base;
  range.bytes = exported.bytes;
  range.allocation = exported.number;
  range.shared = kSharedByExport;
  std::memcpy(range.handle.reserved, &exported.key, sizeof exported.key);
  return range;
}

Reached reach(const cuda::Driver& driver, const ProcessNumber& owner, const DeviceRange& range,
              uint64_t bytes) {
  Reached it;
  if (owner == this_process()) {
    it.address = pointer_of(range.address);
    return it;
  }
  if (range.shared != kSharedByIpc && range.shared != kSharedByExport) {
    it.reason = text_of(static_cast<Refusal>(range.refusal));
    return it;
  }
  if (!lies_in(range, bytes)) {
    it.reason = "it extends beyond the end of the allocation in which it begins";
    return it;
  }
  cuda::Context context = nullptr;
  (void)driver.cuCtxGetCurrent(&context);
  Mappings& all = mappings();
  std::lock_guard lock(all.lock);
  auto known = std::find_if(all.all.begin(), all.all.end(), [&](const Mapping& mapping) {
    return mapping.is(context, owner, range);
  });
  if (known == all.all.end()) {
    if (all.all.size() >= kMappingsMax) {
      it.reason = fmt::format(
          "this process has mapped {} allocations of other processes already, which is the limit",
          kMappingsMax);
      return it;
    }
    Mapping made{context, owner, range.base, range.bytes, range.allocation, range.shared, 0, {}};
    all.all.reserve(all.all.size() + 1);  // so that a lack of memory loses nothing
    if (!open_mapping(driver, range, &made, &it.reason)) return it;
    known = all.all.insert(all.all.end(), std::move(made));
  }
  if (known->pointer == 0) {
    it.reason = known->reason;
    return it;
  }
  it.reason.clear();
  it.address = pointer_of(known->pointer + (range.address - range.base));
  return it;
}

Reached reach_by_kernel(const cuda::Driver& driver, const ProcessNumber& owner,
                        const DeviceRange& range, uint64_t bytes) {
  Reached it = reach(driver, owner, range, bytes);
  // Another process's memory has been mapped for the context.
  if (it.address == nullptr || owner != this_process()) return it;
  cuda::Context mine = nullptr;
  cuda::Device here = -1;
  (void)driver.cuCtxGetCurrent(&mine);
  (void)driver.cuCtxGetDevice(&here);
  cuda::Context theirs = nullptr;
  cuda::Device there = -1;
  unsigned capable = 0;
  int attributes[] = {cuda::kAttributeContext, cuda::kAttributeDeviceOrdinal,
                      cuda::kAttributeIsIpcCapable};
  void* data[] = {&theirs, &there, &capable};
  cuda::Result result = driver.cuPointerGetAttributes(3, attributes, data, range.address);
  if (result != cuda::kSuccess) {
    return {nullptr, cuda_failed(driver, "its place", "cuPointerGetAttributes", result).text()};
  }
  if (theirs == mine || (theirs == nullptr && there == here)) return it;
  // Access between contexts covers memory of cuMemAlloc; for other memory the program decides.
  if (theirs == nullptr || capable == 0) {
    if (is_given(driver, here, range.address, bytes)) return it;
    return {nullptr,
            "it is on another device, and belongs to a memory pool or was mapped without access "
            "for this device (cuMemSetAccess)"};
  }
  const cuda::RelaxedCapture relaxed(driver);
  result = driver.cuCtxEnablePeerAccess(theirs, 0);
  if (result == cuda::kSuccess || result == cuda::kErrorPeerAlreadyEnabled) return it;
  return {nullptr, cuda_failed(driver, "its device", "cuCtxEnablePeerAccess", result).text()};
}

}  // namespace weir::comm
