// SPDX-License-Identifier: Apache-2.0
#include "hostcuda/core/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <iterator>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "hostcuda/core/capture.h"
#include "hostcuda/core/pool.h"
#include "weir/hostcuda.h"

namespace weir::hostcuda {

namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kGranularityBytes = size_t{2} << 20;
constexpr unsigned kHostFlags = 7;       // portable, mapped, write-combined
constexpr unsigned kRegisterFlags = 15;  // portable, mapped, I/O memory, read only

std::atomic<uint64_t> next_id{1};

struct DeviceAddresses {
  size_t bytes = 0;
  bool always_mapped = false;
};

struct Registry {
  std::shared_mutex mutex;
  std::map<uintptr_t, Allocation> by_base;
  std::map<uintptr_t, DeviceAddresses> device_addresses;
};

Registry& registry() {
  static auto* const instance = new Registry;
  return *instance;
}

uintptr_t number_of(const void* address) { return reinterpret_cast<uintptr_t>(address); }
void* pointer_to(uintptr_t address) { return reinterpret_cast<void*>(address); }

// With the lock: the allocation that the address lies in, or end().
std::map<uintptr_t, Allocation>::const_iterator find(const Registry& known, uintptr_t address) {
  auto at = known.by_base.upper_bound(address);
  if (at == known.by_base.begin()) return known.by_base.end();
  --at;
  return address - at->first < at->second.bytes ? at : known.by_base.end();
}

// The same: the range of addresses that only devices have, or nullptr.
const DeviceAddresses* of_devices(const Registry& known, uintptr_t address) {
  auto at = known.device_addresses.upper_bound(address);
  if (at == known.device_addresses.begin()) return nullptr;
  --at;
  return address - at->first < at->second.bytes ? &at->second : nullptr;
}

// With the lock, from the allocation that `first` lies in: check_range().
Error check_allocation(const Registry& known, std::map<uintptr_t, Allocation>::const_iterator at,
                       uintptr_t first, size_t bytes, unsigned access) {
  for (size_t room = at->second.bytes - (first - at->first);; room += at->second.bytes) {
    if ((access & ~at->second.access) != 0) return Error::kInvalidValue;
    if (bytes <= room) return Error::kSuccess;
    if (at->second.kind != MemoryKind::kMapped) return Error::kInvalidValue;
    const uintptr_t end = at->first + at->second.bytes;
    if (++at == known.by_base.end() || at->first != end || at->second.kind != MemoryKind::kMapped) {
      return Error::kInvalidValue;
    }
  }
}

// Whether the process has something mapped at every address of the range.
bool is_mapped(uintptr_t first, size_t bytes) {
  const uintptr_t page = first / kPageBytes * kPageBytes;
  if (bytes > UINTPTR_MAX - first) return false;
  // Of all calls that look at a range the one that does nothing else.
  return msync(pointer_to(page), first + bytes - page, MS_ASYNC) == 0 || errno != ENOMEM;
}

size_t page_rounded(size_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

}  // namespace

std::optional<Allocation> find_allocation(const void* address) {
  Registry& known = registry();
  const std::shared_lock lock(known.mutex);
  const auto at = find(known, number_of(address));
  return at == known.by_base.end() ? std::nullopt : std::optional(at->second);
}

Error check_range(const void* address, size_t bytes, unsigned access) {
  const uintptr_t first = number_of(address);
  Registry& known = registry();
  const std::shared_lock lock(known.mutex);
  auto at = find(known, first);
  if (at == known.by_base.end()) {
    return of_devices(known, first) != nullptr ? Error::kInvalidValue : Error::kSuccess;
  }
  // Registrations of host memory may be adjacent to other memory of the host.
  if (at->second.kind == MemoryKind::kRegistered) return Error::kSuccess;
  return check_allocation(known, at, first, bytes, access);
}

Error check_presence(const void* address, size_t bytes, unsigned access) {
  const uintptr_t first = number_of(address);
  {
    Registry& known = registry();
    const std::shared_lock lock(known.mutex);
    const auto at = find(known, first);
    const DeviceAddresses* const devices = of_devices(known, first);
    if (devices != nullptr && devices->always_mapped) return Error::kSuccess;
    if (at == known.by_base.end()) {
      if (devices != nullptr) return Error::kIllegalAddress;
    } else if (at->second.kind != MemoryKind::kRegistered) {
      const Error error = check_allocation(known, at, first, bytes, access);
      return error == Error::kSuccess ? error : Error::kIllegalAddress;
    }
  }
  return is_mapped(first, bytes) ? Error::kSuccess : Error::kIllegalAddress;
}

void set_access(const void* base, unsigned access) {
  Registry& known = registry();
  const std::unique_lock lock(known.mutex);
  const auto at = known.by_base.find(number_of(base));
  if (at != known.by_base.end()) at->second.access = access;
}

void add_device_addresses(const void* base, size_t bytes, bool always_mapped) {
  Registry& known = registry();
  const std::unique_lock lock(known.mutex);
  known.device_addresses[number_of(base)] = {bytes, always_mapped};
}

Error add_allocation(const Allocation& allocation) {
  Registry& known = registry();
  const std::unique_lock lock(known.mutex);
  const auto next = known.by_base.lower_bound(allocation.base);
  if (next != known.by_base.end() && next->first < allocation.base + allocation.bytes) {
    return Error::kHostAlreadyRegistered;
  }
  if (next != known.by_base.begin()) {
    const Allocation& before = std::prev(next)->second;
    if (before.base + before.bytes > allocation.base) return Error::kHostAlreadyRegistered;
  }
  Allocation added = allocation;
  added.id = next_id.fetch_add(1);
  known.by_base.emplace(allocation.base, std::move(added));
  return Error::kSuccess;
}

std::optional<Allocation> remove_allocation(const void* base) {
  Registry& known = registry();
  const std::unique_lock lock(known.mutex);
  const auto at = known.by_base.find(number_of(base));
  if (at == known.by_base.end()) return std::nullopt;
  Allocation removed = std::move(at->second);
  known.by_base.erase(at);
  return removed;
}

Error allocate_device(Device& device, size_t bytes, MemoryKind kind, void** out,
                      std::shared_ptr<Pool> pool) {
  *out = nullptr;
  if (bytes == 0) return Error::kSuccess;
  void* address = nullptr;
  const size_t alignment = bytes >= kGranularityBytes ? kGranularityBytes : Arena::kAlignment;
  Error error = device.arena.allocate(bytes, &address, alignment);
  if (error != Error::kSuccess && release_kept_memory(device)) {
    error = device.arena.allocate(bytes, &address, alignment);
  }
  if (error != Error::kSuccess && alignment != Arena::kAlignment) {
    error = device.arena.allocate(bytes, &address);
  }
  if (error != Error::kSuccess) return error;
  Allocation allocation;
  allocation.base = number_of(address);
  allocation.bytes = bytes;
  allocation.kind = kind;
  allocation.device = device.index;
  allocation.pool = std::move(pool);
  (void)add_allocation(allocation);  // the arena does not hand out an address twice
  *out = address;
  return Error::kSuccess;
}

Error free_device(void* address) {
  if (in_host_function()) return Error::kNotPermitted;
  if (const Error error = check_unsafe(); error != Error::kSuccess) return error;
  if (address == nullptr) return Error::kSuccess;
  const auto found = find_allocation(address);
  if (!found.has_value() || found->base != number_of(address)) return Error::kInvalidValue;
  if (found->kind != MemoryKind::kDevice && found->kind != MemoryKind::kManaged) {
    return Error::kInvalidValue;
  }
  for (const Position& position : pending(*device_at(found->device))) {
    position.stream->wait(position.index);
  }
  if (found->pool != nullptr) return Pool::free_now(address);
  return release_device(address);
}

Error release_device(void* address) {
  const auto removed = remove_allocation(address);
  if (!removed.has_value()) return Error::kInvalidValue;
  device_at(removed->device)->arena.free(address);
  return Error::kSuccess;
}

Error allocate_host(size_t bytes, unsigned flags, void** out) {
  *out = nullptr;
  if (in_host_function()) return Error::kNotPermitted;
  if (const Error error = check_unsafe(); error != Error::kSuccess) return error;
  if ((flags & ~kHostFlags) != 0) return Error::kInvalidValue;
  if (bytes == 0) return Error::kSuccess;
  if (bytes > SIZE_MAX / 2) return Error::kOutOfMemory;
  void* const address = mmap(nullptr, page_rounded(bytes), PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) return Error::kOutOfMemory;
  Device* const device = current_device();
  Allocation allocation;
  allocation.base = number_of(address);
  allocation.bytes = bytes;
  allocation.kind = MemoryKind::kHost;
  allocation.device = device == nullptr ? 0 : device->index;
  allocation.flags = flags;
  if (const Error error = add_allocation(allocation); error != Error::kSuccess) {
    munmap(address, page_rounded(bytes));
    return error;
  }
  *out = address;
  return Error::kSuccess;
}

Error free_host(void* address) {
  if (in_host_function()) return Error::kNotPermitted;
  if (const Error error = check_unsafe(); error != Error::kSuccess) return error;
  if (address == nullptr) return Error::kSuccess;
  const auto found = find_allocation(address);
  if (!found.has_value() || found->kind != MemoryKind::kHost || found->base != number_of(address)) {
    return Error::kInvalidValue;
  }
  synchronize_all();
  const auto removed = remove_allocation(address);
  if (!removed.has_value()) return Error::kInvalidValue;
  munmap(address, page_rounded(removed->bytes));
  return Error::kSuccess;
}

Error register_host(void* address, size_t bytes, unsigned flags) {
  if (in_host_function()) return Error::kNotPermitted;
  if (const Error error = check_unsafe(); error != Error::kSuccess) return error;
  if (address == nullptr || bytes == 0 || (flags & ~kRegisterFlags) != 0 ||
      bytes > UINTPTR_MAX - number_of(address)) {
    return Error::kInvalidValue;
  }
  Device* const device = current_device();
  Allocation allocation;
  allocation.base = number_of(address);
  allocation.bytes = bytes;
  allocation.kind = MemoryKind::kRegistered;
  allocation.device = device == nullptr ? 0 : device->index;
  allocation.flags = flags;
  return add_allocation(allocation);
}

Error unregister_host(void* address) {
  if (in_host_function()) return Error::kNotPermitted;
  if (const Error error = check_unsafe(); error != Error::kSuccess) return error;
  const auto found = find_allocation(address);
  if (!found.has_value() || found->kind != MemoryKind::kRegistered ||
      found->base != number_of(address)) {
    return Error::kHostNotRegistered;
  }
  synchronize_all();
  return remove_allocation(address).has_value() ? Error::kSuccess : Error::kHostNotRegistered;
}

void forget_allocations(int device) {
  std::vector<uintptr_t> bases;
  {
    Registry& known = registry();
    const std::shared_lock lock(known.mutex);
    for (const auto& [base, allocation] : known.by_base) {
      if (allocation.device == device &&
          (allocation.kind == MemoryKind::kDevice || allocation.kind == MemoryKind::kManaged)) {
        bases.push_back(base);
      }
    }
  }
  for (const uintptr_t base : bases) (void)release_device(pointer_to(base));
}

}  // namespace weir::hostcuda

int weir_hostcuda_has_memory(const void* address, size_t bytes, int writes) {
  using namespace weir::hostcuda;  // NOLINT: this is their C interface
  const unsigned access = writes != 0 ? kWrite : kRead;
  return check_range(address, bytes, access) == Error::kSuccess &&
                 check_presence(address, bytes, access) == Error::kSuccess
             ? 1
             : 0;
}
