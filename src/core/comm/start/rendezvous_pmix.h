// SPDX-License-Identifier: Apache-2.0
// Rendezvous through PMIx, the service that srun, mpirun and prun offer to what they start: rank 0
// puts a few bytes, a fence follows, the others get them. libpmix is loaded when it is needed, so
// that there is no link dependency on it. PMIx is finalized when the process ends, since it cannot
// be initialized twice and MPI_Init may come later; where it is in use already (by MPI), at once.
// One call at a time per process.
#pragma once

#include <cstdint>
#include <string>

#include "core/base/status.h"
#include "core/base/types.h"

namespace weir::comm {

inline constexpr size_t kPmixBytesMax = 4096;

// "" or why PMIx cannot be used by this process: built without it, no libpmix, no PMIx launcher.
std::string why_no_pmix();

// Collective over all processes of the launcher's job, which must be the `rank_count` ranks. The
// bytes of rank 0 for every rank. Errors: kUnsupported, kTimeout, kSystem with PMIx's own word for
// it.
Result<std::string> exchange_through_pmix(Rank rank, const std::string& bytes_of_rank_0,
                                          uint64_t deadline_ns);

}  // namespace weir::comm
