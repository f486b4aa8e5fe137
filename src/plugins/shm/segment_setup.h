// SPDX-License-Identifier: Apache-2.0
// Segment setup: how the ranks of one communicator come to map the same memory. Rank 0 makes a
// memfd and offers it over the control network; each other rank fetches it from its parent in the
// binomial tree (its own number without the highest bit), offers it on, and maps it. The last page
// or pages of the memfd are for the setup itself. There each rank reports that it has arrived and
// that it has mapped the memory, or why it cannot; in that case all ranks return that error.
//
//   offset  bytes  of these pages
//        0      8  magic
//        8      8  bytes that rank 0 asks for, without these pages
//       16      4  rank count
//       20      4  futex: ranks that have mapped the memory; bit 31: not all will
//       24      4  1 + the rank that tells why, from before it writes
//       28      4  weir_result_t
//       32    768  text
//      800      1  per rank: Stage
//
// What other ranks wrote is compared or shown, never used as an index. Every wait ends at the
// deadline, or half a second later where another rank is about to tell why. One thread at a time
// per Party.
#pragma once

#include <stdint.h>

#include "plugins/shm/memory.h"
#include "plugins/shm/report.h"

namespace weir::plugins::shm {

inline constexpr uint32_t kKeyBytes = WEIR_CONTROL_KEY_BYTES;

// The state that all calls of one instance share.
struct Party {
  Report report;
  uint32_t rank = 0;
  uint32_t rank_count = 0;
  // The key of a call that failed: it stays offered, so that ranks that arrive later learn why.
  unsigned char offered[kKeyBytes] = {};
  bool offers = false;
};

// Zeroed memory that all ranks map; `huge_bytes` of it from the start are worth huge pages. The
// part of each rank is at rank * part_bytes, on its NUMA node where that is given. With
// `collapses`, each rank asks at once for the huge pages of its part, so that they lie near it.
struct Wanted {
  uint64_t bytes = 0;
  uint64_t huge_bytes = 0;
  uint64_t part_bytes = 0;
  bool collapses = false;
  int32_t numa_node = -1;
};

// Collective. `key` names the call and is the same on all ranks. Errors: kTimeout, which names the
// ranks that are missing; kPeerLost; kMismatch (another size); errors of the system or of
// weir_host_t::look.
weir_result_t share_memory(Party* party, const unsigned char* key, const Wanted& wanted,
                           uint64_t deadline_ns, Mapping* mapping);

}  // namespace weir::plugins::shm
