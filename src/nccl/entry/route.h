// SPDX-License-Identifier: Apache-2.0
// The route of a call, to Weir's own function or to the real NCCL's, chosen by its communicator. A
// known handle of the real library is recognized by one comparison, so that forwarding costs one
// comparison and one jump. Other handles are looked up among Weir's, then checked for the word with
// which NCCL's begin.
//
// A nonblocking communicator must have a handle before its ranks have chosen: it keeps Weir's
// handle, which stands for the real one and is recognized by one more comparison.
//
// Thread-safe; a known handle takes no lock.
#pragma once

#include <atomic>
#include <cstdint>

#include "nccl/real/backend.h"

namespace weir::nccl {

namespace route_state {
inline constexpr uintptr_t kSlotCount = 1024;
inline constexpr uintptr_t kWayCount = 4;  // slots that a handle may take
// Known handles of the real library, with the lowest bit set; 0: free.
inline std::atomic<uintptr_t> known[kSlotCount];

inline uintptr_t slot_of(ncclComm_t comm) {
  const auto bits = reinterpret_cast<uintptr_t>(comm);
  return ((bits >> 4) ^ (bits >> 14)) % kSlotCount;
}
inline uintptr_t tagged(ncclComm_t comm) { return reinterpret_cast<uintptr_t>(comm) | 1; }
}  // namespace route_state

struct Route {
  const Table* table;  // the functions to call
  ncclComm_t comm;     // the handle to pass: the real one, where one of Weir's stands for it
};

Route route_unknown(ncclComm_t comm);

inline Route route(ncclComm_t comm) {
  using namespace route_state;
  if (known[slot_of(comm)].load(std::memory_order_acquire) == tagged(comm)) [[likely]] {
    return {real_table, comm};
  }
  return route_unknown(comm);
}

// The same for the call that ends the communicator: a handle of the real library is forgotten, and
// a handle of Weir's that stands for it is closed.
Route leave_route(ncclComm_t comm);

// Whether `comm`, which may be any value, begins like the real NCCL's communicators.
bool has_mark_of_nccl(ncclComm_t comm);

}  // namespace weir::nccl
