// SPDX-License-Identifier: Apache-2.0
// `ring`: chunk by chunk around the ring r -> r + 1, as in Patarasuk and Yuan, "Bandwidth optimal
// all-reduce algorithms for clusters of workstations" (2009). Every link carries the fewest bytes
// possible, in 2(n-1) steps for all-reduce and n-1 for the others.
//
// In place: chunk c of Input is read for the last time by the operation that writes chunk c of
// Output.
#include <array>

#include "core/algo/catalog.h"
#include "core/algo/support.h"

namespace weir::algo {
namespace {

using sched::Builder;
using sched::Ref;
using sched::Shape;

// Steps 0 .. n-2 reduce and scatter, n-1 .. 2n-3 gather.
uint32_t all_reduce_step_count(const Problem& problem, Rank /*rank*/) {
  return problem.rank_count == 1 ? 1 : 2 * (problem.rank_count - 1);
}

uint32_t half_step_count(const Problem& problem, Rank /*rank*/) {
  return problem.rank_count == 1 ? 1 : problem.rank_count - 1;
}

Shape reducing_shape(const Problem& problem) {
  return {.chunk_count = problem.rank_count, .scratch_slots = 1};
}

Shape gathering_shape(const Problem& problem) { return {.chunk_count = problem.rank_count}; }

void all_reduce_step(const Problem& problem, Rank rank, uint32_t step, Builder& b) {
  const Rank n = problem.rank_count;
  if (emit_alone(problem, 1, b)) return;
  const Rank next = add_mod(rank, 1, n);
  const Rank previous = sub_mod(rank, 1, n);
  if (step < n - 1) {
    const uint32_t sent = sub_mod(rank, step, n);
    const uint32_t folded = sub_mod(sent, 1, n);
    b.send(next, step == 0 ? b.input(sent) : b.output(sent));
    b.recv(previous, b.scratch(0));
    b.reduce(b.output(folded), std::array{b.scratch(0), b.input(folded)});
  } else {
    const uint32_t sent = sub_mod(add_mod(rank, 1, n), step - (n - 1), n);
    b.send(next, b.output(sent));
    b.recv(previous, b.output(sub_mod(sent, 1, n)));
  }
}

// The partial fold of a chunk that is not this rank's waits for its send in the scratch slot.
void reduce_scatter_step(const Problem& problem, Rank rank, uint32_t step, Builder& b) {
  const Rank n = problem.rank_count;
  if (emit_alone(problem, 1, b)) return;
  const uint32_t sent = sub_mod(rank, step + 1, n);
  const uint32_t folded = sub_mod(sent, 1, n);
  b.send(add_mod(rank, 1, n), step == 0 ? b.input(sent) : b.scratch(0));
  b.recv(sub_mod(rank, 1, n), b.scratch(0));
  const Ref dst = step == n - 2 ? b.output(folded) : b.scratch(0);
  b.reduce(dst, std::array{b.scratch(0), b.input(folded)});
}

void all_gather_step(const Problem& problem, Rank rank, uint32_t step, Builder& b) {
  const Rank n = problem.rank_count;
  if (emit_alone(problem, 1, b)) return;
  const uint32_t sent = sub_mod(rank, step, n);
  b.send(add_mod(rank, 1, n), step == 0 ? b.input(sent) : b.output(sent));
  if (step == 0) b.copy(b.output(rank), b.input(rank));
  b.recv(sub_mod(rank, 1, n), b.output(sub_mod(sent, 1, n)));
}

}  // namespace

const Algorithm kRingAllReduce = {
    .name = "ring",
    .summary = "reduce-scatter and all-gather around a ring (Patarasuk and Yuan 2009)",
    .collective = Collective::kAllReduce,
    .needs_mapped = false,
    .needs_user_windows = false,
    .rank_order = false,
    .symmetry = Symmetry::kShift,
    .supports = any_problem,
    .shape = reducing_shape,
    .step_count = all_reduce_step_count,
    .step = all_reduce_step,
    .formula = {"(n-1) (2(a + c b) + c y)",
                [](const Symbols& q) { return (q.n - 1) * (2 * (q.a + q.c * q.b) + q.c * q.y); },
                always_exact},
};

const Algorithm kRingReduceScatter = {
    .name = "ring",
    .summary = "partial folds travel around a ring and end at their owner",
    .collective = Collective::kReduceScatter,
    .needs_mapped = false,
    .needs_user_windows = false,
    .rank_order = false,
    .lengths = BlockLengths::kKnownToAll,
    .symmetry = Symmetry::kShift,
    .supports = any_problem,
    .shape = reducing_shape,
    .step_count = half_step_count,
    .step = reduce_scatter_step,
    .formula = {"(n-1) (a + c b + c y)",
                [](const Symbols& q) { return (q.n - 1) * (q.a + q.c * (q.b + q.y)); },
                always_exact},
};

const Algorithm kRingAllGather = {
    .name = "ring",
    .summary = "blocks travel around a ring",
    .collective = Collective::kAllGather,
    .needs_mapped = false,
    .needs_user_windows = false,
    .rank_order = false,
    .lengths = BlockLengths::kKnownToAll,
    .symmetry = Symmetry::kShift,
    .supports = any_problem,
    .shape = gathering_shape,
    .step_count = half_step_count,
    .step = all_gather_step,
    .formula = {"(n-1) (a + c b) + max(0, c x - L - c b)",
                [](const Symbols& q) {
                  return (q.n - 1) * (q.a + q.c * q.b) + std::max(0.0, q.c * q.x - q.L - q.c * q.b);
                },
                always_exact},
};

}  // namespace weir::algo
