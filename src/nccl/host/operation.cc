// SPDX-License-Identifier: Apache-2.0
#include "nccl/host/operation.h"

#include <fmt/format.h>

#include <string_view>

#include "api/handles.h"
#include "core/base/types.h"
#include "nccl/api/translate.h"
#include "nccl/base/texts.h"
#include "nccl/host/buffers.h"
#include "nccl/host/one_sided.h"

namespace weir::nccl {

namespace {

constexpr size_t kBytesMax = size_t{1} << 57;  // beyond any processor's address space

bool reduces(OperationKind kind) {
  return kind == OperationKind::kAllReduce || kind == OperationKind::kReduce ||
         kind == OperationKind::kReduceScatter;
}

// Operations with a root.
bool has_root(OperationKind kind) {
  return kind == OperationKind::kReduce || kind == OperationKind::kBroadcast ||
         kind == OperationKind::kGather || kind == OperationKind::kScatter;
}

// The buffers that this rank uses; the others may be NULL.
struct Uses {
  bool send;
  bool recv;
};

Uses uses_of(OperationKind kind, bool at_root) {
  switch (kind) {
    case OperationKind::kReduce:
    case OperationKind::kGather:
      return {true, at_root};
    case OperationKind::kBroadcast:
    case OperationKind::kScatter:
      return {at_root, true};
    case OperationKind::kSend:
      return {true, false};
    case OperationKind::kRecv:
      return {false, true};
    default:
      return {true, true};
  }
}

// Blocks of `count` elements in the larger buffer.
size_t block_count(OperationKind kind, int rank_count) {
  switch (kind) {
    case OperationKind::kReduceScatter:
    case OperationKind::kAllGather:
    case OperationKind::kAllToAll:
    case OperationKind::kGather:
    case OperationKind::kScatter:
      return static_cast<size_t>(rank_count);
    default:
      return 1;
  }
}

std::string_view told(weir_datatype_t type) {
  return argument_of_nccl(name_of(static_cast<DataType>(type)));
}

Outcome wrong(const Arguments& a, const Comm& comm, const std::string& what) {
  return invalid_argument(
      fmt::format("{}, rank {} of {}: {}", a.function, comm.rank(), comm.rank_count(), what));
}

weir_result_t call(const Operation& o, weir_comm_t comm, weir_redop_t op, weir_request_t* request) {
  switch (o.kind) {
    case OperationKind::kAllReduce:
      return weir_all_reduce(comm, o.send, o.recv, o.count, o.type, op, request);
    case OperationKind::kReduce:
      return weir_reduce(comm, o.send, o.recv, o.count, o.type, op, o.peer, request);
    case OperationKind::kBroadcast:
      return weir_broadcast(comm, o.send, o.recv, o.count, o.type, o.peer, request);
    case OperationKind::kReduceScatter:
      return weir_reduce_scatter(comm, o.send, o.recv, o.count, o.type, op, request);
    case OperationKind::kAllGather:
      return weir_all_gather(comm, o.send, o.recv, o.count, o.type, request);
    case OperationKind::kAllToAll:
      return weir_all_to_all(comm, o.send, o.recv, o.count, o.type, request);
    case OperationKind::kGather:
      return weir_gather(comm, o.send, o.recv, o.count, o.type, o.peer, request);
    case OperationKind::kScatter:
      return weir_scatter(comm, o.send, o.recv, o.count, o.type, o.peer, request);
    case OperationKind::kSend:
      return o.device < 0 ? weir_send(comm, o.send, o.count, o.type, o.peer, request)
                          : device_message(true, comm, const_cast<void*>(o.send), o.count, o.type,
                                           o.peer, o.device, request);
    case OperationKind::kRecv:
      return o.device < 0
                 ? weir_recv(comm, o.recv, o.count, o.type, o.peer, request)
                 : device_message(false, comm, o.recv, o.count, o.type, o.peer, o.device, request);
    case OperationKind::kOneSided:
      break;
  }
  return WEIR_ERROR_INTERNAL;
}

}  // namespace

Outcome check(const Arguments& a, Operation* operation) {
  Outcome outcome = check_call_config(a.function, a.config);
  if (outcome.ok() && a.config != nullptr) {
    outcome = read_options(a.function, a.config->ext, &operation->options);
  }
  if (!outcome.ok()) return outcome;
  std::shared_ptr<Comm> comm = find(a.comm);
  if (comm == nullptr) return no_such_handle(a.function, a.comm);
  outcome = comm->ready(a.function);
  if (!outcome.ok()) return outcome;

  const auto type = to_weir(a.type);
  if (!type.has_value()) {
    return wrong(
        a, *comm,
        fmt::format("datatype {} is none of 0 to {}", static_cast<int>(a.type), ncclNumTypes - 1));
  }
  if (reduces(a.kind)) {
    if (const auto op = to_weir(a.op); op.has_value()) {
      operation->op = *op;
    } else {
      operation->factor = comm->factor(a.op);
      if (!operation->factor.has_value()) {
        return wrong(a, *comm,
                     fmt::format("reduction op {} is neither one of 0 to {} nor made by "
                                 "ncclRedOpCreatePreMulSum on this communicator",
                                 static_cast<int>(a.op), ncclNumOps - 1));
      }
      if (operation->factor->type != *type) {
        return wrong(
            a, *comm,
            fmt::format("reduction op {} was made for {}, the data are {}", static_cast<int>(a.op),
                        told(operation->factor->type), told(*type)));
      }
    }
  }
  const int n = comm->rank_count();
  if ((has_root(a.kind) || is_message(a.kind)) && (a.peer < 0 || a.peer >= n)) {
    return wrong(a, *comm,
                 fmt::format("{} {} is not a rank of the communicator, whose ranks are 0 to {}",
                             is_message(a.kind) ? "peer" : "root", a.peer, n - 1));
  }
  size_t bytes = 0;
  if (__builtin_mul_overflow(a.count, element_bytes(*type) * block_count(a.kind, n), &bytes) ||
      bytes > kBytesMax) {
    return wrong(a, *comm, fmt::format("count {} exceeds the address space", a.count));
  }
  const Uses uses = uses_of(a.kind, comm->rank() == a.peer);
  const bool one_buffer = std::string_view(a.function) == "ncclBcast";
  if (a.count > 0 && uses.send && a.send == nullptr) {
    return wrong(
        a, *comm,
        fmt::format("{} is NULL but count is {}", one_buffer ? "buff" : "sendbuff", a.count));
  }
  if (a.count > 0 && uses.recv && a.recv == nullptr) {
    return wrong(
        a, *comm,
        fmt::format("{} is NULL but count is {}", one_buffer ? "buff" : "recvbuff", a.count));
  }

  operation->function = a.function;
  operation->kind = a.kind;
  operation->comm = std::move(comm);
  operation->send = a.send;
  operation->recv = a.recv;
  operation->count = a.count;
  operation->type = *type;
  operation->peer = a.peer;
  operation->stream = a.stream;
  operation->launch_event = launch_event_of(a.config);
  // In this order: a buffer that is too short may end in the other one.
  outcome = check_buffers(*operation);
  return outcome.ok() ? check_overlap(*operation) : outcome;
}

namespace {

// Starts it on `weir`, or runs it to its end.
Outcome run_on(weir_comm_t weir, const Operation& operation, weir_request_t* request) {
  const Comm& comm = *operation.comm;
  if (!operation.factor.has_value()) {
    return comm.outcome(operation.function, call(operation, weir, operation.op, request));
  }
  const Factor& factor = *operation.factor;
  weir_redop_t op = 0;
  const weir_result_t made = weir_redop_create_premul_sum(
      weir, factor.device_scalar != nullptr ? factor.device_scalar : factor.value, factor.type,
      &op);
  if (made != WEIR_OK) return comm.outcome(operation.function, made);
  Outcome outcome = comm.outcome(operation.function, call(operation, weir, op, request));
  // The operation has copied it.
  if (const weir_result_t gone = weir_redop_destroy(weir, op); gone != WEIR_OK && outcome.ok()) {
    return comm.outcome(operation.function, gone);
  }
  return outcome;
}

// A deadline belongs to the communicator and applies to operations that start from then on.
Outcome run_with_deadline(weir_comm_t weir, const Operation& operation, weir_request_t* request) {
  const Comm& comm = *operation.comm;
  weir_request_t own = nullptr;
  Outcome outcome =
      comm.outcome(operation.function, weir_comm_set_timeout(weir, operation.options.timeout_ms));
  if (!outcome.ok()) return outcome;
  outcome = run_on(weir, operation, request != nullptr ? request : &own);
  const weir_result_t reset = weir_comm_set_timeout(weir, comm.config().timeout_ms());
  if (outcome.ok() && own != nullptr) {
    outcome = comm.outcome(operation.function, weir_wait(&own));
  }
  return outcome.ok() ? comm.outcome(operation.function, reset) : outcome;
}

}  // namespace

Outcome start(const Operation& operation, weir_request_t* request) {
  const Comm& comm = *operation.comm;
  if (operation.kind == OperationKind::kOneSided) {
    const OneSidedCall& one_sided = *operation.one_sided;
    if (!one_sided.wait) {
      return one_sided.state->put(operation.function, comm, one_sided, request);
    }
    return request == nullptr ? finish(operation) : Outcome();
  }
  const CallOptions& options = operation.options;
  weir_comm_t weir = options.need_sibling() ? comm.sibling(options.sibling()) : comm.weir();
  return options.timeout_ms > 0 ? run_with_deadline(weir, operation, request)
                                : run_on(weir, operation, request);
}

bool waits_for_signals(const Operation& operation) {
  return operation.kind == OperationKind::kOneSided && operation.one_sided->wait;
}

Outcome finish(const Operation& operation) {
  const OneSidedCall& one_sided = *operation.one_sided;
  return one_sided.state->wait(operation.function, *operation.comm, one_sided);
}

}  // namespace weir::nccl
