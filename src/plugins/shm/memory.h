// SPDX-License-Identifier: Apache-2.0
// Unnamed shared memory: a sealed memfd, and its mapping. Nothing of it has a name in a file
// system, so that nothing stays behind however a process ends, and a small /dev/shm does not limit
// it. Thread-safe (no state).
#pragma once

#include <stdint.h>

#include "plugins/shm/report.h"

namespace weir::plugins::shm {

inline constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;

struct Mapping {
  unsigned char* base = nullptr;
  uint64_t bytes = 0;
  int32_t numa_node = -1;  // of this rank's part, where it is known
};

uint64_t page_bytes();

// Size of one rank's part: whole pages, whole huge pages from 2 MiB up. 0 when it would overflow.
uint64_t round_to_pages(uint64_t bytes);

// A memfd of `bytes` zeros and at least `end_bytes` behind them, sealed against any change of its
// size. `huge`: from the reserved huge pages when they hold all of it. The caller closes *fd.
weir_result_t create_memory(const Report& report, uint64_t bytes, uint64_t end_bytes, bool huge,
                            int* fd);

// Checks a descriptor from another process: it must be a memfd whose size cannot change, since a
// file that shrinks would kill its readers. The size goes to *bytes.
weir_result_t check_memory(const Report& report, int fd, uint64_t* bytes);

// Maps the first `bytes` bytes of a memfd that was checked. The first `huge_bytes` are advised for
// huge pages.
weir_result_t map_memory(const Report& report, int fd, uint64_t bytes, uint64_t huge_bytes,
                         Mapping* mapping);

// Maps the last `end_bytes` of a memfd of `memory_bytes` that was checked; they begin at *end.
weir_result_t map_end(const Report& report, int fd, uint64_t memory_bytes, uint64_t end_bytes,
                      Mapping* mapping, unsigned char** end);

// Asks for huge pages under `bytes` (whole huge pages) that this rank owns, now rather than at
// first touch, since most kernels never give shared memory huge pages by themselves. Takes the
// memory at once; on failure small pages serve as before. Writes nothing.
void collapse_memory(unsigned char* base, uint64_t bytes);

// Whether the kernel knows several NUMA nodes, so that memory can lie nearer or farther.
bool has_several_nodes();

// Pages under `bytes` (whole pages) of shared memory that any process touches from now on come from
// NUMA node `node` while that has memory. False: the kernel does not permit it, and nothing has
// changed.
bool prefer_node(unsigned char* base, uint64_t bytes, int32_t node);

// Unmaps and clears; an empty mapping is accepted.
void unmap_memory(Mapping* mapping);

}  // namespace weir::plugins::shm
