// SPDX-License-Identifier: Apache-2.0
#include "nccl/host/slices.h"

#include <algorithm>

#include "nccl/api/translate.h"

namespace weir::nccl {

namespace {

// Of one slice between the device and the host, on whichever rank has most of them.
size_t copies_max(OperationKind kind, size_t n) {
  switch (kind) {
    case OperationKind::kAllToAll:
      return 2 * n;
    case OperationKind::kReduceScatter:
    case OperationKind::kAllGather:
    case OperationKind::kGather:
    case OperationKind::kScatter:
      return n + 1;
    default:
      return 2;
  }
}

}  // namespace

Cut cut(const Operation& operation, uint64_t chunk_bytes) {
  const auto n = static_cast<size_t>(operation.comm->rank_count());
  const bool root = operation.comm->rank() == operation.peer;
  Cut it;
  it.larger_blocks = n;
  switch (operation.kind) {
    case OperationKind::kAllReduce:
      it.send_blocks = it.recv_blocks = it.larger_blocks = 1;
      break;
    case OperationKind::kReduce:
      it.send_blocks = it.larger_blocks = 1;
      it.recv_blocks = root ? 1 : 0;
      break;
    case OperationKind::kBroadcast:
      it.send_blocks = root ? 1 : 0;
      it.recv_blocks = it.larger_blocks = 1;
      break;
    case OperationKind::kReduceScatter:
      it.send_blocks = n;
      it.recv_blocks = 1;
      break;
    case OperationKind::kAllGather:
      it.send_blocks = 1;
      it.recv_blocks = n;
      break;
    case OperationKind::kAllToAll:
      it.send_blocks = it.recv_blocks = n;
      break;
    case OperationKind::kGather:
      it.send_blocks = 1;
      it.recv_blocks = root ? n : 0;
      break;
    case OperationKind::kScatter:
      it.send_blocks = root ? n : 0;
      it.recv_blocks = 1;
      break;
    case OperationKind::kOneSided:
      it.larger_blocks = 1;
      break;
    case OperationKind::kSend:
      it.send_blocks = it.larger_blocks = 1;
      break;
    case OperationKind::kRecv:
      it.recv_blocks = it.larger_blocks = 1;
      break;
  }
  it.element_bytes = element_bytes(operation.type);
  it.width = operation.count;
  if (chunk_bytes == 0 || operation.count == 0) return it;
  const size_t fits = std::max<size_t>(1, chunk_bytes / (it.element_bytes * it.larger_blocks));
  const size_t slices_max = std::max<size_t>(1, kCallsMax / (2 + copies_max(operation.kind, n)));
  const size_t least = (operation.count + slices_max - 1) / slices_max;
  it.width = std::min(operation.count, std::max(fits, least));
  it.slice_count = (operation.count + it.width - 1) / it.width;
  return it;
}

}  // namespace weir::nccl
