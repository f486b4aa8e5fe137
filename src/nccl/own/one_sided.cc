// SPDX-License-Identifier: Apache-2.0
// nccl.h: one-sided operations.
#include "nccl/host/one_sided.h"

#include <fmt/format.h>

#include "nccl/api/own.h"
#include "nccl/api/translate.h"
#include "nccl/base/outcome.h"
#include "nccl/comm/comm.h"
#include "nccl/host/operation.h"
#include "nccl/own/group.h"

using weir::nccl::Comm;
using weir::nccl::invalid_argument;
using weir::nccl::invalid_usage;
using weir::nccl::OneSided;
using weir::nccl::OneSidedCall;
using weir::nccl::Operation;
using weir::nccl::OperationKind;
using weir::nccl::Outcome;

namespace {

// Finds the communicator of a call, and checks that the call may be made.
Outcome ready(const char* function, ncclComm_t handle, Operation* operation) {
  operation->function = function;
  operation->kind = OperationKind::kOneSided;
  operation->comm = weir::nccl::find(handle);
  if (operation->comm == nullptr) return weir::nccl::no_such_handle(function, handle);
  Outcome outcome = operation->comm->ready(function);
  if (!outcome.ok()) return outcome;
  auto call = std::make_shared<OneSidedCall>();
  call->state = operation->comm->one_sided();
  if (call->state == nullptr) {
    return invalid_usage(fmt::format(
        "{}, rank {} of {}: signals exist only after the communicator's first window: call "
        "ncclCommWindowRegister on all ranks first, or set config.rmaEagerInit to 1",
        function, operation->comm->rank(), operation->comm->rank_count()));
  }
  operation->one_sided = std::move(call);
  return {};
}

Outcome check_peer(const char* function, const Comm& comm, const OneSided& state, int peer,
                   int signal, int context) {
  const auto wrong = [&](const char* what, int value, int count, const char* remedy) {
    return invalid_argument(fmt::format("{}, rank {} of {}: {} is {}, allowed are 0 to {}{}",
                                        function, comm.rank(), comm.rank_count(), what, value,
                                        count - 1, remedy));
  };
  const int contexts = static_cast<int>(state.contexts());
  const int signals = static_cast<int>(state.signals());
  if (peer < 0 || peer >= comm.rank_count()) return wrong("peer", peer, comm.rank_count(), "");
  if (signal < 0 || signal >= signals) {
    return wrong("sigIdx", signal, signals, "; set config.numRmaSig for more");
  }
  if (context < 0 || context >= contexts) {
    return wrong("ctx", context, contexts, "; set config.numRmaCtx for more");
  }
  return {};
}

Outcome check_flags(const char* function, unsigned int flags) {
  if (flags == 0) return {};
  return invalid_argument(fmt::format("{}: flags is {:#x}, only 0 is allowed", function, flags));
}

// `make` checks the arguments and fills in the operation.
template <typename Make>
ncclResult_t enqueue(const char* function, ncclComm_t handle, cudaStream_t stream,
                     Make make) noexcept {
  try {
    Operation operation;
    Outcome outcome = ready(function, handle, &operation);
    if (outcome.ok()) outcome = make(*operation.comm, *operation.one_sided);
    if (!outcome.ok()) return weir::nccl::refuse(outcome, operation.comm.get());
    operation.stream = stream;
    return weir::nccl::submit(std::move(operation));
  } catch (...) {
    return weir::nccl::report(weir::nccl::outcome_of_exception(function, std::current_exception()));
  }
}

}  // namespace

ncclResult_t weir::nccl::own::PutSignal(const void* data, size_t count, ncclDataType_t datatype,
                                        int peer, ncclWindow_t window, size_t offset, int signal,
                                        int context, unsigned int flags, ncclComm_t handle,
                                        cudaStream_t stream) {
  constexpr const char* kFunction = "ncclPutSignal";
  return enqueue(kFunction, handle, stream, [&](Comm& comm, OneSidedCall& call) -> Outcome {
    Outcome outcome = check_peer(kFunction, comm, *call.state, peer, signal, context);
    if (outcome.ok()) outcome = check_flags(kFunction, flags);
    if (!outcome.ok()) return outcome;
    const auto type = weir::nccl::to_weir(datatype);
    if (!type.has_value()) {
      return invalid_argument(fmt::format("{}: datatype {} is none of 0 to {}", kFunction,
                                          static_cast<int>(datatype), ncclNumTypes - 1));
    }
    const auto known = comm.window(window);
    if (!known.has_value()) {
      return invalid_argument(
          fmt::format("{}: peerWin was not made by ncclCommWindowRegister on this communicator, or "
                      "was deregistered",
                      kFunction));
    }
    size_t bytes = 0;
    const uint64_t room = known->shared->peers[static_cast<size_t>(peer)].bytes;
    if (__builtin_mul_overflow(count, weir::nccl::element_bytes(*type), &bytes) || offset > room ||
        bytes > room - offset) {
      return invalid_argument(fmt::format(
          "{}, rank {} of {}: count {} of {} bytes each at peerWinOffset {} ends beyond the window "
          "of rank {}, which has {} bytes",
          kFunction, comm.rank(), comm.rank_count(), count, weir::nccl::element_bytes(*type),
          offset, peer, room));
    }
    if (data == nullptr && count > 0) {
      return invalid_argument(
          fmt::format("{}: localbuff is NULL but count is {}", kFunction, count));
    }
    call.peer = peer;
    call.data = data;
    call.bytes = bytes;
    call.window = known->shared;
    call.offset = offset;
    call.signal = static_cast<uint32_t>(signal);
    call.context = static_cast<uint32_t>(context);
    return {};
  });
}

ncclResult_t weir::nccl::own::Signal(int peer, int signal, int context, unsigned int flags,
                                     ncclComm_t handle, cudaStream_t stream) {
  constexpr const char* kFunction = "ncclSignal";
  return enqueue(kFunction, handle, stream, [&](Comm& comm, OneSidedCall& call) -> Outcome {
    Outcome outcome = check_peer(kFunction, comm, *call.state, peer, signal, context);
    if (outcome.ok()) outcome = check_flags(kFunction, flags);
    call.peer = peer;
    call.signal = static_cast<uint32_t>(signal);
    call.context = static_cast<uint32_t>(context);
    return outcome;
  });
}

ncclResult_t weir::nccl::own::WaitSignal(int count, ncclWaitSignalDesc_t* descriptors,
                                         ncclComm_t handle, cudaStream_t stream) {
  constexpr const char* kFunction = "ncclWaitSignal";
  return enqueue(kFunction, handle, stream, [&](Comm& comm, OneSidedCall& call) -> Outcome {
    if (count < 0) return invalid_argument(fmt::format("{}: nDesc is {}", kFunction, count));
    if (descriptors == nullptr && count > 0) {
      return invalid_argument(
          fmt::format("{}: signalDescs is NULL but nDesc is {}", kFunction, count));
    }
    call.wait = true;
    for (int i = 0; i < count; ++i) {
      const ncclWaitSignalDesc_t& one = descriptors[i];
      Outcome outcome = check_peer(kFunction, comm, *call.state, one.peer, one.sigIdx, one.ctx);
      if (!outcome.ok()) {
        return {outcome.code, fmt::format("{} (signalDescs[{}])", outcome.text, i)};
      }
      if (one.opCnt < 0) {
        return invalid_argument(
            fmt::format("{}: signalDescs[{}].opCnt is {}", kFunction, i, one.opCnt));
      }
      weir::nccl::add_awaited(&call.awaited,
                              {one.peer, static_cast<uint32_t>(one.sigIdx),
                               static_cast<uint32_t>(one.ctx), static_cast<uint64_t>(one.opCnt)});
    }
    return {};
  });
}
