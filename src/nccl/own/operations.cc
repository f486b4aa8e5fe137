// SPDX-License-Identifier: Apache-2.0
// nccl.h: collectives, messages, groups and reductions with a factor.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "nccl/api/own.h"
#include "nccl/api/translate.h"
#include "nccl/base/outcome.h"
#include "nccl/comm/comm.h"
#include "nccl/comm/config.h"
#include "nccl/host/operation.h"
#include "nccl/own/group.h"

using weir::nccl::Arguments;
using weir::nccl::Operation;
using weir::nccl::Outcome;
using weir::nccl::Setup;

namespace {

ncclResult_t enqueue(const Arguments& arguments) noexcept {
  try {
    Operation operation;
    const Outcome outcome = weir::nccl::check(arguments, &operation);
    if (!outcome.ok()) {
      return weir::nccl::refuse(outcome, weir::nccl::find(arguments.comm).get());
    }
    const bool connects = operation.options.need_sibling() &&
                          operation.comm->sibling(operation.options.sibling()) == nullptr;
    if (!connects) return weir::nccl::submit(std::move(operation));
    // Calls that make communicators precede the operations of a group.
    Setup setup;
    setup.function = arguments.function;
    setup.parent = operation.comm;
    setup.work = [function = arguments.function, comm = operation.comm,
                  options = operation.options] {
      return weir::nccl::make_sibling(function, *comm, options);
    };
    weir::nccl::group_start();
    (void)weir::nccl::submit(std::move(setup));
    (void)weir::nccl::submit(std::move(operation));
    return weir::nccl::group_end();
  } catch (...) {
    return weir::nccl::report(
        weir::nccl::outcome_of_exception(arguments.function, std::current_exception()));
  }
}

}  // namespace

// ---- Collectives --------------------------------------------------------------------------------

ncclResult_t weir::nccl::own::AllReduceConfig(const void* send, void* recv, size_t count,
                                              ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                                              cudaStream_t stream, const ncclCollConfig_t* config) {
  return enqueue({"ncclAllReduce", OperationKind::kAllReduce, comm, send, recv, count, type, op, 0,
                  stream, config});
}

ncclResult_t weir::nccl::own::ReduceConfig(const void* send, void* recv, size_t count,
                                           ncclDataType_t type, ncclRedOp_t op, int root,
                                           ncclComm_t comm, cudaStream_t stream,
                                           const ncclCollConfig_t* config) {
  return enqueue({"ncclReduce", OperationKind::kReduce, comm, send, recv, count, type, op, root,
                  stream, config});
}

ncclResult_t weir::nccl::own::BroadcastConfig(const void* send, void* recv, size_t count,
                                              ncclDataType_t type, int root, ncclComm_t comm,
                                              cudaStream_t stream, const ncclCollConfig_t* config) {
  return enqueue({"ncclBroadcast", OperationKind::kBroadcast, comm, send, recv, count, type,
                  ncclSum, root, stream, config});
}

ncclResult_t weir::nccl::own::ReduceScatterConfig(const void* send, void* recv, size_t count,
                                                  ncclDataType_t type, ncclRedOp_t op,
                                                  ncclComm_t comm, cudaStream_t stream,
                                                  const ncclCollConfig_t* config) {
  return enqueue({"ncclReduceScatter", OperationKind::kReduceScatter, comm, send, recv, count, type,
                  op, 0, stream, config});
}

ncclResult_t weir::nccl::own::AllGatherConfig(const void* send, void* recv, size_t count,
                                              ncclDataType_t type, ncclComm_t comm,
                                              cudaStream_t stream, const ncclCollConfig_t* config) {
  return enqueue({"ncclAllGather", OperationKind::kAllGather, comm, send, recv, count, type,
                  ncclSum, 0, stream, config});
}

ncclResult_t weir::nccl::own::AlltoAllConfig(const void* send, void* recv, size_t count,
                                             ncclDataType_t type, ncclComm_t comm,
                                             cudaStream_t stream, const ncclCollConfig_t* config) {
  return enqueue({"ncclAlltoAll", OperationKind::kAllToAll, comm, send, recv, count, type, ncclSum,
                  0, stream, config});
}

ncclResult_t weir::nccl::own::GatherConfig(const void* send, void* recv, size_t count,
                                           ncclDataType_t type, int root, ncclComm_t comm,
                                           cudaStream_t stream, const ncclCollConfig_t* config) {
  return enqueue({"ncclGather", OperationKind::kGather, comm, send, recv, count, type, ncclSum,
                  root, stream, config});
}

ncclResult_t weir::nccl::own::ScatterConfig(const void* send, void* recv, size_t count,
                                            ncclDataType_t type, int root, ncclComm_t comm,
                                            cudaStream_t stream, const ncclCollConfig_t* config) {
  return enqueue({"ncclScatter", OperationKind::kScatter, comm, send, recv, count, type, ncclSum,
                  root, stream, config});
}

ncclResult_t weir::nccl::own::AllReduce(const void* send, void* recv, size_t count,
                                        ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                                        cudaStream_t stream) {
  return enqueue({"ncclAllReduce", OperationKind::kAllReduce, comm, send, recv, count, type, op, 0,
                  stream, nullptr});
}

ncclResult_t weir::nccl::own::Reduce(const void* send, void* recv, size_t count,
                                     ncclDataType_t type, ncclRedOp_t op, int root, ncclComm_t comm,
                                     cudaStream_t stream) {
  return enqueue({"ncclReduce", OperationKind::kReduce, comm, send, recv, count, type, op, root,
                  stream, nullptr});
}

ncclResult_t weir::nccl::own::Broadcast(const void* send, void* recv, size_t count,
                                        ncclDataType_t type, int root, ncclComm_t comm,
                                        cudaStream_t stream) {
  return enqueue({"ncclBroadcast", OperationKind::kBroadcast, comm, send, recv, count, type,
                  ncclSum, root, stream, nullptr});
}

ncclResult_t weir::nccl::own::Bcast(void* buffer, size_t count, ncclDataType_t type, int root,
                                    ncclComm_t comm, cudaStream_t stream) {
  return enqueue({"ncclBcast", OperationKind::kBroadcast, comm, buffer, buffer, count, type,
                  ncclSum, root, stream, nullptr});
}

ncclResult_t weir::nccl::own::ReduceScatter(const void* send, void* recv, size_t count,
                                            ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                                            cudaStream_t stream) {
  return enqueue({"ncclReduceScatter", OperationKind::kReduceScatter, comm, send, recv, count, type,
                  op, 0, stream, nullptr});
}

ncclResult_t weir::nccl::own::AllGather(const void* send, void* recv, size_t count,
                                        ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  return enqueue({"ncclAllGather", OperationKind::kAllGather, comm, send, recv, count, type,
                  ncclSum, 0, stream, nullptr});
}

ncclResult_t weir::nccl::own::AlltoAll(const void* send, void* recv, size_t count,
                                       ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  return enqueue({"ncclAlltoAll", OperationKind::kAllToAll, comm, send, recv, count, type, ncclSum,
                  0, stream, nullptr});
}

ncclResult_t weir::nccl::own::Gather(const void* send, void* recv, size_t count,
                                     ncclDataType_t type, int root, ncclComm_t comm,
                                     cudaStream_t stream) {
  return enqueue({"ncclGather", OperationKind::kGather, comm, send, recv, count, type, ncclSum,
                  root, stream, nullptr});
}

ncclResult_t weir::nccl::own::Scatter(const void* send, void* recv, size_t count,
                                      ncclDataType_t type, int root, ncclComm_t comm,
                                      cudaStream_t stream) {
  return enqueue({"ncclScatter", OperationKind::kScatter, comm, send, recv, count, type, ncclSum,
                  root, stream, nullptr});
}

// ---- Messages -----------------------------------------------------------------------------------

ncclResult_t weir::nccl::own::Send(const void* send, size_t count, ncclDataType_t type, int peer,
                                   ncclComm_t comm, cudaStream_t stream) {
  return enqueue({"ncclSend", OperationKind::kSend, comm, send, nullptr, count, type, ncclSum, peer,
                  stream, nullptr});
}

ncclResult_t weir::nccl::own::Recv(void* recv, size_t count, ncclDataType_t type, int peer,
                                   ncclComm_t comm, cudaStream_t stream) {
  return enqueue({"ncclRecv", OperationKind::kRecv, comm, nullptr, recv, count, type, ncclSum, peer,
                  stream, nullptr});
}

// ---- Groups -------------------------------------------------------------------------------------

ncclResult_t weir::nccl::own::GroupStart(void) {
  weir::nccl::group_start();
  return ncclSuccess;
}

ncclResult_t weir::nccl::own::GroupEnd(void) {
  try {
    return weir::nccl::group_end();
  } catch (...) {
    return weir::nccl::report(
        weir::nccl::outcome_of_exception("ncclGroupEnd", std::current_exception()));
  }
}

ncclResult_t weir::nccl::own::GroupSimulateEnd(ncclSimInfo_t* info) {
  return guarded("ncclGroupSimulateEnd", [&]() -> Outcome {
    Outcome outcome = weir::nccl::check_sim_info("ncclGroupSimulateEnd", info);
    if (!outcome.ok()) return outcome;
    outcome = weir::nccl::group_drop("ncclGroupSimulateEnd");
    // No estimate, like NCCL's for what it cannot simulate.
    if (outcome.ok() && info != nullptr) info->estimatedTime = NCCL_UNDEF_FLOAT;
    return outcome;
  });
}

// ---- Reductions with a factor -------------------------------------------------------------------

ncclResult_t weir::nccl::own::RedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar,
                                                   ncclDataType_t datatype,
                                                   ncclScalarResidence_t residence,
                                                   ncclComm_t handle) {
  constexpr const char* kFunction = "ncclRedOpCreatePreMulSum";
  return weir::nccl::with_comm(kFunction, handle, [&](Comm& comm) -> Outcome {
    Outcome outcome = comm.ready(kFunction);
    if (!outcome.ok()) return outcome;
    if (op == nullptr) return invalid_argument(fmt::format("{}: op is NULL", kFunction));
    if (scalar == nullptr) return invalid_argument(fmt::format("{}: scalar is NULL", kFunction));
    const auto type = weir::nccl::to_weir(datatype);
    if (!type.has_value()) {
      return invalid_argument(fmt::format("{}: datatype {} is none of 0 to {}", kFunction,
                                          static_cast<int>(datatype), ncclNumTypes - 1));
    }
    Factor factor;
    factor.type = *type;
    if (residence == ncclScalarDevice) {
      factor.device_scalar = scalar;
    } else if (residence == ncclScalarHostImmediate) {
      std::memcpy(factor.value, scalar, weir::nccl::element_bytes(*type));
    } else {
      return invalid_argument(
          fmt::format("{}: residence {} is neither ncclScalarDevice nor ncclScalarHostImmediate",
                      kFunction, static_cast<int>(residence)));
    }
    return comm.create_factor(kFunction, factor, op);
  });
}

ncclResult_t weir::nccl::own::RedOpDestroy(ncclRedOp_t op, ncclComm_t handle) {
  constexpr const char* kFunction = "ncclRedOpDestroy";
  return weir::nccl::with_comm(
      kFunction, handle, [&](Comm& comm) -> Outcome { return comm.destroy_factor(kFunction, op); });
}
