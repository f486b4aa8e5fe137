// SPDX-License-Identifier: Apache-2.0
#include "nccl/cuda/device_memory.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "core/base/per_process.h"
#include "nccl/cuda/cuda_error.h"

namespace weir::cuda {

namespace {

// Addresses of freed memory on the stand-in, which stay reserved for a while: other memory does not
// come to lie there, and a call which is still given them finds that they were freed.
constexpr size_t kFreedMax = 256;
constexpr size_t kFreedBytesMax = size_t{1} << 42;

struct Freed {
  std::mutex lock;
  std::deque<std::pair<DevicePointer, size_t>> ranges;
  size_t bytes = 0;
};
constinit PerProcess<Freed> freed;

void free_address(const Driver& driver, DevicePointer address, size_t bytes) {
  if (driver.has_memory == nullptr) {
    (void)driver.cuMemAddressFree(address, bytes);
    return;
  }
  // The copies of a graph that was captured before come before the check of its buffers, which ends
  // the call: they need pages, of which none takes memory until it is written.
  void* const at = reinterpret_cast<void*>(static_cast<uintptr_t>(address));
  (void)mmap(at, bytes, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  Freed& it = freed.get();
  std::lock_guard lock(it.lock);
  it.ranges.emplace_back(address, bytes);
  it.bytes += bytes;
  while (it.ranges.size() > kFreedMax || it.bytes > kFreedBytesMax) {
    (void)driver.cuMemAddressFree(it.ranges.front().first, it.ranges.front().second);
    it.bytes -= it.ranges.front().second;
    it.ranges.pop_front();
  }
}

}  // namespace

const Driver* memory_driver() {
  const Driver* it = find_driver(Look::kInUse);
  const bool can_make =
      it != nullptr &&
      Driver::has(it->cuInit, it->cuGetErrorName, it->cuGetErrorString, it->cuCtxGetDevice,
                  it->cuMemCreate, it->cuMemGetAllocationGranularity, it->cuMemRelease,
                  it->cuMemAddressReserve, it->cuMemAddressFree, it->cuMemMap, it->cuMemUnmap,
                  it->cuMemSetAccess);
  return can_make && it->cuInit(0) == kSuccess ? it : nullptr;
}

nccl::Outcome DeviceMemory::make(const Driver& driver, const char* function, size_t bytes,
                                 std::shared_ptr<DeviceMemory>* made) {
  const auto failed_at = [&](const char* call, Result result) {
    nccl::Outcome outcome = nccl::cuda_failed(driver, function, call, result);
    outcome.text += fmt::format(", for {} bytes", bytes);
    return outcome;
  };
  std::optional<RelaxedCapture> relaxed;
  if (driver.cuThreadExchangeStreamCaptureMode != nullptr) relaxed.emplace(driver);
  AllocationProperties wanted;
  wanted.type = kAllocationPinned;
  wanted.handle_types = kHandleDescriptor;
  wanted.location.type = kLocationDevice;
  if (driver.cuCtxGetDevice(&wanted.location.id) != kSuccess) wanted.location.id = 0;
  size_t unit = 0;
  Result result = driver.cuMemGetAllocationGranularity(&unit, &wanted, kGranularityRecommended);
  if (result != kSuccess) return failed_at("cuMemGetAllocationGranularity", result);
  if (unit == 0 || bytes > PTRDIFF_MAX - unit) {
    return nccl::invalid_argument(
        fmt::format("{}: size {} exceeds the address space", function, bytes));
  }
  std::shared_ptr<DeviceMemory> it(new DeviceMemory(driver));
  it->bytes_ = (bytes + unit - 1) / unit * unit;

  AllocationHandle handle = 0;
  result = driver.cuMemCreate(&handle, it->bytes_, &wanted, 0);
  if (result == kErrorNotSupported || result == kErrorNotPermitted) {
    // Where descriptors cannot be handed out, the memory serves this process.
    wanted.handle_types = 0;
    result = driver.cuMemCreate(&handle, it->bytes_, &wanted, 0);
  }
  if (result != kSuccess) return failed_at("cuMemCreate", result);
  result = driver.cuMemAddressReserve(&it->address_, it->bytes_, unit, 0, 0);
  if (result != kSuccess) {
    (void)driver.cuMemRelease(handle);
    return failed_at("cuMemAddressReserve", result);
  }
  result = driver.cuMemMap(it->address_, it->bytes_, 0, handle, 0);
  (void)driver.cuMemRelease(handle);  // the mapping keeps it
  if (result != kSuccess) return failed_at("cuMemMap", result);
  it->mapped_ = true;

  MemoryAccess access;
  access.location = wanted.location;
  access.flags = kAccessReadWrite;
  result = driver.cuMemSetAccess(it->address_, it->bytes_, &access, 1);
  if (result != kSuccess) return failed_at("cuMemSetAccess", result);
  int count = 0;
  if (driver.cuDeviceGetCount == nullptr || driver.cuDeviceGetCount(&count) != kSuccess) count = 0;
  for (int device = 0; device < count; ++device) {
    access.location.id = device;
    // Devices that cannot reach the memory are refused, which is no error of this call.
    if (device != wanted.location.id) {
      (void)driver.cuMemSetAccess(it->address_, it->bytes_, &access, 1);
    }
  }
  *made = std::move(it);
  return {};
}

DeviceMemory::~DeviceMemory() {
  if (mapped_) (void)driver_.cuMemUnmap(address_, bytes_);
  if (address_ != 0) free_address(driver_, address_, bytes_);
}

}  // namespace weir::cuda
