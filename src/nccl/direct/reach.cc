// SPDX-License-Identifier: Apache-2.0
#include "nccl/direct/reach.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <vector>

namespace weir::nccl {

namespace {

// Another process's allocation in this one.
struct Mapping {
  cuda::Context context = nullptr;
  ProcessNumber owner{};
  uint64_t base = 0;
  uint64_t bytes = 0;
  uint64_t allocation = 0;
  cuda::DevicePointer pointer = 0;

  bool is(cuda::Context wanted, const ProcessNumber& of, const DeviceRange& range) const {
    return context == wanted && owner == of && allocation == range.allocation &&
           base == range.base && bytes == range.bytes;
  }
};

struct Mappings {
  std::mutex lock;
  std::vector<Mapping> all;
};

// Threads may use it until the process ends, when CUDA takes all back: never destroyed.
Mappings& mappings() {
  static Mappings* const it = new Mappings();
  return *it;
}

bool lies_in(const DeviceRange& range, uint64_t bytes) {
  return range.address >= range.base && range.address - range.base <= range.bytes &&
         bytes <= range.bytes - (range.address - range.base) &&
         range.bytes <= UINT64_MAX - range.base;
}

char* pointer_of(uint64_t address) {
  return reinterpret_cast<char*>(static_cast<uintptr_t>(address));
}

}  // namespace

DeviceRange range_of(const cuda::Driver& driver, const void* memory, bool for_others) {
  DeviceRange range;
  range.address = reinterpret_cast<uintptr_t>(memory);
  if (!for_others || !driver.can_share()) return range;
  const cuda::RelaxedCapture relaxed(driver);
  cuda::DevicePointer base = 0;
  size_t bytes = 0;
  unsigned long long number = 0;
  int attributes[] = {cuda::kAttributeRangeStart, cuda::kAttributeRangeBytes,
                      cuda::kAttributeBufferId};
  void* data[] = {&base, &bytes, &number};
  if (driver.pointer_get_attributes(3, attributes, data, range.address) != cuda::kSuccess) {
    return range;
  }
  range.base = base;
  range.bytes = bytes;
  range.allocation = number;
  range.shared = driver.ipc_get_mem_handle(&range.handle, base) == cuda::kSuccess ? 1 : 0;
  return range;
}

Reached reach(const cuda::Driver& driver, const ProcessNumber& owner, const DeviceRange& range,
              uint64_t bytes) {
  Reached it;
  if (owner == this_process()) {
    it.address = pointer_of(range.address);
    return it;
  }
  if (range.shared == 0 || !lies_in(range, bytes)) {
    it.reason = "its owner cannot share it";
    return it;
  }
  if (!driver.can_share()) {
    it.reason = "this CUDA has no IPC";
    return it;
  }
  cuda::Context context = nullptr;
  (void)driver.ctx_get_current(&context);
  Mappings& all = mappings();
  std::lock_guard lock(all.lock);
  auto known = std::find_if(all.all.begin(), all.all.end(), [&](const Mapping& mapping) {
    return mapping.is(context, owner, range);
  });
  if (known == all.all.end()) {
    if (all.all.size() >= kMappingsMax) {
      it.reason = fmt::format("this process has mapped {} allocations of others", kMappingsMax);
      return it;
    }
    Mapping made{context, owner, range.base, range.bytes, range.allocation};
    all.all.reserve(all.all.size() + 1);  // before there is something to lose
    const cuda::RelaxedCapture relaxed(driver);
    const cuda::Result result =
        driver.ipc_open_mem_handle(&made.pointer, range.handle, cuda::kIpcLazyEnablePeerAccess);
    if (result != cuda::kSuccess) {
      it.reason = cuda::failed(driver, "CUDA IPC", "cuIpcOpenMemHandle", result).text;
      return it;
    }
    known = all.all.insert(all.all.end(), made);
  }
  it.address = pointer_of(known->pointer + (range.address - range.base));
  return it;
}

Reached reach_by_kernel(const cuda::Driver& driver, const ProcessNumber& owner,
                        const DeviceRange& range, uint64_t bytes) {
  Reached it = reach(driver, owner, range, bytes);
  // What CUDA IPC has opened, it has opened for the context.
  if (it.address == nullptr || owner != this_process()) return it;
  cuda::Context mine = nullptr;
  cuda::Device here = -1;
  (void)driver.ctx_get_current(&mine);
  (void)driver.ctx_get_device(&here);
  cuda::Context theirs = nullptr;
  cuda::Device there = -1;
  unsigned capable = 0;
  int attributes[] = {cuda::kAttributeContext, cuda::kAttributeDeviceOrdinal,
                      cuda::kAttributeIsIpcCapable};
  void* data[] = {&theirs, &there, &capable};
  cuda::Result result = driver.pointer_get_attributes(3, attributes, data, range.address);
  if (result != cuda::kSuccess) {
    return {nullptr, cuda::failed(driver, "its place", "cuPointerGetAttributes", result).text};
  }
  if (theirs == mine || (theirs == nullptr && there == here)) return it;
  // Access between contexts is to what cuMemAlloc gave.
  if (theirs == nullptr || capable == 0) {
    return {nullptr, "it is on another device, and of a pool or made by mapping"};
  }
  const cuda::RelaxedCapture relaxed(driver);
  result = driver.ctx_enable_peer_access(theirs, 0);
  if (result == cuda::kSuccess || result == cuda::kErrorPeerAlreadyEnabled) return it;
  return {nullptr, cuda::failed(driver, "its device", "cuCtxEnablePeerAccess", result).text};
}

}  // namespace weir::nccl
