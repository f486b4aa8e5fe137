// SPDX-License-Identifier: Apache-2.0
// The emulated devices and the one that a thread has chosen. WEIR_HOSTCUDA_DEVICES and
// WEIR_HOSTCUDA_MEMORY set their number and the memory of each. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "hostcuda/core/arena.h"
#include "hostcuda/core/error.h"
#include "hostcuda/core/stream.h"

namespace weir::hostcuda {

class Pool;

constexpr int kDevicesMax = 64;
constexpr int kPriorityLow = 0;
constexpr int kPriorityHigh = -5;

struct Device {
  Device(int device_index, int of_machine, size_t total_bytes)
      : index(device_index), machine_index(of_machine), arena(total_bytes) {}

  const int index;          // in this process
  const int machine_index;  // the same in all processes (CUDA_VISIBLE_DEVICES)
  Arena arena;
  std::mutex order;  // held while work is enqueued: the order between streams is decided under it
  std::mutex host_functions;  // runs them one after another, which CUDA allows
  std::mutex state;           // of the fields below
  uint64_t peers = 0;         // bit i: peer access to device i was enabled
  unsigned flags = 0;
  int retained_count = 0;              // of the primary context
  bool active = false;                 // the primary context
  std::shared_ptr<Pool> default_pool;  // made on first use
  std::shared_ptr<Pool> current_pool;

  // Under `order`.
  const std::vector<StreamRef>& streams() const { return streams_; }
  const StreamRef& legacy_if_any() const { return legacy_; }

  // An operation has used memory that is not there: as in CUDA, the rest of the device's work is
  // given up, and every call that concerns the device returns kIllegalAddress from then on.
  void fail();
  Error failure() const { return failed_.load() ? Error::kIllegalAddress : Error::kSuccess; }

  StreamRef make_stream(StreamKind kind, int priority);
  StreamRef legacy();
  void forget(const Stream* stream);

 private:
  std::vector<StreamRef> streams_;
  StreamRef legacy_;
  std::atomic<bool> failed_{false};
};

// The number of devices; may be 0.
int device_count();
// The bytes that this process has in use on a device of the machine.
size_t used_bytes(int machine_index);
// nullptr when there is no such device.
Device* device_at(int index);

// Whether the process has initialized the driver: by cuInit, or by its first call of the runtime
// that needs devices. Without devices it never has.
bool is_initialized();
void mark_initialized();

// The calling thread's device: -1 before it chose one and before its first use of device 0.
int chosen_device();
void choose_device(int index);
// The calling thread's device, 0 when it chose none; nullptr without devices.
Device* current_device();

// kNotInitialized, as in CUDA, in a process that was forked after CUDA was used.
Error check_process();

// The handles of default streams.
inline constexpr uintptr_t kLegacyHandle = 1;
inline constexpr uintptr_t kPerThreadHandle = 2;

// The stream behind a handle: nullptr and 1 are the current device's legacy stream, 2 the thread's.
// nullptr for an invalid handle.
StreamRef find_stream(const void* handle);
// Null when `kind` is kBlocking or kNonBlocking and there is no device.
Error create_stream(bool blocking, int priority, void** handle);
Error destroy_stream(void* handle);
Error query_stream(const void* handle);
Error synchronize_stream(const void* handle);
Error synchronize_device(Device& device);
// Every device that was used.
void synchronize_all();
// Cancels the device's work and destroys its streams, memory and pools.
Error reset_device(Device& device);

// True inside a host function, where CUDA may not be called.
bool in_host_function();
class HostFunctionScope {
 public:
  explicit HostFunctionScope(Device& device);
  ~HostFunctionScope();
  HostFunctionScope(const HostFunctionScope&) = delete;
  HostFunctionScope& operator=(const HostFunctionScope&) = delete;

 private:
  std::lock_guard<std::mutex> lock_;
};

}  // namespace weir::hostcuda
