// SPDX-License-Identifier: Apache-2.0
#include "core/comm/device/device_route.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <thread>

namespace weir::comm {

Result<int> DeviceRoute::device_of(std::span<const void* const> buffers) const {
  if (!is_possible_now()) return -1;
  int device = -1;
  bool any_host = false;
  for (const void* buffer : buffers) {
    if (buffer == nullptr) continue;
    const int found = device_of_memory(buffer);
    any_host = any_host || found < 0;
    if (found < 0) continue;
    if (device >= 0 && found != device) {
      return invalid_argument(fmt::format(
          "the buffers of a call on '{}' lie on devices {} and {}: they must lie on one device",
          state_.name, device, found));
    }
    device = found;
  }
  if (device >= 0 && any_host) {
    return invalid_argument(
        fmt::format("of the buffers of a call on '{}', one lies on device {} and one in host "
                    "memory: all buffers of all ranks must lie in the same kind of memory",
                    state_.name, device));
  }
  return device;
}

Status DeviceRoute::check_is_memory(const void* buffer) const {
  if (!expects_device_.load(std::memory_order_relaxed) || buffer == nullptr ||
      !is_no_memory(buffer)) {
    return Status();
  }
  return invalid_argument(
      fmt::format("the buffer {} of a call of rank {} on '{}' lies on no device, and the host "
                  "cannot read it: it was freed, or nothing is mapped there",
                  buffer, state_.rank(), state_.name));
}

Result<int> DeviceRoute::device_of_message(const Request& request) {
  const int device = device_of_memory(request.call.input);
  if (device >= 0) {
    expect_device();
  } else {
    WEIR_RETURN_IF_ERROR(check_is_memory(request.call.input));
  }
  return device;
}

Result<int> DeviceRoute::device_of(const engine::Call& call) {
  const Collective c = call.collective;
  const bool by_ends = call.recv_counts != nullptr;  // all_to_all_v
  if (c == Collective::kBarrier || (call.count == 0 && !by_ends)) return -1;
  const bool at_root = state_.rank() == call.root;
  bool reads = at_root || (c != Collective::kBroadcast && c != Collective::kScatter);
  bool writes = at_root || (c != Collective::kReduce && c != Collective::kGather);
  if (by_ends) {
    const auto any = [n = state_.rank_count()](const size_t* counts) {
      return std::any_of(counts, counts + n, [](size_t count) { return count > 0; });
    };
    reads = any(call.block_counts);
    writes = any(call.recv_counts);
  }
  const void* const buffers[] = {reads ? call.input : nullptr, writes ? call.output : nullptr};
  Result<int> device = device_of(buffers);
  // With a count for each rank a buffer may have no elements, and be none.
  const bool has_both = !by_ends && call.block_counts == nullptr && call.leaf_count == 0;
  if (device.ok() && device.value() >= 0) {
    expect_device();
  } else if (has_both) {
    for (const void* buffer : buffers) {
      const bool is_on_device = !device.ok() && device_of_memory(buffer) >= 0;
      if (!is_on_device) WEIR_RETURN_IF_ERROR(check_is_memory(buffer));
    }
  }
  if (call.leaf_count > 0 && (!device.ok() || device.value() >= 0)) {
    return Status(
        Code::kUnsupported,
        fmt::format("a fold over leaves on '{}' needs buffers in memory of the host", state_.name));
  }
  if (device.ok() && device.value() >= 0 && !by_ends && call.block_counts == nullptr) {
    WEIR_RETURN_IF_ERROR(check_buffers(call, reads, writes));
  }
  return device;
}

Status DeviceRoute::check_buffers(const engine::Call& call, bool reads, bool writes) const {
  const Collective c = call.collective;
  const uint64_t bytes = call.count * element_bytes(call.type);
  const uint64_t all_bytes = state_.rank_count() * bytes;
  const bool sends_blocks =
      c == Collective::kReduceScatter || c == Collective::kAllToAll || c == Collective::kScatter;
  const bool receives_blocks =
      c == Collective::kAllGather || c == Collective::kAllToAll || c == Collective::kGather;
  if (reads) {
    WEIR_RETURN_IF_ERROR(check_buffer("send", call.input, sends_blocks ? all_bytes : bytes, false));
  }
  if (!writes) return Status();
  return check_buffer("receive", call.output, receives_blocks ? all_bytes : bytes, true);
}

Status DeviceRoute::check_message(const Request& request) const {
  const bool receives = request.kind == RequestKind::kRecv;
  return check_buffer(receives ? "receive" : "send", request.call.input, request.bytes, receives);
}

// Only the stand-in for CUDA tells.
Status DeviceRoute::check_buffer(const char* name, const void* buffer, uint64_t bytes,
                                 bool writes) const {
  const std::string fault = fault_of_memory(buffer, bytes, writes);
  if (fault.empty()) return Status();
  return invalid_argument(
      fmt::format("the {} buffer {} of {} bytes of a call of rank {} on '{}' {}", name, buffer,
                  bytes, state_.rank(), state_.name, fault));
}

void DeviceRoute::mark_collective(Request& request, int device) const {
  request.kind = RequestKind::kDevice;
  request.device = std::make_unique<DeviceCall>();
  request.device->device = device;
  const auto keep = [n = state_.rank_count()](const size_t* values, std::vector<uint64_t>* to) {
    if (values != nullptr) to->assign(values, values + n);
  };
  const engine::Call& call = request.call;
  DeviceCall& device_call = *request.device;
  device_call.is_all_to_all_v = call.recv_counts != nullptr;
  if (device_call.is_all_to_all_v) {
    keep(call.block_counts, &device_call.send_counts);
    keep(call.block_displacements, &device_call.send_displacements);
    keep(call.recv_counts, &device_call.recv_counts);
    keep(call.recv_displacements, &device_call.recv_displacements);
  } else {
    keep(call.block_counts, &device_call.recv_counts);
    keep(call.block_displacements, &device_call.recv_displacements);
  }
  mark_stream(request);
}

void DeviceRoute::mark_message(Request& request, int device) const {
  request.device = std::make_unique<DeviceCall>();
  request.device->device = device;
  request.device->by_stream = true;
  mark_stream(request);
}

void DeviceRoute::mark_stream(Request& request) const {
  std::lock_guard lock(state_.lock);
  request.device->caller = std::this_thread::get_id();
  request.device->on_stream = on_stream_;
  request.device->stream = stream_;
}

Status DeviceRoute::set_stream(bool on_stream, void* stream) {
  if (on_stream && state_.host_memory) {
    return invalid_argument(
        fmt::format("set_stream on '{}': the communicator was created with WEIR_COMM_HOST_MEMORY "
                    "and uses no stream",
                    state_.name));
  }
  if (on_stream && !look_for_driver()) {
    return Status(
        Code::kUnsupported,
        fmt::format("set_stream on '{}': this process has no CUDA driver (libcuda.so.1 is not "
                    "loaded)",
                    state_.name));
  }
  std::lock_guard lock(state_.lock);
  on_stream_ = on_stream;
  stream_ = stream;
  return Status();
}

}  // namespace weir::comm
