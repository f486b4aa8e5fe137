// SPDX-License-Identifier: Apache-2.0
// Translates Weir's collectives to NCCL's: those that NCCL has to one call, others to a group of
// calls. Numbers of types and reductions are the same in both.
#include "plugins/nccl/instance.h"

namespace weir::plugins::nccl {

namespace {

const char* at(const void* buffer, uint64_t bytes) {
  return static_cast<const char*>(buffer) + bytes;
}
char* at(void* buffer, uint64_t bytes) { return static_cast<char*>(buffer) + bytes; }

bool failed(ncclResult_t result) { return result != ncclSuccess && result != ncclInProgress; }

// Block i of a v-variant, in bytes.
struct Blocks {
  const uint64_t* counts;
  const uint64_t* displacements;
  size_t element;
  uint64_t next = 0;  // where displacements are not given

  // In the order of the ranks.
  uint64_t offset_of(uint32_t i) {
    const uint64_t begin = displacements != nullptr ? displacements[i] : next;
    next = begin + counts[i];
    return begin * element;
  }
};

}  // namespace

size_t element_bytes(int32_t type) {
  switch (type) {
    case WEIR_INT8:
    case WEIR_UINT8:
    case WEIR_FLOAT8_E4M3:
    case WEIR_FLOAT8_E5M2:
      return 1;
    case WEIR_FLOAT16:
    case WEIR_BFLOAT16:
      return 2;
    case WEIR_INT32:
    case WEIR_UINT32:
    case WEIR_FLOAT32:
      return 4;
    default:
      return 8;
  }
}

ncclResult_t Instance::enqueue(const weir_collective_call_t& call, void* stream) {
  if (call.op != WEIR_COLLECTIVE_SCALED_SUM) {
    return enqueue_in_group(call, static_cast<ncclRedOp_t>(call.op), stream);
  }
  ncclRedOp_t scaled{};
  ncclResult_t result = library_.RedOpCreatePreMulSum(&scaled, const_cast<void*>(call.scale),
                                                      static_cast<ncclDataType_t>(call.type),
                                                      ncclScalarHostImmediate, comm_);
  if (failed(result)) return result;
  result = enqueue_in_group(call, scaled, stream);
  // Operations that have been called keep what they need of it.
  const ncclResult_t destroyed = library_.RedOpDestroy(scaled, comm_);
  return failed(result) ? result : failed(destroyed) ? destroyed : result;
}

ncclResult_t Instance::enqueue_in_group(const weir_collective_call_t& call, ncclRedOp_t op,
                                        void* stream) {
  const Library& l = library_;
  const auto type = static_cast<ncclDataType_t>(call.type);
  const auto s = static_cast<cudaStream_t>(stream);
  const int root = static_cast<int>(call.root);
  switch (call.kind) {
    case WEIR_COLLECTIVE_ALL_REDUCE:
      return l.AllReduce(call.send, call.recv, call.count, type, op, comm_, s);
    case WEIR_COLLECTIVE_REDUCE:
      return l.Reduce(call.send, call.recv, call.count, type, op, root, comm_, s);
    case WEIR_COLLECTIVE_BROADCAST: {
      // On other ranks the send buffer may be NULL, or anything.
      const void* send = rank_ == call.root ? call.send : call.recv;
      return l.Broadcast(send, call.recv, call.count, type, root, comm_, s);
    }
    case WEIR_COLLECTIVE_REDUCE_SCATTER:
      return l.ReduceScatter(call.send, call.recv, call.count, type, op, comm_, s);
    case WEIR_COLLECTIVE_ALL_GATHER:
      return l.AllGather(call.send, call.recv, call.count, type, comm_, s);
    case WEIR_COLLECTIVE_ALL_TO_ALL:
      if (l.AlltoAll != nullptr)
        return l.AlltoAll(call.send, call.recv, call.count, type, comm_, s);
      break;
    case WEIR_COLLECTIVE_GATHER:
      if (l.Gather != nullptr) {
        return l.Gather(call.send, call.recv, call.count, type, root, comm_, s);
      }
      break;
    case WEIR_COLLECTIVE_SCATTER:
      if (l.Scatter != nullptr) {
        return l.Scatter(call.send, call.recv, call.count, type, root, comm_, s);
      }
      break;
    default:
      break;
  }
  ncclResult_t result = l.GroupStart();
  if (failed(result)) return result;
  const bool reduces =
      call.kind == WEIR_COLLECTIVE_REDUCE_SCATTER_V || call.kind == WEIR_COLLECTIVE_ALL_GATHER_V;
  result = reduces ? enqueue_blocks(call, op, stream) : exchange_blocks(call, stream);
  const ncclResult_t ended = l.GroupEnd();
  return failed(result) ? result : ended;
}

// One rooted operation for each block.
ncclResult_t Instance::enqueue_blocks(const weir_collective_call_t& call, ncclRedOp_t op,
                                      void* stream) {
  const auto type = static_cast<ncclDataType_t>(call.type);
  const auto s = static_cast<cudaStream_t>(stream);
  const bool gathers = call.kind == WEIR_COLLECTIVE_ALL_GATHER_V;
  Blocks blocks{call.recv_counts, call.recv_displacements, element_bytes(call.type)};
  for (uint32_t p = 0; p < rank_count_; ++p) {
    const uint64_t offset = blocks.offset_of(p);
    const uint64_t count = call.recv_counts[p];
    if (count == 0) continue;
    const int root = static_cast<int>(p);
    ncclResult_t result = ncclSuccess;
    if (gathers) {
      char* const block = at(call.recv, offset);
      result =
          library_.Broadcast(p == rank_ ? call.send : block, block, count, type, root, comm_, s);
    } else {
      result = library_.Reduce(at(call.send, offset), p == rank_ ? call.recv : nullptr, count, type,
                               op, root, comm_, s);
    }
    if (failed(result)) return result;
  }
  return ncclSuccess;
}

// A message in each direction with each rank for which there are data.
ncclResult_t Instance::exchange_blocks(const weir_collective_call_t& call, void* stream) {
  const auto type = static_cast<ncclDataType_t>(call.type);
  const auto s = static_cast<cudaStream_t>(stream);
  const size_t element = element_bytes(call.type);
  const bool at_root = rank_ == call.root;
  const bool blocks_differ = call.kind == WEIR_COLLECTIVE_ALL_TO_ALL_V;
  const bool gathers = call.kind == WEIR_COLLECTIVE_GATHER;
  const bool scatters = call.kind == WEIR_COLLECTIVE_SCATTER;
  Blocks sends{call.send_counts, call.send_displacements, element};
  Blocks recvs{call.recv_counts, call.recv_displacements, element};
  for (uint32_t p = 0; p < rank_count_; ++p) {
    const uint64_t block = call.count * element * p;
    const uint64_t send_at = blocks_differ ? sends.offset_of(p) : gathers ? 0 : block;
    const uint64_t recv_at = blocks_differ ? recvs.offset_of(p) : scatters ? 0 : block;
    const bool is_root = p == call.root;
    const uint64_t send_count = blocks_differ          ? call.send_counts[p]
                                : gathers && !is_root  ? 0
                                : scatters && !at_root ? 0
                                                       : call.count;
    const uint64_t recv_count = blocks_differ          ? call.recv_counts[p]
                                : gathers && !at_root  ? 0
                                : scatters && !is_root ? 0
                                                       : call.count;
    // In place the rank's own block lies where it must be.
    if (p == rank_ && send_count > 0 && recv_count > 0 &&
        at(call.send, send_at) == at(call.recv, recv_at)) {
      continue;
    }
    ncclResult_t result = ncclSuccess;
    const int peer = static_cast<int>(p);
    if (send_count > 0)
      result = library_.Send(at(call.send, send_at), send_count, type, peer, comm_, s);
    if (failed(result)) return result;
    if (recv_count > 0)
      result = library_.Recv(at(call.recv, recv_at), recv_count, type, peer, comm_, s);
    if (failed(result)) return result;
  }
  return ncclSuccess;
}

}  // namespace weir::plugins::nccl
