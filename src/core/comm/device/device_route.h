// SPDX-License-Identifier: Apache-2.0
// DeviceRoute: which calls have buffers on a device, and the stream that they use. Thread-safe;
// `mark_collective` and `set_stream` take the communicator's lock, with which `stream` and
// `on_stream` are called.
#pragma once

#include <atomic>
#include <span>

#include "core/base/status.h"
#include "core/comm/device/device_memory.h"
#include "core/comm/requests/request.h"
#include "core/comm/state/comm_state.h"
#include "core/engine/call.h"

namespace weir::comm {

class DeviceRoute {
 public:
  explicit DeviceRoute(CommState& state) : state_(state) {}
  DeviceRoute(const DeviceRoute&) = delete;
  DeviceRoute& operator=(const DeviceRoute&) = delete;

  // As far as is known without looking for the driver. Costs a load.
  bool is_possible() const { return !state_.host_memory && driver_is_known(); }
  // The same after a look for the driver, which the program may have loaded since.
  bool is_possible_now() const {
    return !state_.host_memory && (driver_is_known() || look_again_for_driver());
  }

  // The device on which the buffers that are not NULL lie, -1: the host can read them. A mixture of
  // both is an error.
  Result<int> device_of(std::span<const void* const> buffers) const;
  // Of the buffers that this rank reads or writes. Once this rank uses a device, one that is no
  // memory at all is an error: it may have been there.
  Result<int> device_of(const engine::Call& call);
  // The same of the buffer of a message.
  Result<int> device_of_message(const Request& request);
  // This rank uses a device.
  void expect_device() { expects_device_.store(true, std::memory_order_relaxed); }
  // Whether a device has all of the memory of a message, as far as is known.
  Status check_message(const Request& request) const;
  // Marks the request of a collective as one on memory of `device`.
  void mark_collective(Request& request, int device) const;
  // The same of a message that goes directly between devices.
  void mark_message(Request& request, int device) const;

  // See weir_comm_set_stream.
  Status set_stream(bool on_stream, void* stream);
  bool on_stream() const { return on_stream_; }
  void* stream() const { return stream_; }

 private:
  void mark_stream(Request& request) const;
  // `buffer` is on no device.
  Status check_is_memory(const void* buffer) const;
  Status check_buffers(const engine::Call& call, bool reads, bool writes) const;
  Status check_buffer(const char* name, const void* buffer, uint64_t bytes, bool writes) const;

  CommState& state_;
  std::atomic<bool> expects_device_{false};
  bool on_stream_ = false;
  void* stream_ = nullptr;
};

}  // namespace weir::comm
