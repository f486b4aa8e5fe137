// SPDX-License-Identifier: Apache-2.0
// nccl.h: memory that is registered with a communicator. The registration of a buffer is only
// recorded, since operations look at their buffers themselves; a window is memory that peers may
// write to.
#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "api/handles.h"
#include "core/comm/stream/stream_memory.h"
#include "core/comm/stream/window_setup.h"
#include "nccl/api/own.h"
#include "nccl/base/outcome.h"
#include "nccl/comm/comm.h"
#include "nccl/host/one_sided.h"
#include "nccl/own/group.h"
#include "nccl/stream/agreement.h"

using weir::nccl::Comm;
using weir::nccl::invalid_argument;
using weir::nccl::Outcome;

namespace {

// A range of the caller's memory.
Outcome check_range(const char* function, const void* buffer, size_t bytes) {
  if (buffer == nullptr && bytes > 0) {
    return invalid_argument(fmt::format("{}: buff is NULL but size is {}", function, bytes));
  }
  if (bytes > PTRDIFF_MAX || bytes > UINTPTR_MAX - reinterpret_cast<uintptr_t>(buffer)) {
    return invalid_argument(fmt::format("{}: size {} exceeds the address space", function, bytes));
  }
  return {};
}

// Ordering, and which device code uses the window, change nothing here.
constexpr int kWindowFlags =
    NCCL_WIN_COLL_SYMMETRIC | NCCL_WIN_STRICT_ORDERING | NCCL_WIN_GIN_ONLY | NCCL_WIN_CFT_COUNTED;
constexpr uintptr_t kCountedAlignment = 256;
constexpr size_t kCountedBytesMax = size_t{256} << 30;

Outcome check_window_arguments(const char* function, const void* buffer, size_t bytes,
                               const ncclWindow_t* window, int flags) {
  if (window == nullptr) return invalid_argument(fmt::format("{}: win is NULL", function));
  if ((flags & ~kWindowFlags) != 0) {
    return invalid_argument(
        fmt::format("{}: winFlags {:#x} has bits that NCCL does not know", function, flags));
  }
  if ((flags & NCCL_WIN_CFT_COUNTED) != 0 &&
      (reinterpret_cast<uintptr_t>(buffer) % kCountedAlignment != 0 || bytes > kCountedBytesMax)) {
    return invalid_argument(fmt::format(
        "{}: buff {} with size {}: with NCCL_WIN_CFT_COUNTED it must be aligned to {} bytes and "
        "have at most {} bytes",
        function, buffer, bytes, kCountedAlignment, kCountedBytesMax));
  }
  return check_range(function, buffer, bytes);
}

// Peers then use the memory itself instead of a copy.
void collectives_go_by(const Comm& comm, weir::nccl::SharedWindow& window) {
  std::vector<unsigned char*> addresses;
  std::vector<uint64_t> bytes;
  for (const auto& peer : window.peers) {
    addresses.push_back(peer.address);
    bytes.push_back(peer.bytes);
  }
  window.reachable =
      comm.weir()->comm->windows().add_reachable(std::move(addresses), std::move(bytes));
}

Outcome no_such_window(const char* function) {
  return invalid_argument(fmt::format(
      "{}: win was not made by ncclCommWindowRegister on this communicator, or was deregistered",
      function));
}

}  // namespace

ncclResult_t weir::nccl::own::CommRegister(const ncclComm_t handle, void* buffer, size_t bytes,
                                           void** out) {
  constexpr const char* kFunction = "ncclCommRegister";
  return weir::nccl::with_comm(kFunction, handle, [&](Comm& comm) -> Outcome {
    if (out == nullptr) return invalid_argument(fmt::format("{}: handle is NULL", kFunction));
    *out = nullptr;
    Outcome outcome = check_range(kFunction, buffer, bytes);
    if (outcome.ok()) outcome = comm.ready(kFunction);
    if (outcome.ok()) *out = comm.add_registration();
    return outcome;
  });
}

ncclResult_t weir::nccl::own::CommDeregister(const ncclComm_t handle, void* registration) {
  constexpr const char* kFunction = "ncclCommDeregister";
  return weir::nccl::with_comm(kFunction, handle, [&](Comm& comm) -> Outcome {
    if (registration == nullptr) return {};
    if (comm.remove_registration(registration)) return {};
    return invalid_argument(fmt::format(
        "{}: handle {} was not made by ncclCommRegister on this communicator, or was deregistered",
        kFunction, registration));
  });
}

ncclResult_t weir::nccl::own::CommWindowRegister(ncclComm_t handle, void* buffer, size_t bytes,
                                                 ncclWindow_t* window, int flags) {
  constexpr const char* kFunction = "ncclCommWindowRegister";
  try {
    const auto comm = weir::nccl::find(handle);
    Outcome outcome = comm == nullptr
                          ? weir::nccl::no_such_handle(kFunction, handle)
                          : check_window_arguments(kFunction, buffer, bytes, window, flags);
    if (outcome.ok()) outcome = comm->ready(kFunction);
    if (!outcome.ok()) return weir::nccl::refuse(outcome, comm.get());
    *window = nullptr;
    // The work may go on after the caller has stopped waiting, so it does not write to the caller's
    // variable.
    auto made = std::make_shared<ncclWindow_t>(nullptr);
    Setup setup;
    setup.function = kFunction;
    setup.parent = comm;
    setup.work = [comm, buffer, bytes, flags, made]() -> Outcome {
      Outcome result = weir::nccl::OneSided::open(kFunction, *comm);
      if (!result.ok()) return result;
      std::shared_ptr<weir::nccl::SharedWindow> shared;
      result = comm->one_sided()->add_window(kFunction, *comm, buffer, bytes, &shared);
      if (!result.ok()) return result;
      if (shared->everywhere) collectives_go_by(*comm, *shared);
      result = weir::nccl::make_device_window(kFunction, *comm, buffer, bytes,
                                              (flags & NCCL_WIN_COLL_SYMMETRIC) != 0,
                                              &shared->on_devices);
      if (!result.ok()) return result;
      *made = comm->add_window({buffer, bytes, std::move(shared)});
      return result;
    };
    setup.publish = [made, window] { *window = *made; };
    return weir::nccl::submit(std::move(setup));
  } catch (...) {
    return weir::nccl::report(
        weir::nccl::outcome_of_exception(kFunction, std::current_exception()));
  }
}

ncclResult_t weir::nccl::own::CommWindowDeregister(ncclComm_t handle, ncclWindow_t window) {
  constexpr const char* kFunction = "ncclCommWindowDeregister";
  return weir::nccl::with_comm(kFunction, handle, [&](Comm& comm) -> Outcome {
    if (window == nullptr) return {};
    const auto taken = comm.remove_window(window);
    if (taken == nullptr) return no_such_window(kFunction);
    if (taken->shared->reachable != 0) {
      comm.weir()->comm->windows().withdraw_reachable(taken->shared->reachable);
    }
    if (const auto on_devices = std::exchange(taken->shared->on_devices, nullptr)) {
      weir::comm::end_window(*comm.devices().stream_memory(), on_devices.get());
    }
    return comm.one_sided()->end_window(kFunction, comm, *taken->shared);
  });
}

ncclResult_t weir::nccl::own::WinGetUserPtr(ncclComm_t handle, ncclWindow_t window, void** out) {
  constexpr const char* kFunction = "ncclWinGetUserPtr";
  return weir::nccl::with_comm(kFunction, handle, [&](Comm& comm) -> Outcome {
    if (out == nullptr) return invalid_argument(fmt::format("{}: outUserPtr is NULL", kFunction));
    const auto known = comm.window(window);
    if (!known.has_value()) return no_such_window(kFunction);
    *out = known->buffer;
    return {};
  });
}
