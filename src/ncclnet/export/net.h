// SPDX-License-Identifier: Apache-2.0
// NCCL's functions over Weir's transports, shared by the tables of all versions. Each function
// returns NCCL's result, and has reported the reason of a failure to NCCL's log function. Thread
// rule: NCCL's, which is one thread at a time per connection and listener; everything else is safe
// on any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ncclnet/abi.h"

namespace weir::ncclnet {

// The plugin's state for a communicator of NCCL, from version 11 on; before, the process has one.
struct Context;

inline constexpr int kConnectionCountMax = 65536;

Result net_init(Context** context, int traffic_class, Logger log);
Result net_finalize(Context* context);
// The process's context, for versions 8 to 10; null before init.
Context* process_context();
void set_process_context(Context* context);

Result net_devices(int* count);
// The version of the properties with the most members; the others leave some out.
Result net_properties(int device, Properties<12>* properties);
Result net_join_devices(int* device, const int* members, int member_count, int member_count_max);

Result net_listen(Context* context, int device, void* handle, void** listen_comm);
Result net_connect(Context* context, int device, int traffic_class, const void* handle,
                   void** send_comm);
Result net_accept(void* listen_comm, void** recv_comm);
Result net_close_listen(void* listen_comm);
Result net_close_send(void* send_comm);
Result net_close_recv(void* recv_comm);

Result net_register(void* comm, void* data, size_t bytes, int kind, void** memory);
Result net_deregister(void* comm, void* memory);
Result net_isend(void* send_comm, void* data, size_t bytes, void** request);
Result net_irecv(void* recv_comm, int count, void** data, const size_t* bytes, void** request);
Result net_iflush(void* recv_comm, void** request);
Result net_test(void* request, int* done, int* bytes);

}  // namespace weir::ncclnet
