// SPDX-License-Identifier: Apache-2.0
// Operation: a collective or message as the caller requested it, checked and not yet started. It
// holds everything that it needs: a group may run it after the reduction that it names has been
// destroyed.
//
// `start` runs it on Weir's engine, on host memory and without regard to the stream;
// stream/enqueue.h puts it on its stream.
//
// A value; not thread-safe.
#pragma once

#include <memory>
#include <optional>

#include "nccl/base/outcome.h"
#include "nccl/comm/comm.h"
#include "nccl/host/options.h"
#include "weir/nccl.h"
#include "weir/weir.h"

namespace weir::nccl {

enum class OperationKind : uint8_t {
  kAllReduce,
  kReduce,
  kBroadcast,
  kReduceScatter,
  kAllGather,
  kAllToAll,
  kGather,
  kScatter,
  kSend,
  kRecv,
  kOneSided,  // a put, a signal or a wait for signals: one_sided.h
};

constexpr bool is_reduction(OperationKind kind) {
  return kind == OperationKind::kAllReduce || kind == OperationKind::kReduce ||
         kind == OperationKind::kReduceScatter;
}
constexpr bool is_message(OperationKind kind) {
  return kind == OperationKind::kSend || kind == OperationKind::kRecv;
}

struct OneSidedCall;

struct Operation {
  const char* function = "";
  OperationKind kind = OperationKind::kAllReduce;
  std::shared_ptr<Comm> comm;
  const void* send = nullptr;
  void* recv = nullptr;
  size_t count = 0;
  weir_datatype_t type = WEIR_FLOAT32;
  weir_redop_t op = WEIR_SUM;
  std::optional<Factor> factor;  // a pre-multiplied sum instead of `op`
  int peer = 0;                  // or the root
  int device = -1;               // of a message that the transport takes there; else -1
  cudaStream_t stream = nullptr;
  CallOptions options;
  std::shared_ptr<OneSidedCall> one_sided;  // of kOneSided; then only `comm` is used besides
  bool in_stream_order = false;
  // Of a captured call, on the stand-in: CUDA knew the buffer, so that it must know it at a launch.
  bool cuda_has_send = false;
  bool cuda_has_recv = false;
  // CUDA's, on the communicator's device: of a default `stream`; of any, in a thread without one.
  void* context = nullptr;
  // Recorded in the stream once the operation has begun there; nullptr: none.
  cudaEvent_t launch_event = nullptr;
};

// The arguments of a call.
struct Arguments {
  const char* function;
  OperationKind kind;
  ncclComm_t comm;
  const void* send;
  void* recv;
  size_t count;
  ncclDataType_t type;
  ncclRedOp_t op;
  int peer;
  cudaStream_t stream;
  const ncclCollConfig_t* config;
};

// Checks what can be checked on this rank alone.
Outcome check(const Arguments& arguments, Operation* operation);

// Starts it; with request == nullptr, runs it to its end.
Outcome start(const Operation& operation, weir_request_t* request);
// A wait for signals has no request: `finish` runs it, after all operations of the group have been
// started.
bool waits_for_signals(const Operation& operation);
Outcome finish(const Operation& operation);

}  // namespace weir::nccl
