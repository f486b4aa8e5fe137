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
};

uint64_t page_bytes();

// Size of one rank's part: whole pages, whole huge pages from 2 MiB up. 0 when it would overflow.
uint64_t round_to_pages(uint64_t bytes);

// A memfd of `bytes` zeros, sealed against any change of its size. `huge`: from the reserved huge
// pages when they hold all of it. The caller closes *fd.
weir_result_t create_memory(const Report& report, uint64_t bytes, bool huge, int* fd);

// Maps all of a memfd that another process may have made: size and seals are checked first, since
// a file that shrinks would kill its readers. The first `huge_bytes` are advised for huge pages.
weir_result_t map_memory(const Report& report, int fd, uint64_t bytes, uint64_t huge_bytes,
                         Mapping* mapping);

// Asks for huge pages under `bytes` (whole huge pages) that this rank owns, now rather than at
// first touch, since most kernels never give shared memory huge pages by themselves. Takes the
// memory at once; on failure small pages serve as before. Writes nothing.
void collapse_memory(unsigned char* base, uint64_t bytes);

// Unmaps and clears; an empty mapping is accepted.
void unmap_memory(Mapping* mapping);

}  // namespace weir::plugins::shm
