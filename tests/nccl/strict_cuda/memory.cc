// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>

#include "nccl/strict_cuda/world.h"

using namespace strict_cuda;  // NOLINT: this is a part of it

STRICT_CUDA_API cuMemAlloc_v2(DevicePointer* memory, size_t bytes) {
  World& it = world();
  const Submission submission(it);
  if (const Result result = forbidden(it, "cuMemAlloc"); result != kSuccess) return result;
  const int file = memfd_create("device", MFD_CLOEXEC);
  const size_t mapped = (bytes + 4095) / 4096 * 4096;
  if (file < 0 || ftruncate(file, static_cast<off_t>(mapped)) != 0) return kErrorInvalidValue;
  void* real = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  void* shown =
      mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (real == MAP_FAILED || shown == MAP_FAILED) return kErrorInvalidValue;
  std::memset(real, 0xa5, mapped);
  const auto address = reinterpret_cast<uintptr_t>(shown);
  Memory made;
  made.bytes = bytes;
  made.real = static_cast<char*>(real);
  made.context = t_context != nullptr ? t_context : &contexts[0];
  made.file = file;
  made.number = it.next_allocation++;
  it.device[address] = std::move(made);
  *memory = address;
  return kSuccess;
}

STRICT_CUDA_API cuMemFree_v2(DevicePointer memory) {
  World& it = world();
  Submission submission(it);
  if (is_like_a_driver(it)) submission.wait_for_device();
  const auto found = it.device.find(static_cast<uintptr_t>(memory));
  if (found == it.device.end() || found->second.file < 0) return kErrorInvalidValue;
  const size_t mapped = (found->second.bytes + 4095) / 4096 * 4096;
  munmap(found->second.real, mapped);
  munmap(reinterpret_cast<void*>(found->first), mapped);
  close(found->second.file);
  it.device.erase(found);
  return kSuccess;
}

// ---- Memory of other processes ------------------------------------------------------------------

namespace {

// What a handle holds.
struct Shared {
  pid_t process = 0;
  int file = -1;
  size_t bytes = 0;
  size_t device = 0;
};
static_assert(sizeof(Shared) <= sizeof(IpcHandle));

}  // namespace

STRICT_CUDA_API cuIpcGetMemHandle(IpcHandle* handle, DevicePointer memory) {
  World& it = world();
  const Submission submission(it);
  if (fault(it, "cuIpcGetMemHandle")) return kErrorInjected;
  const auto found = it.device.find(static_cast<uintptr_t>(memory));
  if (found == it.device.end() || found->second.file < 0) return kErrorInvalidValue;
  const Shared shared{getpid(), found->second.file, found->second.bytes,
                      index_of(found->second.context)};
  std::memcpy(handle->reserved, &shared, sizeof shared);
  return kSuccess;
}

STRICT_CUDA_API cuIpcOpenMemHandle_v2(DevicePointer* memory, IpcHandle handle, unsigned) {
  World& it = world();
  const Submission submission(it);
  if (fault(it, "cuIpcOpenMemHandle")) return kErrorInjected;
  Shared shared;
  std::memcpy(&shared, handle.reserved, sizeof shared);
  const std::string path =
      "/proc/" + std::to_string(shared.process) + "/fd/" + std::to_string(shared.file);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0 || shared.process == getpid()) return kErrorInvalidValue;
  const size_t mapped = (shared.bytes + 4095) / 4096 * 4096;
  void* real = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  void* shown =
      mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  close(file);
  if (real == MAP_FAILED || shown == MAP_FAILED) return kErrorInvalidValue;
  *memory = reinterpret_cast<uintptr_t>(shown);
  // The opening context reaches it, whatever the device.
  Memory opened;
  opened.bytes = shared.bytes;
  opened.real = static_cast<char*>(real);
  opened.context = t_context;
  opened.is_opened = true;
  it.device[reinterpret_cast<uintptr_t>(shown)] = std::move(opened);
  return kSuccess;
}

STRICT_CUDA_API cuIpcCloseMemHandle(DevicePointer memory) {
  World& it = world();
  Submission submission(it);
  if (is_like_a_driver(it)) submission.wait_for_device();
  const auto found = it.device.find(static_cast<uintptr_t>(memory));
  if (found == it.device.end() || !found->second.is_opened) return kErrorInvalidValue;
  const size_t mapped = (found->second.bytes + 4095) / 4096 * 4096;
  munmap(found->second.real, mapped);
  munmap(reinterpret_cast<void*>(found->first), mapped);
  it.device.erase(found);
  return kSuccess;
}

// ---- Memory of the host -------------------------------------------------------------------------

STRICT_CUDA_API cuMemHostAlloc(void** memory, size_t bytes, unsigned) {
  World& it = world();
  const Submission submission(it);
  if (const Result result = forbidden(it, "cuMemHostAlloc"); result != kSuccess) return result;
  if (t_context == nullptr) return kErrorInvalidContext;
  *memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  it.pinned[reinterpret_cast<uintptr_t>(*memory)] = bytes;
  return kSuccess;
}

STRICT_CUDA_API cuMemHostRegister_v2(void* memory, size_t bytes, unsigned) {
  World& it = world();
  const Submission submission(it);
  if (const Result result = forbidden(it, "cuMemHostRegister"); result != kSuccess) return result;
  if (t_context == nullptr) return kErrorInvalidContext;
  const bool fresh = it.registered.emplace(reinterpret_cast<uintptr_t>(memory), bytes).second;
  return fresh ? kSuccess : kErrorInvalidValue;
}

STRICT_CUDA_API cuMemHostUnregister(void* memory) {
  World& it = world();
  Submission submission(it);
  if (is_like_a_driver(it)) submission.wait_for_device();
  return it.registered.erase(reinterpret_cast<uintptr_t>(memory)) != 0 ? kSuccess
                                                                       : kErrorInvalidValue;
}

STRICT_CUDA_API cuMemHostGetDevicePointer_v2(DevicePointer* device, void* memory, unsigned) {
  World& it = world();
  const std::lock_guard lock(it.lock);
  const auto address = reinterpret_cast<uintptr_t>(memory);
  if (it.registered.count(address) == 0 && it.pinned.count(address) == 0) return kErrorInvalidValue;
  *device = address;
  return kSuccess;
}

STRICT_CUDA_API cuMemFreeHost(void* memory) {
  World& it = world();
  Submission submission(it);
  if (is_like_a_driver(it)) submission.wait_for_device();
  if (it.pinned.erase(reinterpret_cast<uintptr_t>(memory)) == 0) return kErrorInvalidValue;
  std::free(memory);
  return kSuccess;
}

namespace {

bool is_pinned(const World& it, uintptr_t address) {
  for (const auto* all : {&it.pinned, &it.registered}) {
    auto at = all->upper_bound(address);
    if (at != all->begin() && address < std::prev(at)->first + std::prev(at)->second) return true;
  }
  return false;
}

}  // namespace

STRICT_CUDA_API cuMemGetAddressRange_v2(DevicePointer* base, size_t* bytes, DevicePointer address) {
  World& it = world();
  std::lock_guard lock(it.lock);
  uintptr_t begin = 0;
  const Memory* memory = find_device(it, static_cast<uintptr_t>(address), &begin);
  if (memory == nullptr) return kErrorNotFound;
  if (base != nullptr) *base = begin;
  if (bytes != nullptr) *bytes = memory->bytes;
  return kSuccess;
}

STRICT_CUDA_API cuPointerGetAttributes(unsigned count, int* attributes, void** data,
                                       DevicePointer pointer) {
  World& it = world();
  std::lock_guard lock(it.lock);
  uintptr_t base = 0;
  const Memory* memory = find_device(it, static_cast<uintptr_t>(pointer), &base);
  const bool device = memory != nullptr;
  const bool is_mapped = device && memory->physical != nullptr;
  // Of memory made by mapping the whole reservation.
  const auto range = is_mapped ? std::prev(it.reserved.upper_bound(base)) : it.reserved.end();
  for (unsigned i = 0; i < count; ++i) {
    if (attributes[i] == kAttributeMemoryType) {
      *static_cast<unsigned*>(data[i]) = device ? kMemoryDevice
                                         : is_pinned(it, static_cast<uintptr_t>(pointer))
                                             ? kMemoryHost
                                             : 0;
    } else if (attributes[i] == kAttributeIsManaged) {
      *static_cast<int*>(data[i]) = 0;
    } else if (attributes[i] == kAttributeContext && device) {
      *static_cast<Context*>(data[i]) = is_mapped ? nullptr : memory->context;
    } else if (attributes[i] == kAttributeDeviceOrdinal && device) {
      *static_cast<int*>(data[i]) = static_cast<int>(index_of(memory->context));
    } else if (attributes[i] == kAttributeIsIpcCapable) {
      *static_cast<bool*>(data[i]) = device && !is_mapped;
    } else if (attributes[i] == kAttributeRangeStart && device) {
      *static_cast<DevicePointer*>(data[i]) = is_mapped ? range->first : base;
    } else if (attributes[i] == kAttributeRangeBytes && device) {
      *static_cast<size_t*>(data[i]) = is_mapped ? range->second.bytes : memory->bytes;
    } else if (attributes[i] == kAttributeBufferId && device) {
      *static_cast<unsigned long long*>(data[i]) = memory->number;
    } else if (attributes[i] == kAttributeAllowedHandles && device) {
      *static_cast<unsigned long long*>(data[i]) =
          is_mapped ? static_cast<unsigned long long>(memory->physical->handle_types) : 0;
    } else if (attributes[i] == kAttributePool && device) {
      *static_cast<void**>(data[i]) = nullptr;
    } else {
      return kErrorInvalidValue;
    }
  }
  return kSuccess;
}

namespace {

// With the lock held.
bool is_on_device(DevicePointer pointer) {
  uintptr_t base = 0;
  return find_device(world(), static_cast<uintptr_t>(pointer), &base) != nullptr;
}

// A copy from memory of the host to memory of the host is synchronous.
void wait_within_host(DevicePointer to, DevicePointer from, Stream handle) {
  World& it = world();
  std::unique_lock lock(it.lock);
  const StreamState* stream = find_stream(it, handle);
  if (stream == nullptr || stream->capture != nullptr) return;
  if (is_on_device(to) || is_on_device(from)) return;
  const uint64_t point = stream->enqueued;
  it.moved.wait(lock, [&] { return stream->done >= point; });
}

}  // namespace

STRICT_CUDA_API cuMemcpyAsync(DevicePointer to, DevicePointer from, size_t bytes, Stream stream) {
  const Context context = t_context;
  const Result result = issue("cuMemcpyAsync", stream, [=]() -> Work {
    const auto begin = std::chrono::steady_clock::now();
    return [=] {
      const auto spent = std::chrono::steady_clock::now() - begin;
      if (spent < std::chrono::milliseconds(world().copy_ms)) return false;
      char* target = reach(world(), to, bytes);
      const char* source = reach(world(), from, bytes);
      if (target == nullptr || source == nullptr) {
        std::fprintf(stderr, "strict libcuda: a copy of %zu bytes leaves its allocation\n", bytes);
        std::abort();
      }
      if (is_on_device(to) != is_on_device(from)) ++world().host_copies;
      if (is_on_device(to) && is_on_device(from)) ++world().device_copies[context];
      std::memcpy(target, source, bytes);
      return true;
    };
  });
  if (result == kSuccess) wait_within_host(to, from, stream);
  return result;
}
