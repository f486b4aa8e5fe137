// SPDX-License-Identifier: Apache-2.0
// nccl.h: memory that is registered with a communicator. A buffer's registration is a record, since
// operations find out by themselves what their buffers are; a window is what peers may write to.
#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "api/handles.h"
#include "nccl/comm.h"
#include "nccl/group.h"
#include "nccl/one_sided.h"
#include "nccl/outcome.h"
#include "nccl/own.h"

using weir::nccl::Comm;
using weir::nccl::guarded;
using weir::nccl::invalid_argument;
using weir::nccl::Outcome;
using weir::nccl::Setup;

namespace {

// A range of memory of the caller's.
Outcome check_range(const char* function, const void* buffer, size_t bytes) {
  if (buffer == nullptr && bytes > 0) {
    return invalid_argument(fmt::format("{}: buff is NULL but size is {}", function, bytes));
  }
  if (bytes > PTRDIFF_MAX || bytes > UINTPTR_MAX - reinterpret_cast<uintptr_t>(buffer)) {
    return invalid_argument(fmt::format("{}: size {} exceeds the address space", function, bytes));
  }
  return {};
}

constexpr int kWindowFlags = NCCL_WIN_COLL_SYMMETRIC | NCCL_WIN_STRICT_ORDERING | 0x04;

Outcome check_window_arguments(const char* function, const void* buffer, size_t bytes,
                               const ncclWindow_t* window, int flags) {
  if (window == nullptr) return invalid_argument(fmt::format("{}: win is NULL", function));
  if ((flags & ~kWindowFlags) != 0) {
    return invalid_argument(
        fmt::format("{}: winFlags {:#x} has bits that NCCL does not know", function, flags));
  }
  return check_range(function, buffer, bytes);
}

// Peers then reach the memory itself instead of what it is copied to.
void collectives_go_by(const Comm& comm, weir::nccl::SharedWindow& window) {
  std::vector<unsigned char*> addresses;
  std::vector<uint64_t> bytes;
  for (const auto& peer : window.peers) {
    addresses.push_back(peer.address);
    bytes.push_back(peer.bytes);
  }
  window.reachable = comm.weir()->comm->add_reachable(std::move(addresses), std::move(bytes));
}

Outcome no_such_window(const char* function) {
  return invalid_argument(fmt::format(
      "{}: win was not made by ncclCommWindowRegister on this communicator, or is gone", function));
}

}  // namespace

ncclResult_t weir::nccl::own::CommRegister(const ncclComm_t handle, void* buffer, size_t bytes,
                                           void** out) {
  constexpr const char* kFunction = "ncclCommRegister";
  return guarded(kFunction, [&]() -> Outcome {
    const auto comm = weir::nccl::find(handle);
    if (comm == nullptr) return weir::nccl::no_such_handle(kFunction, handle);
    if (out == nullptr) return invalid_argument(fmt::format("{}: handle is NULL", kFunction));
    *out = nullptr;
    Outcome outcome = check_range(kFunction, buffer, bytes);
    if (outcome.ok()) outcome = comm->ready(kFunction);
    if (outcome.ok()) *out = comm->add_registration();
    return outcome;
  });
}

ncclResult_t weir::nccl::own::CommDeregister(const ncclComm_t handle, void* registration) {
  constexpr const char* kFunction = "ncclCommDeregister";
  return guarded(kFunction, [&]() -> Outcome {
    const auto comm = weir::nccl::find(handle);
    if (comm == nullptr) return weir::nccl::no_such_handle(kFunction, handle);
    if (registration == nullptr) return {};
    if (comm->remove_registration(registration)) return {};
    return invalid_argument(fmt::format(
        "{}: handle {} was not given by ncclCommRegister on this communicator, or is gone",
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
    // The work may go on when the caller has stopped waiting: it does not touch the caller's place.
    auto made = std::make_shared<ncclWindow_t>(nullptr);
    Setup setup;
    setup.function = kFunction;
    setup.parent = comm;
    setup.work = [comm, buffer, bytes, made]() -> Outcome {
      Outcome result = weir::nccl::OneSided::open(kFunction, *comm);
      if (!result.ok()) return result;
      std::shared_ptr<weir::nccl::SharedWindow> shared;
      result = comm->one_sided()->add_window(kFunction, *comm, buffer, bytes, &shared);
      if (!result.ok()) return result;
      if (shared->everywhere) collectives_go_by(*comm, *shared);
      weir_window_t registered = nullptr;
      result = comm->outcome(kFunction, weir_register(comm->weir(), buffer, bytes, &registered));
      if (result.ok()) *made = comm->add_window({registered, buffer, bytes, std::move(shared)});
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
  return guarded(kFunction, [&]() -> Outcome {
    const auto comm = weir::nccl::find(handle);
    if (comm == nullptr) return weir::nccl::no_such_handle(kFunction, handle);
    if (window == nullptr) return {};
    const auto taken = comm->remove_window(window);
    if (taken == nullptr) return no_such_window(kFunction);
    if (taken->shared->reachable != 0) {
      comm->weir()->comm->withdraw_reachable(taken->shared->reachable);
    }
    if (const auto state = comm->one_sided(); state != nullptr) {
      state->remove_window(*taken->shared);
    }
    return comm->outcome(kFunction, weir_deregister(comm->weir(), taken->window));
  });
}

ncclResult_t weir::nccl::own::WinGetUserPtr(ncclComm_t handle, ncclWindow_t window, void** out) {
  constexpr const char* kFunction = "ncclWinGetUserPtr";
  return guarded(kFunction, [&]() -> Outcome {
    const auto comm = weir::nccl::find(handle);
    if (comm == nullptr) return weir::nccl::no_such_handle(kFunction, handle);
    if (out == nullptr) return invalid_argument(fmt::format("{}: outUserPtr is NULL", kFunction));
    const auto known = comm->window(window);
    if (!known.has_value()) return no_such_window(kFunction);
    *out = known->buffer;
    return {};
  });
}
