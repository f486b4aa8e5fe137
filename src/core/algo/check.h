// SPDX-License-Identifier: Apache-2.0
// Verifies an algorithm on one problem: compiles the programs of all ranks and gives them to
// sched::verify. Thread-safe.
#pragma once

#include <vector>

#include "core/algo/algorithm.h"
#include "core/sched/verify.h"

namespace weir::algo {

// The memory that programs for `problem` may assume.
sched::Access access_of(const Problem& problem);

// The programs of all ranks, by rank. supports() must hold.
std::vector<sched::Program> compile_all(const Algorithm& algorithm, const Problem& problem);

// supports() must hold. `credit` and `keeps_nothing` as in sched::VerifyOptions.
sched::Verdict verify(const Algorithm& algorithm, const Problem& problem, uint32_t credit = 1,
                      bool keeps_nothing = true);

}  // namespace weir::algo
