// SPDX-License-Identifier: Apache-2.0
// All memory that CUDA knows: of devices, of the host (pinned or registered), managed, and opened
// from another process. Tells what any address belongs to. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "hostcuda/core/device.h"
#include "hostcuda/core/error.h"

namespace weir::hostcuda {

enum class MemoryKind : uint8_t { kDevice, kHost, kRegistered, kManaged, kImported, kMapped };

// What a use of memory needs, and what cuMemSetAccess gives, in CUDA's numbers.
inline constexpr unsigned kRead = 1;
inline constexpr unsigned kWrite = 2;
inline constexpr unsigned kReadAndWrite = kRead | kWrite;

struct Allocation {
  uintptr_t base = 0;
  size_t bytes = 0;
  MemoryKind kind = MemoryKind::kDevice;
  int device = 0;
  unsigned flags = 0;
  uint64_t id = 0;             // of this allocation, never used again
  std::shared_ptr<Pool> pool;  // for memory of a pool
  // For mapped memory: its reservation, and the handles by which it can be exported.
  uintptr_t reserved_base = 0;
  size_t reserved_bytes = 0;
  unsigned handle_types = 0;
  unsigned access = kReadAndWrite;  // of any device; none before it is given, for mapped memory

  bool on_device() const {
    return kind == MemoryKind::kDevice || kind == MemoryKind::kImported ||
           kind == MemoryKind::kMapped;
  }
  bool on_host() const { return kind == MemoryKind::kHost || kind == MemoryKind::kRegistered; }
};

std::optional<Allocation> find_allocation(const void* address);
// kInvalidValue when [address, address + bytes) begins in an allocation and ends outside it, or in
// mapped memory without the access and not all of it mapped side by side, or where only devices
// have memory and there is none: it was freed, or nothing is mapped there.
Error check_range(const void* address, size_t bytes, unsigned access = kReadAndWrite);
// Whether an access there would not end the process. kIllegalAddress when nothing is mapped at some
// address of the range, or mapped memory lacks the access. A device's own memory is always there,
// also what was freed. Host memory that is mapped without access is not noticed.
Error check_presence(const void* address, size_t bytes, unsigned access);
// Access to the mapped memory that begins there.
void set_access(const void* base, unsigned access);

// Addresses where only devices have memory, for the rest of the process: those of an arena, which
// are always mapped, and reserved ones.
void add_device_addresses(const void* base, size_t bytes, bool always_mapped);

Error allocate_device(Device& device, size_t bytes, MemoryKind kind, void** out,
                      std::shared_ptr<Pool> pool = nullptr);
// Waits for the device first, as cudaFree does.
Error free_device(void* address);
// At once, in stream order or for a pool.
Error release_device(void* address);

Error allocate_host(size_t bytes, unsigned flags, void** out);
Error free_host(void* address);
Error register_host(void* address, size_t bytes, unsigned flags);
Error unregister_host(void* address);

// Memory outside the arenas; its maker unmaps it.
Error add_allocation(const Allocation& allocation);
std::optional<Allocation> remove_allocation(const void* base);
void forget_allocations(int device);

struct IpcHandle {
  char bytes[64];
};
Error ipc_export(const void* address, IpcHandle* handle);
Error ipc_open(const IpcHandle& handle, void** out);
Error ipc_close(void* address);

}  // namespace weir::hostcuda
