// SPDX-License-Identifier: Apache-2.0
// Memory of another process: its device is an unnamed file, which is opened through /proc. The
// kernel allows this where ptrace would be allowed: the same user, a dumpable program, and a shared
// PID namespace.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "hostcuda/core/capture.h"
#include "hostcuda/core/memory.h"

namespace weir::hostcuda {

namespace {

constexpr uint64_t kMagic = 0x3143504948524557;  // "WERHIPC1"
constexpr size_t kPageBytes = 4096;

// The contents of a handle's 64 bytes; only this machine reads them.
struct IpcContent {
  uint64_t magic;
  int32_t process;
  int32_t descriptor;
  uint64_t offset;
  uint64_t bytes;
  uint64_t allocation;
  int32_t device;
  int32_t reserved[3];
  uint64_t check;
};
static_assert(sizeof(IpcContent) == sizeof(IpcHandle));

uint64_t check_of(const IpcContent& content) {
  uint64_t sum = kMagic;
  for (const uint64_t part :
       {static_cast<uint64_t>(content.process), static_cast<uint64_t>(content.descriptor),
        content.offset, content.bytes, content.allocation, static_cast<uint64_t>(content.device)}) {
    sum = (sum ^ part) * 0x100000001b3;
  }
  return sum;
}

struct Opened {
  void* address;
  void* mapping;
  size_t mapping_bytes;
  size_t count;
};

struct OpenedTable {
  std::mutex mutex;
  std::map<std::pair<int32_t, uint64_t>, Opened> by_origin;
};

OpenedTable& opened() {
  static auto* const table = new OpenedTable;
  return *table;
}

bool ours(int descriptor, const IpcContent& content) {
  struct stat facts {};
  if (fstat(descriptor, &facts) != 0) return false;
  const auto size = static_cast<uint64_t>(facts.st_size);
  if (content.bytes > size || content.offset > size - content.bytes) return false;
  char name[64] = {};
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  const ssize_t length = readlink(link.c_str(), name, sizeof name - 1);
  return length > 0 && std::strncmp(name, "/memfd:weir_hostcuda", 20) == 0;
}

}  // namespace

Error ipc_export(const void* address, IpcHandle* handle) {
  if (in_host_function()) return Error::kNotPermitted;
  if (const Error error = check_unsafe(); error != Error::kSuccess) return error;
  const auto found = find_allocation(address);
  // Pool memory is exported through its pool, managed memory not at all.
  if (!found.has_value() || found->kind != MemoryKind::kDevice || found->pool != nullptr) {
    return Error::kInvalidValue;
  }
  const Arena& arena = device_at(found->device)->arena;
  IpcContent content{};
  content.magic = kMagic;
  content.process = getpid();
  content.descriptor = arena.descriptor();
  content.offset = arena.offset_of(reinterpret_cast<const void*>(found->base));
  content.bytes = found->bytes;
  content.allocation = found->id;
  content.device = found->device;
  content.check = check_of(content);
  std::memcpy(handle, &content, sizeof content);
  return Error::kSuccess;
}

Error ipc_open(const IpcHandle& handle, void** out) {
  *out = nullptr;
  if (in_host_function()) return Error::kNotPermitted;
  if (const Error error = check_unsafe(); error != Error::kSuccess) return error;
  Device* const device = current_device();
  if (device == nullptr) return Error::kNoDevice;
  IpcContent content{};
  std::memcpy(&content, &handle, sizeof content);
  if (content.magic != kMagic || content.check != check_of(content)) return Error::kInvalidValue;
  // As in CUDA, a process cannot open what it exported.
  if (content.process == getpid()) return Error::kInvalidContext;
  OpenedTable& table = opened();
  const std::lock_guard lock(table.mutex);
  const auto origin = std::make_pair(content.process, content.allocation);
  if (const auto known = table.by_origin.find(origin); known != table.by_origin.end()) {
    ++known->second.count;
    *out = known->second.address;
    return Error::kSuccess;
  }
  const std::string path =
      "/proc/" + std::to_string(content.process) + "/fd/" + std::to_string(content.descriptor);
  const int descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) {
    std::fprintf(
        stderr,
        "hostcuda: memory of process %d cannot be opened: %s; both must be of one user and "
        "see each other in /proc\n",
        content.process, std::strerror(errno));
    return Error::kMapFailed;
  }
  if (!ours(descriptor, content)) {
    close(descriptor);
    return Error::kInvalidValue;
  }
  const size_t skip = content.offset % kPageBytes;
  const size_t mapping_bytes = content.bytes + skip;
  void* const mapping = mmap(nullptr, mapping_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor,
                             static_cast<off_t>(content.offset - skip));
  close(descriptor);
  if (mapping == MAP_FAILED) return Error::kMapFailed;
  void* const address = static_cast<char*>(mapping) + skip;
  Allocation allocation;
  allocation.base = reinterpret_cast<uintptr_t>(address);
  allocation.bytes = content.bytes;
  allocation.kind = MemoryKind::kImported;
  allocation.device = device->index;
  if (const Error error = add_allocation(allocation); error != Error::kSuccess) {
    munmap(mapping, mapping_bytes);
    return error;
  }
  table.by_origin.emplace(origin, Opened{address, mapping, mapping_bytes, 1});
  *out = address;
  return Error::kSuccess;
}

Error ipc_close(void* address) {
  if (in_host_function()) return Error::kNotPermitted;
  if (const Error error = check_unsafe(); error != Error::kSuccess) return error;
  OpenedTable& table = opened();
  const std::lock_guard lock(table.mutex);
  for (auto at = table.by_origin.begin(); at != table.by_origin.end(); ++at) {
    if (at->second.address != address) continue;
    if (--at->second.count > 0) return Error::kSuccess;
    synchronize_all();
    (void)remove_allocation(address);
    munmap(at->second.mapping, at->second.mapping_bytes);
    table.by_origin.erase(at);
    return Error::kSuccess;
  }
  return Error::kInvalidValue;
}

}  // namespace weir::hostcuda
