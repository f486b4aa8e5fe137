// SPDX-License-Identifier: Apache-2.0
// Memory made by mapping, and its descriptors for other processes.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "nccl/strict_cuda/world.h"

using namespace strict_cuda;  // NOLINT: this is a part of it

namespace {

constexpr size_t kUnit = size_t{2} << 20;

bool whole(size_t bytes) { return bytes > 0 && bytes % kUnit == 0; }

// With STRICT_CUDA_SHARES=ipc as a driver that has the functions and no such memory.
bool has_descriptors() {
  static const char* const shares = std::getenv("STRICT_CUDA_SHARES");
  return shares == nullptr || std::strcmp(shares, "ipc") != 0;
}

// The file of an allocation says by its name on which device it is.
constexpr char kFileName[] = "strict-device-%d";

bool is_device(int device) { return device >= 0 && device < kContextCount; }

// The reservation in which all of it lies.
const Reserved* find_reserved(const World& it, DevicePointer address, size_t bytes,
                              uintptr_t* base) {
  const auto begin = static_cast<uintptr_t>(address);
  auto at = it.reserved.upper_bound(begin);
  if (at == it.reserved.begin()) return nullptr;
  --at;
  if (begin - at->first > at->second.bytes || bytes > at->second.bytes - (begin - at->first)) {
    return nullptr;
  }
  *base = at->first;
  return &at->second;
}

// The mappings of which the range consists; empty: it does not.
std::vector<std::map<uintptr_t, Memory>::iterator> find_mappings(World& it, DevicePointer address,
                                                                 size_t bytes) {
  std::vector<std::map<uintptr_t, Memory>::iterator> all;
  auto begin = static_cast<uintptr_t>(address);
  const uintptr_t end = begin + bytes;
  while (begin < end) {
    const auto found = it.device.find(begin);
    if (found == it.device.end() || found->second.physical == nullptr ||
        found->second.bytes > end - begin) {
      return {};
    }
    all.push_back(found);
    begin += found->second.bytes;
  }
  return all;
}

AllocationHandle add_handle(World& it, std::shared_ptr<const Physical> physical) {
  const AllocationHandle handle = it.next_handle++;
  it.physical[handle] = std::move(physical);
  return handle;
}

}  // namespace

Physical::~Physical() { close(file); }

STRICT_CUDA_API cuMemGetAllocationGranularity(size_t* bytes, const AllocationProperties* wanted,
                                              int) {
  if (wanted->type != kAllocationPinned || wanted->location.type != kLocationDevice) {
    return kErrorInvalidValue;
  }
  *bytes = kUnit;
  return kSuccess;
}

STRICT_CUDA_API cuMemCreate(AllocationHandle* handle, size_t bytes,
                            const AllocationProperties* wanted, unsigned long long) {
  World& it = world();
  const Submission submission(it);
  if (const Result result = forbidden(it, "cuMemCreate"); result != kSuccess) return result;
  const int device = wanted->location.id;
  const int types = wanted->handle_types;
  if (!whole(bytes) || !is_device(device) || (types != 0 && types != kHandleDescriptor)) {
    return kErrorInvalidValue;
  }
  if (types != 0 && !has_descriptors()) return kErrorNotSupported;
  std::array<char, 32> name{};
  std::snprintf(name.data(), name.size(), kFileName, device);
  const int file = memfd_create(name.data(), MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) return kErrorInvalidValue;
  void* content = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (content == MAP_FAILED) return kErrorInvalidValue;
  std::memset(content, 0xa5, bytes);
  munmap(content, bytes);
  *handle = add_handle(it, std::make_shared<const Physical>(bytes, file, &contexts[device], types));
  return kSuccess;
}

STRICT_CUDA_API cuMemRelease(AllocationHandle handle) {
  World& it = world();
  std::lock_guard lock(it.lock);
  return it.physical.erase(handle) != 0 ? kSuccess : kErrorInvalidValue;
}

STRICT_CUDA_API cuMemRetainAllocationHandle(AllocationHandle* handle, void* address) {
  World& it = world();
  std::lock_guard lock(it.lock);
  uintptr_t base = 0;
  const Memory* memory = find_device(it, reinterpret_cast<uintptr_t>(address), &base);
  if (memory == nullptr || memory->physical == nullptr) return kErrorInvalidValue;
  *handle = add_handle(it, memory->physical);
  return kSuccess;
}

STRICT_CUDA_API cuMemExportToShareableHandle(void* out, AllocationHandle handle, int type,
                                             unsigned long long) {
  World& it = world();
  const Submission submission(it);
  if (fault(it, "cuMemExportToShareableHandle")) return kErrorInjected;
  const auto found = it.physical.find(handle);
  if (found == it.physical.end() || type != kHandleDescriptor ||
      found->second->handle_types != kHandleDescriptor) {
    return kErrorInvalidValue;
  }
  const int file = dup(found->second->file);  // the caller's from now on
  if (file < 0) return kErrorInvalidValue;
  *static_cast<int*>(out) = file;
  return kSuccess;
}

STRICT_CUDA_API cuMemImportFromShareableHandle(AllocationHandle* handle, void* from, int type) {
  World& it = world();
  const Submission submission(it);
  if (fault(it, "cuMemImportFromShareableHandle")) return kErrorInjected;
  if (!has_descriptors()) return kErrorNotSupported;
  const auto given = static_cast<int>(reinterpret_cast<uintptr_t>(from));
  const std::string path = "/proc/self/fd/" + std::to_string(given);
  std::array<char, 64> target{};
  int device = -1;
  struct stat facts {};
  if (type != kHandleDescriptor || readlink(path.c_str(), target.data(), target.size() - 1) < 0 ||
      std::sscanf(target.data(), "/memfd:strict-device-%d", &device) != 1 || !is_device(device) ||
      fstat(given, &facts) != 0) {
    return kErrorInvalidValue;
  }
  const int file = fcntl(given, F_DUPFD_CLOEXEC, 0);
  if (file < 0) return kErrorInvalidValue;
  *handle =
      add_handle(it, std::make_shared<const Physical>(static_cast<size_t>(facts.st_size), file,
                                                      &contexts[device], kHandleDescriptor));
  return kSuccess;
}

STRICT_CUDA_API cuMemAddressReserve(DevicePointer* address, size_t bytes, size_t, DevicePointer,
                                    unsigned long long) {
  World& it = world();
  std::lock_guard lock(it.lock);
  if (!whole(bytes)) return kErrorInvalidValue;
  const auto reserve = [bytes] {
    return mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  };
  void* const shown = reserve();
  void* const real = reserve();
  if (shown == MAP_FAILED || real == MAP_FAILED) return kErrorInvalidValue;
  *address = reinterpret_cast<uintptr_t>(shown);
  it.reserved[reinterpret_cast<uintptr_t>(shown)] = {bytes, static_cast<char*>(real)};
  return kSuccess;
}

STRICT_CUDA_API cuMemAddressFree(DevicePointer address, size_t bytes) {
  World& it = world();
  std::lock_guard lock(it.lock);
  const auto found = it.reserved.find(static_cast<uintptr_t>(address));
  if (found == it.reserved.end() || found->second.bytes != bytes) return kErrorInvalidValue;
  const auto mapped = it.device.lower_bound(found->first);
  if (mapped != it.device.end() && mapped->first < found->first + bytes) return kErrorInvalidValue;
  munmap(reinterpret_cast<void*>(found->first), bytes);
  munmap(found->second.real, bytes);
  it.reserved.erase(found);
  return kSuccess;
}

STRICT_CUDA_API cuMemMap(DevicePointer address, size_t bytes, size_t offset,
                         AllocationHandle handle, unsigned long long) {
  World& it = world();
  std::lock_guard lock(it.lock);
  uintptr_t base = 0;
  const Reserved* range = find_reserved(it, address, bytes, &base);
  const auto memory = it.physical.find(handle);
  const auto begin = static_cast<uintptr_t>(address);
  const auto next = it.device.lower_bound(begin);
  uintptr_t before = 0;
  if (range == nullptr || memory == it.physical.end() || offset != 0 || begin % kUnit != 0 ||
      bytes != memory->second->bytes || find_device(it, begin, &before) != nullptr ||
      (next != it.device.end() && next->first < begin + bytes)) {
    return kErrorInvalidValue;
  }
  void* real = mmap(range->real + (begin - base), bytes, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_FIXED, memory->second->file, 0);
  if (real == MAP_FAILED) return kErrorInvalidValue;
  Memory made;
  made.bytes = bytes;
  made.real = static_cast<char*>(real);
  made.context = memory->second->context;
  made.number = it.next_allocation++;
  made.physical = memory->second;
  it.device[begin] = std::move(made);
  return kSuccess;
}

STRICT_CUDA_API cuMemUnmap(DevicePointer address, size_t bytes) {
  World& it = world();
  Submission submission(it);
  if (is_like_a_driver(it)) submission.wait_for_device();
  const auto all = find_mappings(it, address, bytes);
  if (all.empty()) return kErrorInvalidValue;
  for (const auto& one : all) {
    (void)mmap(one->second.real, one->second.bytes, PROT_NONE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    it.device.erase(one);
  }
  return kSuccess;
}

STRICT_CUDA_API cuMemSetAccess(DevicePointer address, size_t bytes, const MemoryAccess* list,
                               size_t count) {
  World& it = world();
  std::lock_guard lock(it.lock);
  const auto all = find_mappings(it, address, bytes);
  if (all.empty()) return kErrorInvalidValue;
  for (size_t i = 0; i < count; ++i) {
    if (list[i].location.type != kLocationDevice || !is_device(list[i].location.id) ||
        (list[i].flags != 0 && list[i].flags != kAccessReadWrite)) {
      return kErrorInvalidValue;
    }
    for (const auto& one : all) {
      if (list[i].flags != 0) {
        one->second.given.insert(&contexts[list[i].location.id]);
      } else {
        one->second.given.erase(&contexts[list[i].location.id]);
      }
    }
  }
  return kSuccess;
}

STRICT_CUDA_API cuMemGetAccess(unsigned long long* flags, const MemoryLocation* location,
                               DevicePointer address) {
  World& it = world();
  std::lock_guard lock(it.lock);
  uintptr_t base = 0;
  const Memory* memory = find_device(it, static_cast<uintptr_t>(address), &base);
  if (memory == nullptr || memory->physical == nullptr || location->type != kLocationDevice ||
      !is_device(location->id)) {
    return kErrorInvalidValue;
  }
  *flags = memory->given.count(&contexts[location->id]) != 0 ? kAccessReadWrite : 0;
  return kSuccess;
}
