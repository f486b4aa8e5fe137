// SPDX-License-Identifier: Apache-2.0
// The way of a call: to Weir's own function or to the real NCCL's, by its communicator. A handle of
// the real library that was seen before is known by one comparison, so that a forwarded call is that
// and a jump; others are looked up among Weir's handles, then by the mark with which NCCL's begin.
//
// A nonblocking communicator has to have a handle before the ranks have agreed on its way: it keeps
// Weir's handle, which stands for the real one and is known by one more comparison.
//
// Thread-safe; no lock on the way of a known handle.
#pragma once

#include <atomic>
#include <cstdint>

#include "nccl/functions.h"

namespace weir::nccl {

namespace route_state {
inline constexpr uintptr_t kSlotCount = 1024;
inline constexpr uintptr_t kWayCount = 4;  // slots that a handle may take
// Known handles of the real library, with the lowest bit set; 0: free.
inline std::atomic<uintptr_t> known[kSlotCount];
// Set before a slot is taken.
inline const Table* real_table = nullptr;

inline uintptr_t slot_of(ncclComm_t comm) {
  const auto bits = reinterpret_cast<uintptr_t>(comm);
  return ((bits >> 4) ^ (bits >> 14)) % kSlotCount;
}
inline uintptr_t tagged(ncclComm_t comm) { return reinterpret_cast<uintptr_t>(comm) | 1; }
}  // namespace route_state

struct Route {
  const Table* table;  // whose functions to call
  ncclComm_t comm;     // and with what: the real handle, where one of Weir's stands for it
};

Route route_unknown(ncclComm_t comm);

inline Route route(ncclComm_t comm) {
  using namespace route_state;
  if (known[slot_of(comm)].load(std::memory_order_acquire) == tagged(comm)) [[likely]] {
    return {real_table, comm};
  }
  return route_unknown(comm);
}

// The same before the call that ends the communicator: a handle of the real library is not known any
// more, and one of Weir's that stands for it is closed.
Route leave_route(ncclComm_t comm);

// The kernel reads for us, since the address may be anything. False where there is no memory.
bool read_word(const void* address, uint64_t* word);
// Whether `comm`, which may be no communicator at all, begins as the real NCCL's do.
bool has_mark_of_nccl(ncclComm_t comm);

void publish_real_table(const Table* real);

}  // namespace weir::nccl
