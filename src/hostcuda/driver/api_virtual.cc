// SPDX-License-Identifier: Apache-2.0
// Virtual memory: ranges of addresses, memory without an address, and the mapping of memory into
// ranges. Memory is an anonymous file, so that another process can map it through a descriptor.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "hostcuda/core/capture.h"
#include "hostcuda/core/handles.h"
#include "hostcuda/core/memory.h"
#include "hostcuda/core/pool.h"
#include "hostcuda/driver/call.h"

using namespace weir::hostcuda;          // NOLINT: this file is their C interface
using namespace weir::hostcuda::driver;  // NOLINT

namespace {

constexpr size_t kGranularityBytes = size_t{2} << 20;

struct Physical {
  int descriptor = -1;
  size_t bytes = 0;
  Device* device = nullptr;
  bool charged = false;  // to the device, unless another process made it
  CUmemAllocationProp properties{};
  size_t handle_count = 1;  // under the table's lock

  Physical() = default;
  Physical(const Physical&) = delete;
  Physical& operator=(const Physical&) = delete;
  ~Physical() {
    if (descriptor >= 0) close(descriptor);
    if (charged) device->arena.discharge(bytes);
  }
};
using PhysicalRef = std::shared_ptr<Physical>;

struct Mapping {
  size_t bytes = 0;
  PhysicalRef memory;
  std::map<int, unsigned> access;  // by device
};

struct Virtual {
  std::mutex mutex;
  HandleTable<Physical> memory;
  std::map<CUdeviceptr, size_t> reserved;
  // Reservations that were freed, merged: given out again, and never to the rest of the process, so
  // that an address of a device does not become one of the host.
  std::map<CUdeviceptr, size_t> kept;
  std::map<CUdeviceptr, Mapping> mapped;
};

Virtual& state() {
  static auto* const instance = new Virtual;
  return *instance;
}

const void* key(CUmemGenericAllocationHandle handle) { return pointer(handle); }

bool whole(unsigned long long value) { return value % kGranularityBytes == 0; }

Error check_properties(const CUmemAllocationProp* properties, Device** device) {
  if (properties == nullptr || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED) {
    return Error::kInvalidValue;
  }
  const int types = properties->requestedHandleTypes;
  if (types != 0 && types != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return Error::kNotSupported;
  if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return Error::kNotSupported;
  *device = device_at(properties->location.id);
  return *device == nullptr ? Error::kInvalidDevice : Error::kSuccess;
}

// Under the lock: the reservation that contains the whole range, or end().
std::map<CUdeviceptr, size_t>::const_iterator reservation(const Virtual& all, CUdeviceptr address,
                                                          size_t bytes) {
  auto at = all.reserved.upper_bound(address);
  if (at == all.reserved.begin()) return all.reserved.end();
  --at;
  const size_t skip = address - at->first;
  return skip <= at->second && bytes <= at->second - skip ? at : all.reserved.end();
}

// Under the lock: takes the range from what is kept; 0 when nothing there is large enough.
CUdeviceptr take_kept(Virtual* all, size_t bytes, size_t unit) {
  for (auto at = all->kept.begin(); at != all->kept.end(); ++at) {
    const auto [first, length] = *at;
    const CUdeviceptr aligned = (first + unit - 1) / unit * unit;
    const size_t skip = aligned - first;
    if (skip > length || bytes > length - skip) continue;
    all->kept.erase(at);
    if (skip > 0) all->kept.emplace(first, skip);
    if (skip + bytes < length) all->kept.emplace(aligned + bytes, length - skip - bytes);
    return aligned;
  }
  return 0;
}

// Under the lock.
void keep(Virtual* all, CUdeviceptr address, size_t bytes) {
  auto next = all->kept.lower_bound(address);
  if (next != all->kept.end() && next->first == address + bytes) {
    bytes += next->second;
    next = all->kept.erase(next);
  }
  if (next != all->kept.begin() && std::prev(next)->first + std::prev(next)->second == address) {
    std::prev(next)->second += bytes;
  } else {
    all->kept.emplace(address, bytes);
  }
}

bool reserve_again(CUdeviceptr address, size_t bytes) {
  return mmap(pointer(address), bytes, PROT_NONE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED;
}

// Calls `visit` for the mappings that fill the range exactly, or fails.
template <class Visit>
Error for_mappings(Virtual& all, CUdeviceptr address, size_t bytes, Visit visit) {
  CUdeviceptr reached = address;
  for (auto at = all.mapped.find(address); at != all.mapped.end() && reached < address + bytes;
       ++at) {
    if (at->first != reached) break;
    reached += at->second.bytes;
  }
  if (bytes == 0 || reached != address + bytes) return Error::kInvalidValue;
  for (auto at = all.mapped.find(address); at != all.mapped.end() && at->first < reached;) {
    const auto mine = at++;
    const Error error = visit(mine);
    if (error != Error::kSuccess) return error;
  }
  return Error::kSuccess;
}

}  // namespace

WEIR_CUDA CUresult cuMemGetAllocationGranularity(size_t* bytes,
                                                 const CUmemAllocationProp* properties,
                                                 CUmemAllocationGranularity_flags option) {
  return plain_call([&] {
    Device* device = nullptr;
    if (bytes == nullptr || static_cast<unsigned>(option) > 1) return Error::kInvalidValue;
    const Error error = check_properties(properties, &device);
    if (error == Error::kSuccess) *bytes = kGranularityBytes;
    return error;
  });
}

WEIR_CUDA CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes,
                               const CUmemAllocationProp* properties, unsigned long long flags) {
  return plain_call([&] {
    if (handle == nullptr || flags != 0 || bytes == 0 || !whole(bytes)) return Error::kInvalidValue;
    if (in_host_function()) return Error::kNotPermitted;
    if (const Error error = check_unsafe(); error != Error::kSuccess) return error;
    auto made = std::make_shared<Physical>();
    if (const Error error = check_properties(properties, &made->device); error != Error::kSuccess) {
      return error;
    }
    Error charged = made->device->arena.charge(bytes);
    if (charged != Error::kSuccess && release_kept_memory(*made->device)) {
      charged = made->device->arena.charge(bytes);
    }
    if (charged != Error::kSuccess) return charged;
    made->bytes = bytes;
    made->charged = true;
    made->properties = *properties;
    made->descriptor = memfd_create("weir_hostcuda", MFD_CLOEXEC);
    if (made->descriptor < 0 || ftruncate(made->descriptor, static_cast<off_t>(bytes)) != 0) {
      return Error::kOutOfMemory;
    }
    *handle = address_of(state().memory.add(std::move(made)));
    return Error::kSuccess;
  });
}

WEIR_CUDA CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  return plain_call([&] {
    Virtual& all = state();
    const std::lock_guard lock(all.mutex);
    const PhysicalRef memory = all.memory.find(key(handle));
    if (memory == nullptr) return Error::kInvalidValue;
    // Mapped memory stays until it is unmapped.
    if (--memory->handle_count == 0) (void)all.memory.take(key(handle));
    return Error::kSuccess;
  });
}

WEIR_CUDA CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t alignment,
                                       CUdeviceptr, unsigned long long flags) {
  return plain_call([&] {
    if (address == nullptr || flags != 0 || bytes == 0 || !whole(bytes)) {
      return Error::kInvalidValue;
    }
    if ((alignment & (alignment - 1)) != 0) return Error::kInvalidValue;
    const size_t unit = alignment > kGranularityBytes ? alignment : kGranularityBytes;
    if (bytes > SIZE_MAX / 2 || unit > SIZE_MAX / 4) return Error::kOutOfMemory;
    Virtual& all = state();
    const std::lock_guard lock(all.mutex);
    if (const CUdeviceptr again = take_kept(&all, bytes, unit); again != 0) {
      all.reserved.emplace(again, bytes);
      *address = again;
      return Error::kSuccess;
    }
    void* const found =
        mmap(nullptr, bytes + unit, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (found == MAP_FAILED) return Error::kOutOfMemory;
    const CUdeviceptr first = address_of(found);
    const CUdeviceptr aligned = (first + unit - 1) / unit * unit;
    if (aligned > first) munmap(found, aligned - first);
    const CUdeviceptr end = first + bytes + unit;
    if (end > aligned + bytes) munmap(pointer(aligned + bytes), end - aligned - bytes);
    all.reserved.emplace(aligned, bytes);
    add_device_addresses(pointer(aligned), bytes, false);
    *address = aligned;
    return Error::kSuccess;
  });
}

WEIR_CUDA CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  return plain_call([&] {
    Virtual& all = state();
    const std::lock_guard lock(all.mutex);
    const auto at = all.reserved.find(address);
    if (at == all.reserved.end() || at->second != bytes) return Error::kInvalidValue;
    const auto inside = all.mapped.lower_bound(address);
    if (inside != all.mapped.end() && inside->first < address + bytes) return Error::kInvalidValue;
    all.reserved.erase(at);
    keep(&all, address, bytes);
    return Error::kSuccess;
  });
}

WEIR_CUDA CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                            CUmemGenericAllocationHandle handle, unsigned long long flags) {
  return plain_call([&] {
    // As in CUDA, memory is mapped from its beginning.
    if (flags != 0 || offset != 0 || bytes == 0 || !whole(bytes) || !whole(address)) {
      return Error::kInvalidValue;
    }
    Virtual& all = state();
    const std::lock_guard lock(all.mutex);
    const PhysicalRef memory = all.memory.find(key(handle));
    const auto reserved = reservation(all, address, bytes);
    if (memory == nullptr || bytes > memory->bytes || reserved == all.reserved.end()) {
      return Error::kInvalidValue;
    }
    Allocation allocation;
    allocation.base = address;
    allocation.bytes = bytes;
    allocation.kind = MemoryKind::kMapped;
    allocation.device = memory->device->index;
    allocation.reserved_base = reserved->first;
    allocation.reserved_bytes = reserved->second;
    allocation.handle_types = static_cast<unsigned>(memory->properties.requestedHandleTypes);
    allocation.access = 0;
    if (add_allocation(allocation) != Error::kSuccess) return Error::kInvalidValue;
    // No access before cuMemSetAccess.
    if (mmap(pointer(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, memory->descriptor, 0) ==
        MAP_FAILED) {
      (void)remove_allocation(pointer(address));
      (void)reserve_again(address, bytes);
      return Error::kMapFailed;
    }
    all.mapped.emplace(address, Mapping{bytes, memory, {}});
    return Error::kSuccess;
  });
}

WEIR_CUDA CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  return plain_call([&] {
    if (in_host_function()) return Error::kNotPermitted;
    if (const Error error = check_unsafe(); error != Error::kSuccess) return error;
    synchronize_all();
    Virtual& all = state();
    const std::lock_guard lock(all.mutex);
    return for_mappings(all, address, bytes, [&](auto at) {
      if (!reserve_again(at->first, at->second.bytes)) return Error::kUnknown;
      (void)remove_allocation(pointer(at->first));
      all.mapped.erase(at);
      return Error::kSuccess;
    });
  });
}

WEIR_CUDA CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* list,
                                  size_t count) {
  return plain_call([&] {
    if (list == nullptr || count == 0) return Error::kInvalidValue;
    std::map<int, unsigned> given;
    for (size_t i = 0; i < count; ++i) {
      const auto flags = static_cast<unsigned>(list[i].flags);
      if (list[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE) return Error::kNotSupported;
      if (device_at(list[i].location.id) == nullptr) return Error::kInvalidDevice;
      if (flags != 0 && flags != 1 && flags != 3) return Error::kInvalidValue;
      given[list[i].location.id] = flags;
    }
    Virtual& all = state();
    const std::lock_guard lock(all.mutex);
    return for_mappings(all, address, bytes, [&](auto at) {
      std::map<int, unsigned> access = given;
      access.insert(at->second.access.begin(), at->second.access.end());
      // All devices are host memory: access for any one of them is the mapping's access.
      unsigned flags = 0;
      for (const auto& [device, its] : access) flags |= its;
      const int protection =
          ((flags & 1) != 0 ? PROT_READ : PROT_NONE) | ((flags & 2) != 0 ? PROT_WRITE : PROT_NONE);
      if (mprotect(pointer(at->first), at->second.bytes, protection) != 0) {
        return Error::kInvalidValue;
      }
      set_access(pointer(at->first), flags);
      at->second.access = std::move(access);
      return Error::kSuccess;
    });
  });
}

WEIR_CUDA CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location,
                                  CUdeviceptr address) {
  return plain_call([&] {
    Virtual& all = state();
    const std::lock_guard lock(all.mutex);
    auto at = all.mapped.upper_bound(address);
    if (flags == nullptr || location == nullptr || at == all.mapped.begin()) {
      return Error::kInvalidValue;
    }
    --at;
    if (address - at->first >= at->second.bytes) return Error::kInvalidValue;
    if (location->type != CU_MEM_LOCATION_TYPE_DEVICE) return Error::kNotSupported;
    const auto given = at->second.access.find(location->id);
    *flags = given == at->second.access.end() ? 0 : given->second;
    return Error::kSuccess;
  });
}

WEIR_CUDA CUresult cuMemExportToShareableHandle(void* out, CUmemGenericAllocationHandle handle,
                                                CUmemAllocationHandleType type,
                                                unsigned long long flags) {
  return plain_call([&] {
    const PhysicalRef memory = state().memory.find(key(handle));
    if (out == nullptr || flags != 0 || memory == nullptr) return Error::kInvalidValue;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return Error::kNotSupported;
    if (memory->properties.requestedHandleTypes != type) return Error::kInvalidValue;
    const int copy = fcntl(memory->descriptor, F_DUPFD_CLOEXEC, 0);
    if (copy < 0) return Error::kOutOfMemory;
    std::memcpy(out, &copy, sizeof copy);
    return Error::kSuccess;
  });
}

WEIR_CUDA CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* from,
                                                  CUmemAllocationHandleType type) {
  return context_call([&] {
    if (handle == nullptr) return Error::kInvalidValue;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return Error::kNotSupported;
    const int given = static_cast<int>(reinterpret_cast<uintptr_t>(from));
    struct stat facts {};
    if (fstat(given, &facts) != 0 || !S_ISREG(facts.st_mode) || facts.st_size <= 0 ||
        !whole(static_cast<unsigned long long>(facts.st_size))) {
      return Error::kInvalidValue;
    }
    auto made = std::make_shared<Physical>();
    made->descriptor = fcntl(given, F_DUPFD_CLOEXEC, 0);  // the program keeps its own
    if (made->descriptor < 0) return Error::kOutOfMemory;
    made->bytes = static_cast<size_t>(facts.st_size);
    made->device = current_device();
    made->properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    made->properties.requestedHandleTypes = type;
    made->properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, made->device->index};
    *handle = address_of(state().memory.add(std::move(made)));
    return Error::kSuccess;
  });
}

WEIR_CUDA CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle,
                                               void* address) {
  return plain_call([&] {
    Virtual& all = state();
    const std::lock_guard lock(all.mutex);
    auto at = all.mapped.upper_bound(address_of(address));
    if (handle == nullptr || at == all.mapped.begin()) return Error::kInvalidValue;
    --at;
    if (address_of(address) - at->first >= at->second.bytes) return Error::kInvalidValue;
    const PhysicalRef& memory = at->second.memory;
    if (all.memory.find(memory.get()) == nullptr) {
      memory->handle_count = 0;  // was released while it was mapped
      all.memory.add(memory);
    }
    ++memory->handle_count;
    *handle = address_of(memory.get());
    return Error::kSuccess;
  });
}

WEIR_CUDA CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties,
                                                          CUmemGenericAllocationHandle handle) {
  return plain_call([&] {
    const PhysicalRef memory = state().memory.find(key(handle));
    if (properties == nullptr || memory == nullptr) return Error::kInvalidValue;
    *properties = memory->properties;
    return Error::kSuccess;
  });
}
