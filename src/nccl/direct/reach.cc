// SPDX-License-Identifier: Apache-2.0
#include "nccl/direct/reach.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <vector>

namespace weir::nccl {

class DeviceMapping {
 public:
  DeviceMapping(const cuda::Driver& the_driver, cuda::Context the_context,
                const ProcessNumber& the_owner, const DeviceRange& range)
      : driver(the_driver),
        context(the_context),
        owner(the_owner),
        base(range.base),
        bytes(range.bytes),
        allocation(range.allocation) {}
  ~DeviceMapping() {
    if (pointer == 0) return;
    const cuda::RelaxedCapture relaxed(driver);
    const cuda::ContextScope scope(driver, nullptr, context);
    (void)driver.ipc_close_mem_handle(pointer);
  }
  DeviceMapping(const DeviceMapping&) = delete;
  DeviceMapping& operator=(const DeviceMapping&) = delete;

  bool is(cuda::Context wanted, const ProcessNumber& of, const DeviceRange& range) const {
    return context == wanted && owner == of && allocation == range.allocation &&
           base == range.base && bytes == range.bytes;
  }
  // The owner has other memory there now.
  bool is_replaced_by(const ProcessNumber& of, const DeviceRange& range) const {
    return owner == of && allocation != range.allocation && base < range.base + range.bytes &&
           range.base < base + bytes;
  }

  const cuda::Driver& driver;
  const cuda::Context context;
  const ProcessNumber owner;
  const uint64_t base;
  const uint64_t bytes;
  const uint64_t allocation;
  cuda::DevicePointer pointer = 0;
};

namespace {

struct Mappings {
  std::mutex lock;
  std::vector<std::shared_ptr<DeviceMapping>> alive;
  std::vector<std::shared_ptr<DeviceMapping>> dead;
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
  for (size_t i = 0; i < all.alive.size();) {
    if (all.alive[i]->is_replaced_by(owner, range)) {
      all.dead.push_back(std::move(all.alive[i]));
      all.alive.erase(all.alive.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
  const auto known = std::find_if(all.alive.begin(), all.alive.end(), [&](const auto& mapping) {
    return mapping->is(context, owner, range);
  });
  if (known != all.alive.end()) {
    it.mapping = *known;
  } else {
    if (all.alive.size() + all.dead.size() >= kMappingsMax) {
      it.reason = fmt::format("this process maps {} allocations of others already", kMappingsMax);
      return it;
    }
    auto made = std::make_shared<DeviceMapping>(driver, context, owner, range);
    const cuda::RelaxedCapture relaxed(driver);
    const cuda::Result result =
        driver.ipc_open_mem_handle(&made->pointer, range.handle, cuda::kIpcLazyEnablePeerAccess);
    if (result != cuda::kSuccess) {
      made->pointer = 0;
      it.reason = cuda::failed(driver, "CUDA IPC", "cuIpcOpenMemHandle", result).text;
      return it;
    }
    all.alive.push_back(made);
    it.mapping = std::move(made);
  }
  it.address = pointer_of(it.mapping->pointer + (range.address - range.base));
  return it;
}

void close_dead_mappings() {
  std::vector<std::shared_ptr<DeviceMapping>> dead;  // given back without the lock
  Mappings& all = mappings();
  std::lock_guard lock(all.lock);
  dead.swap(all.dead);
}

size_t mapping_count() {
  Mappings& all = mappings();
  std::lock_guard lock(all.lock);
  return all.alive.size() + all.dead.size();
}

}  // namespace weir::nccl
