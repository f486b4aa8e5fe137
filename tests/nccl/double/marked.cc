// SPDX-License-Identifier: Apache-2.0
// Operations that show who worked: an all-reduce of ints on memory of the host, without the other
// ranks.
#include "nccl/double/nccl_double.h"
#include "nccl/double/work.h"

namespace nccl_double {

ncclResult_t write_place(char*, size_t) { return ncclSuccess; }
ncclResult_t begin_work(Comm&, const char*, const ncclConfig_t*) { return ncclSuccess; }
ncclResult_t state_of_work(Comm&) { return ncclSuccess; }
void abort_work(Comm&) {}
void end_work(Comm&) {}
ncclResult_t start_group() { return ncclSuccess; }

}  // namespace nccl_double

// With DOUBLE_NESTS=1 it calls another export of its own by name, as NCCL's does.
DOUBLE_API ncclResult_t ncclBcast(void* memory, size_t count, ncclDataType_t type, int root,
                                  ncclComm_t comm, cudaStream_t stream) {
  nccl_double_note(__func__);
  if (nccl_double::number("DOUBLE_NESTS") != 1) return ncclSuccess;
  return ncclBroadcast(memory, memory, count, type, root, comm, stream);
}

DOUBLE_API ncclResult_t ncclAllReduce(const void*, void* recv, size_t count, ncclDataType_t type,
                                      ncclRedOp_t, ncclComm_t handle, cudaStream_t) {
  nccl_double_note(__func__);
  const nccl_double::Comm& comm = nccl_double::comm_of(handle);
  if (comm.mark != nccl_double::kMark) {
    return nccl_double::fail(ncclInvalidArgument, "double: corrupted comm object");
  }
  if (type != ncclInt) return nccl_double::fail(ncclInvalidArgument, "double: only ints");
  for (size_t i = 0; i < count; ++i) static_cast<int*>(recv)[i] = NCCL_DOUBLE_SUM + comm.rank;
  nccl_double::count_operation();
  return ncclSuccess;
}
