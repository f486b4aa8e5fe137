// SPDX-License-Identifier: Apache-2.0
// `direct`: one phase over mapped Staging. Each rank stages the part of its Input that others need,
// signals, waits for exactly the ranks that it reads from, and reads (or folds, in rank order, in
// one pass) from their Staging. One synchronization, the least latency; each rank reads every byte
// that it needs.
//
// In place: all of the Input that others need is staged before the signal, and Output is written
// only after all others have signalled or, for the rank's own part, when nothing else will be read.
#include <algorithm>
#include <vector>

#include "core/algo/catalog.h"
#include "core/algo/support.h"

namespace weir::algo {
namespace {

using sched::Builder;
using sched::kAllRanks;
using sched::Ref;
using sched::Shape;

// Where a rank has no slot for its own block, the one for `reader`. Slices are longer then, of two
// ranks twice as long; scatter and all_to_all of some kilobytes lose by it (docs/performance.md).
Ref staged_for(Rank reader, Rank owner) {
  return Builder::staging_at(owner, reader < owner ? reader : reader - 1);
}

// Copies all chunks of Input, except the one for the rank itself, to where staged_for says.
void stage_for_others(const Problem& problem, Rank rank, Builder& b) {
  const uint32_t after = problem.rank_count - rank - 1;
  if (rank > 0) b.copy(b.staging(0), b.input(0), rank);
  if (after > 0) b.copy(b.staging(rank), b.input(rank + 1), after);
}

// Output chunk = fold in rank order of own Input chunk and `others` of every other rank.
template <typename Others>
void emit_fold(const Problem& problem, Rank rank, uint32_t chunk, Others others, Builder& builder) {
  std::vector<Ref> operands(problem.rank_count);
  for (Rank peer = 0; peer < problem.rank_count; ++peer) {
    operands[peer] = peer == rank ? builder.input(chunk) : others(peer);
  }
  builder.reduce(builder.output(chunk), operands);
}

Ref first_slot(Rank peer) { return Builder::staging_at(peer, 0); }

Shape shape_one_slot(const Problem& problem) {
  return {.chunk_count = block_count(problem.collective, problem.rank_count),
          .staging_slots = 1,
          .signal_count = 1};
}

Shape shape_slot_per_rank(const Problem& problem) {
  return {.chunk_count = block_count(problem.collective, problem.rank_count),
          .staging_slots = problem.rank_count,
          .signal_count = 1};
}

Shape shape_slot_for_each_other(const Problem& problem) {
  return {.chunk_count = block_count(problem.collective, problem.rank_count),
          .staging_slots = std::max(1u, problem.rank_count - 1),
          .signal_count = 1};
}

void all_reduce_step(const Problem& problem, Rank rank, uint32_t /*step*/, Builder& b) {
  if (emit_alone(problem, 1, b)) return;
  b.copy(b.staging(0), b.input(0));
  b.signal(kAllRanks, 0);
  b.wait(kAllRanks, 0, 1);
  emit_fold(problem, rank, 0, first_slot, b);
}

void reduce_scatter_step(const Problem& problem, Rank rank, uint32_t /*step*/, Builder& b) {
  if (emit_alone(problem, 1, b)) return;
  stage_for_others(problem, rank, b);
  b.signal(kAllRanks, 0);
  b.wait(kAllRanks, 0, 1);
  emit_fold(
      problem, rank, rank, [rank](Rank peer) { return staged_for(rank, peer); }, b);
}

void all_gather_step(const Problem& problem, Rank rank, uint32_t /*step*/, Builder& b) {
  const Rank n = problem.rank_count;
  if (emit_alone(problem, 1, b)) return;
  b.copy(b.staging(0), b.input(rank));
  b.signal(kAllRanks, 0);
  b.copy(b.output(rank), b.input(rank));
  b.wait(kAllRanks, 0, 1);
  // Starting at the next rank spreads the readers over the owners.
  for (Rank i = 1; i < n; ++i) {
    const Rank peer = add_mod(rank, i, n);
    b.copy(b.output(peer), Builder::staging_at(peer, 0));
  }
}

void all_to_all_step(const Problem& problem, Rank rank, uint32_t /*step*/, Builder& b) {
  const Rank n = problem.rank_count;
  if (emit_alone(problem, 1, b)) return;
  stage_all_but(rank * n, (rank + 1) * n, rank * n + rank, b);
  b.signal(kAllRanks, 0);
  b.copy(b.output(rank * n + rank), b.input(rank * n + rank));
  b.wait(kAllRanks, 0, 1);
  for (Rank i = 1; i < n; ++i) {
    const Rank source = add_mod(rank, i, n);
    b.copy(b.output(source * n + rank), Builder::staging_at(source, rank));
  }
}

void broadcast_step(const Problem& problem, Rank rank, uint32_t /*step*/, Builder& b) {
  if (emit_alone(problem, 1, b)) return;
  if (rank == problem.root) {
    b.copy(b.staging(0), b.input(0));
    b.signal(kAllRanks, 0);
    b.copy(b.output(0), b.input(0));
  } else {
    b.wait(problem.root, 0, 1);
    b.copy(b.output(0), Builder::staging_at(problem.root, 0));
  }
}

void reduce_step(const Problem& problem, Rank rank, uint32_t /*step*/, Builder& b) {
  if (emit_alone(problem, 1, b)) return;
  if (rank == problem.root) {
    b.wait(kAllRanks, 0, 1);
    emit_fold(problem, rank, 0, first_slot, b);
  } else {
    b.copy(b.staging(0), b.input(0));
    b.signal(problem.root, 0);
  }
}

void gather_step(const Problem& problem, Rank rank, uint32_t /*step*/, Builder& b) {
  const Rank n = problem.rank_count;
  if (emit_alone(problem, 1, b)) return;
  if (rank != problem.root) {
    b.copy(b.staging(0), b.input(rank));
    b.signal(problem.root, 0);
    return;
  }
  b.copy(b.output(rank), b.input(rank));
  b.wait(kAllRanks, 0, 1);
  for (Rank i = 1; i < n; ++i) {
    const Rank peer = add_mod(rank, i, n);
    b.copy(b.output(peer), Builder::staging_at(peer, 0));
  }
}

void scatter_step(const Problem& problem, Rank rank, uint32_t /*step*/, Builder& b) {
  const Rank n = problem.rank_count;
  if (emit_alone(problem, 1, b)) return;
  if (rank == problem.root) {
    stage_all_but(0, n, rank, b);
    b.signal(kAllRanks, 0);
    b.copy(b.output(rank), b.input(rank));
  } else {
    b.wait(problem.root, 0, 1);
    b.copy(b.output(rank), Builder::staging_at(problem.root, rank));
  }
}

Shape barrier_shape(const Problem& /*problem*/) { return {.signal_count = 1}; }

void barrier_step(const Problem& problem, Rank /*rank*/, uint32_t /*step*/, Builder& b) {
  if (emit_alone(problem, 0, b)) return;
  b.signal(kAllRanks, 0);
  b.wait(kAllRanks, 0, 1);
}

}  // namespace

const Algorithm kDirectAllReduce = {
    .name = "direct",
    .summary = "every rank stages its input, then folds all of them in rank order in one pass",
    .collective = Collective::kAllReduce,
    .needs_mapped = true,
    .needs_user_windows = false,
    .rank_order = true,
    .symmetry = Symmetry::kShift,
    .supports = mapped_staging,
    .shape = shape_one_slot,
    .step_count = one_step,
    .step = all_reduce_step,
    .formula = {"m x + s + (n-1) m (y + z)",
                [](const Symbols& q) { return q.m * q.x + q.s + (q.n - 1) * q.m * (q.y + q.z); },
                always_exact},
};

const Algorithm kDirectReduceScatter = {
    .name = "direct",
    .summary =
        "every rank stages the others' blocks, then folds its own block in rank order in one pass",
    .collective = Collective::kReduceScatter,
    .needs_mapped = true,
    .needs_user_windows = false,
    .rank_order = true,
    .lengths = BlockLengths::kKnownToAll,
    .symmetry = Symmetry::kShift,
    .supports = mapped_staging,
    .shape = shape_slot_for_each_other,
    .step_count = one_step,
    .step = reduce_scatter_step,
    .formula = {"(n-1) c x + s + (n-1) c (y + z)",
                [](const Symbols& q) { return q.s + q.rest() * (q.x + q.y + q.z); }, always_exact},
};

const Algorithm kDirectAllGather = {
    .name = "direct",
    .summary = "every rank stages its block and copies the others' blocks out of theirs",
    .collective = Collective::kAllGather,
    .needs_mapped = true,
    .needs_user_windows = false,
    .rank_order = false,
    .lengths = BlockLengths::kKnownToAll,
    .symmetry = Symmetry::kShift,
    .supports = mapped_staging,
    .shape = shape_one_slot,
    .step_count = one_step,
    .step = all_gather_step,
    .formula = {"c x + max(s, c x) + (n-1) c (x + z)",
                [](const Symbols& q) {
                  return q.c * q.x + std::max(q.s, q.c * q.x) + q.rest() * (q.x + q.z);
                },
                always_exact},
};

const Algorithm kDirectAllToAll = {
    .name = "direct",
    .summary =
        "every rank stages a block per target and copies its blocks out of the others' staging",
    .collective = Collective::kAllToAll,
    .needs_mapped = true,
    .needs_user_windows = false,
    .rank_order = false,
    .lengths = BlockLengths::kKnownToEnds,
    .symmetry = Symmetry::kShift,
    .supports = mapped_staging,
    .shape = shape_slot_per_rank,
    .step_count = one_step,
    .step = all_to_all_step,
    .formula = {"(n-1) c x + max(s, c x) + (n-1) c (x + z)",
                [](const Symbols& q) {
                  return std::max(q.s, q.c * q.x) + q.rest() * (2 * q.x + q.z);
                },
                always_exact},
};

const Algorithm kDirectBroadcast = {
    .name = "direct",
    .summary = "the root stages its data and all others copy it",
    .collective = Collective::kBroadcast,
    .needs_mapped = true,
    .needs_user_windows = false,
    .rank_order = false,
    .supports = mapped_staging,
    .shape = shape_one_slot,
    .step_count = one_step,
    .step = broadcast_step,
    .formula = {"m x + max(m x, s + m (x + z))",
                [](const Symbols& q) {
                  return q.m * q.x + std::max(q.m * q.x, q.s + q.m * (q.x + q.z));
                },
                always_exact},
};

const Algorithm kDirectReduce = {
    .name = "direct",
    .summary = "all others stage their input and the root folds in rank order in one pass",
    .collective = Collective::kReduce,
    .needs_mapped = true,
    .needs_user_windows = false,
    .rank_order = true,
    .supports = mapped_staging,
    .shape = shape_one_slot,
    .step_count = one_step,
    .step = reduce_step,
    .formula = {"m x + s + (n-1) m (y + z)",
                [](const Symbols& q) { return q.m * q.x + q.s + (q.n - 1) * q.m * (q.y + q.z); },
                always_exact},
};

const Algorithm kDirectGather = {
    .name = "direct",
    .summary = "all others stage their block and the root copies the blocks",
    .collective = Collective::kGather,
    .needs_mapped = true,
    .needs_user_windows = false,
    .rank_order = false,
    .supports = mapped_staging,
    .shape = shape_one_slot,
    .step_count = one_step,
    .step = gather_step,
    .formula = {"c x + s + (n-1) c (x + z)",
                [](const Symbols& q) { return q.c * q.x + q.s + q.rest() * (q.x + q.z); },
                always_exact},
};

const Algorithm kDirectScatter = {
    .name = "direct",
    .summary = "the root stages a block per rank and each copies its own",
    .collective = Collective::kScatter,
    .needs_mapped = true,
    .needs_user_windows = false,
    .rank_order = false,
    .supports = mapped_staging,
    .shape = shape_slot_per_rank,
    .step_count = one_step,
    .step = scatter_step,
    .formula = {"(n-1) c x + max(s + c (x + z), c x)",
                [](const Symbols& q) {
                  return q.rest() * q.x + std::max(q.s + q.c * (q.x + q.z), q.c * q.x);
                },
                always_exact},
};

const Algorithm kDirectBarrier = {
    .name = "direct",
    .summary = "every rank signals all others and waits for all of them",
    .collective = Collective::kBarrier,
    .needs_mapped = true,
    .needs_user_windows = false,
    .rank_order = false,
    .symmetry = Symmetry::kShift,
    .supports = mapped_staging,
    .shape = barrier_shape,
    .step_count = one_step,
    .step = barrier_step,
    .formula = {"s", [](const Symbols& q) { return q.s; }, always_exact},
};

}  // namespace weir::algo
