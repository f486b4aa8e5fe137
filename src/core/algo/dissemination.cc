// SPDX-License-Identifier: Apache-2.0
// `dissemination` barrier: in round k each rank sends an empty message to the rank 2^k after it and
// receives one from the rank 2^k before it; after ceil(log2 n) rounds each rank knows that all have
// arrived. Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization" (1988).
#include "core/algo/catalog.h"
#include "core/algo/support.h"

namespace weir::algo {
namespace {

using sched::Builder;
using sched::Shape;

Shape shape(const Problem& /*problem*/) { return {}; }

uint32_t step_count(const Problem& problem, Rank /*rank*/) { return ceil_log2(problem.rank_count); }

void barrier_step(const Problem& problem, Rank rank, uint32_t step, Builder& b) {
  const Rank n = problem.rank_count;
  const Rank distance = Rank{1} << step;
  b.send(add_mod(rank, distance, n), b.scratch(0), 0);
  b.recv(sub_mod(rank, distance, n), b.scratch(0), 0);
}

}  // namespace

const Algorithm kDisseminationBarrier = {
    .name = "dissemination",
    .summary = "log2(n) rounds of empty messages at doubling distances (Hensgen et al. 1988)",
    .collective = Collective::kBarrier,
    .needs_mapped = false,
    .needs_user_windows = false,
    .rank_order = false,
    .symmetry = Symmetry::kShift,
    .supports = any_problem,
    .shape = shape,
    .step_count = step_count,
    .step = barrier_step,
    .formula = {"k a", [](const Symbols& q) { return q.k * q.a; }, always_exact},
};

}  // namespace weir::algo
