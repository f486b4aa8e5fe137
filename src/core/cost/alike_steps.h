// SPDX-License-Identifier: Apache-2.0
// Long runs of steps that do the same with other chunks and peers, as those of a ring or of
// pairwise exchanges: a few of them show how long one takes. Pure functions; thread-safe.
#pragma once

#include <vector>

#include "core/algo/algorithm.h"
#include "core/cost/op_stream.h"

namespace weir::cost {

// The steps at each end of a run that are always kept, and those in its middle of which
// the time of one is learned.
inline constexpr uint32_t kStepsKeptAtEnds = 3;
inline constexpr uint32_t kStepsMeasured = 6;

// Long enough that leaving out most of their steps pays. Judged by the programs of a few ranks;
// empty if these have different numbers of steps.
std::vector<StepRange> alike_steps(const algo::Algorithm& algorithm, const algo::Problem& problem);

// What to leave out of such runs: all but the ends and, if `measured`, some steps in the middle:
// kStepsMeasured a run on average, and more of longer runs, so that each stands for as many.
std::vector<StepRange> left_out(const std::vector<StepRange>& runs, bool measured);

}  // namespace weir::cost
