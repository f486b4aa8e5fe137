// SPDX-License-Identifier: Apache-2.0
// Exported: collectives, messages and one-sided operations.
#include "nccl/entry.h"

using weir::nccl::Route;
using weir::nccl::route;

ncclResult_t ncclReduce(const void* send, void* recv, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  const Route way = route(comm);
  return way.table->Reduce(send, recv, count, type, op, root, way.comm, stream);
}
WEIR_NCCL_TWIN(Reduce);

ncclResult_t ncclBcast(void* buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                       cudaStream_t stream) {
  const Route way = route(comm);
  return way.table->Bcast(buffer, count, type, root, way.comm, stream);
}
WEIR_NCCL_TWIN(Bcast);

ncclResult_t ncclBroadcast(const void* send, void* recv, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream) {
  const Route way = route(comm);
  return way.table->Broadcast(send, recv, count, type, root, way.comm, stream);
}
WEIR_NCCL_TWIN(Broadcast);

ncclResult_t ncclAllReduce(const void* send, void* recv, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  const Route way = route(comm);
  return way.table->AllReduce(send, recv, count, type, op, way.comm, stream);
}
WEIR_NCCL_TWIN(AllReduce);

ncclResult_t ncclReduceScatter(const void* send, void* recv, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  const Route way = route(comm);
  return way.table->ReduceScatter(send, recv, count, type, op, way.comm, stream);
}
WEIR_NCCL_TWIN(ReduceScatter);

ncclResult_t ncclAllGather(const void* send, void* recv, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  const Route way = route(comm);
  return way.table->AllGather(send, recv, count, type, way.comm, stream);
}
WEIR_NCCL_TWIN(AllGather);

ncclResult_t ncclAlltoAll(const void* send, void* recv, size_t count, ncclDataType_t type,
                          ncclComm_t comm, cudaStream_t stream) {
  const Route way = route(comm);
  return way.table->AlltoAll(send, recv, count, type, way.comm, stream);
}
WEIR_NCCL_TWIN(AlltoAll);

ncclResult_t ncclGather(const void* send, void* recv, size_t count, ncclDataType_t type, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  const Route way = route(comm);
  return way.table->Gather(send, recv, count, type, root, way.comm, stream);
}
WEIR_NCCL_TWIN(Gather);

ncclResult_t ncclScatter(const void* send, void* recv, size_t count, ncclDataType_t type, int root,
                         ncclComm_t comm, cudaStream_t stream) {
  const Route way = route(comm);
  return way.table->Scatter(send, recv, count, type, root, way.comm, stream);
}
WEIR_NCCL_TWIN(Scatter);

ncclResult_t ncclAllReduceConfig(const void* send, void* recv, size_t count, ncclDataType_t type,
                                 ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream,
                                 const ncclCollConfig_t* config) {
  const Route way = route(comm);
  return way.table->AllReduceConfig(send, recv, count, type, op, way.comm, stream, config);
}
WEIR_NCCL_TWIN(AllReduceConfig);

ncclResult_t ncclBroadcastConfig(const void* send, void* recv, size_t count, ncclDataType_t type,
                                 int root, ncclComm_t comm, cudaStream_t stream,
                                 const ncclCollConfig_t* config) {
  const Route way = route(comm);
  return way.table->BroadcastConfig(send, recv, count, type, root, way.comm, stream, config);
}
WEIR_NCCL_TWIN(BroadcastConfig);

ncclResult_t ncclReduceConfig(const void* send, void* recv, size_t count, ncclDataType_t type,
                              ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream,
                              const ncclCollConfig_t* config) {
  const Route way = route(comm);
  return way.table->ReduceConfig(send, recv, count, type, op, root, way.comm, stream, config);
}
WEIR_NCCL_TWIN(ReduceConfig);

ncclResult_t ncclAllGatherConfig(const void* send, void* recv, size_t count, ncclDataType_t type,
                                 ncclComm_t comm, cudaStream_t stream,
                                 const ncclCollConfig_t* config) {
  const Route way = route(comm);
  return way.table->AllGatherConfig(send, recv, count, type, way.comm, stream, config);
}
WEIR_NCCL_TWIN(AllGatherConfig);

ncclResult_t ncclReduceScatterConfig(const void* send, void* recv, size_t count,
                                     ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                                     cudaStream_t stream, const ncclCollConfig_t* config) {
  const Route way = route(comm);
  return way.table->ReduceScatterConfig(send, recv, count, type, op, way.comm, stream, config);
}
WEIR_NCCL_TWIN(ReduceScatterConfig);

ncclResult_t ncclAlltoAllConfig(const void* send, void* recv, size_t count, ncclDataType_t type,
                                ncclComm_t comm, cudaStream_t stream,
                                const ncclCollConfig_t* config) {
  const Route way = route(comm);
  return way.table->AlltoAllConfig(send, recv, count, type, way.comm, stream, config);
}
WEIR_NCCL_TWIN(AlltoAllConfig);

ncclResult_t ncclGatherConfig(const void* send, void* recv, size_t count, ncclDataType_t type,
                              int root, ncclComm_t comm, cudaStream_t stream,
                              const ncclCollConfig_t* config) {
  const Route way = route(comm);
  return way.table->GatherConfig(send, recv, count, type, root, way.comm, stream, config);
}
WEIR_NCCL_TWIN(GatherConfig);

ncclResult_t ncclScatterConfig(const void* send, void* recv, size_t count, ncclDataType_t type,
                               int root, ncclComm_t comm, cudaStream_t stream,
                               const ncclCollConfig_t* config) {
  const Route way = route(comm);
  return way.table->ScatterConfig(send, recv, count, type, root, way.comm, stream, config);
}
WEIR_NCCL_TWIN(ScatterConfig);

ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  const Route way = route(comm);
  return way.table->Send(send, count, type, peer, way.comm, stream);
}
WEIR_NCCL_TWIN(Send);

ncclResult_t ncclRecv(void* recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  const Route way = route(comm);
  return way.table->Recv(recv, count, type, peer, way.comm, stream);
}
WEIR_NCCL_TWIN(Recv);

ncclResult_t ncclPutSignal(const void* local, size_t count, ncclDataType_t type, int peer,
                           ncclWindow_t window, size_t offset, int signal, int ctx,
                           unsigned int flags, ncclComm_t comm, cudaStream_t stream) {
  const Route way = route(comm);
  return way.table->PutSignal(local, count, type, peer, window, offset, signal, ctx, flags,
                              way.comm, stream);
}
WEIR_NCCL_TWIN(PutSignal);

ncclResult_t ncclSignal(int peer, int signal, int ctx, unsigned int flags, ncclComm_t comm,
                        cudaStream_t stream) {
  const Route way = route(comm);
  return way.table->Signal(peer, signal, ctx, flags, way.comm, stream);
}
WEIR_NCCL_TWIN(Signal);

ncclResult_t ncclWaitSignal(int count, ncclWaitSignalDesc_t* signals, ncclComm_t comm,
                            cudaStream_t stream) {
  const Route way = route(comm);
  return way.table->WaitSignal(count, signals, way.comm, stream);
}
WEIR_NCCL_TWIN(WaitSignal);
