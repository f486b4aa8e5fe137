// SPDX-License-Identifier: Apache-2.0
// Programs from elsewhere for the jobs of the simulated network: those of MSCCL's documents, and
// Weir's own, read as if they came from a file. Made once; one thread.
#pragma once

#include <vector>

#include "core/algo/algorithm.h"

namespace weir::simnet {

// For `rank_count` ranks; they live as long as the process.
std::vector<const algo::Algorithm*> programs_for(Rank rank_count);

}  // namespace weir::simnet
