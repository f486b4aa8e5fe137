// SPDX-License-Identifier: Apache-2.0
// `direct_two_phase`: reduce-scatter and then gather, both over mapped Staging. The grid has a
// chunk per rank; rank r folds chunk r of all ranks in rank order in one pass, stages the result
// where its own contribution would have been, and the others copy it. Twice the synchronization of
// `direct`, but each rank folds only 1/n of the data. Between two ranks it moves the same bytes as
// `direct`.
//
// In place: Input chunk c != r is staged before any Output is written; the rank's own chunk r is
// read only by the fold that writes it.
#include "core/algo/catalog.h"
#include "core/algo/support.h"

namespace weir::algo {
namespace {

using sched::Builder;
using sched::kAllRanks;
using sched::Ref;
using sched::Shape;

Shape shape(const Problem& problem) {
  return {
      .chunk_count = problem.rank_count, .staging_slots = problem.rank_count, .signal_count = 2};
}

// Stages everything but chunk `rank`, waits for all, and folds chunk `rank` into `dst`.
void emit_reduce_scatter(const Problem& problem, Rank rank, Ref dst, Builder& b) {
  stage_all_but(0, problem.rank_count, rank, b);
  b.signal(kAllRanks, 0);
  b.wait(kAllRanks, 0, 1);
  std::vector<Ref> operands(problem.rank_count);
  for (Rank peer = 0; peer < problem.rank_count; ++peer) {
    operands[peer] = peer == rank ? b.input(rank) : Builder::staging_at(peer, rank);
  }
  b.reduce(dst, operands);
}

void emit_gather(const Problem& problem, Rank rank, Builder& b) {
  for (Rank i = 1; i < problem.rank_count; ++i) {
    const Rank peer = add_mod(rank, i, problem.rank_count);
    b.copy(b.output(peer), Builder::staging_at(peer, peer));
  }
}

void all_reduce_step(const Problem& problem, Rank rank, uint32_t /*step*/, Builder& b) {
  if (emit_alone(problem, 1, b)) return;
  emit_reduce_scatter(problem, rank, b.output(rank), b);
  b.copy(b.staging(rank), b.output(rank));
  b.signal(kAllRanks, 1);
  b.wait(kAllRanks, 1, 1);
  emit_gather(problem, rank, b);
}

void reduce_step(const Problem& problem, Rank rank, uint32_t /*step*/, Builder& b) {
  if (emit_alone(problem, 1, b)) return;
  if (rank == problem.root) {
    emit_reduce_scatter(problem, rank, b.output(rank), b);
    b.wait(kAllRanks, 1, 1);
    emit_gather(problem, rank, b);
  } else {
    emit_reduce_scatter(problem, rank, b.staging(rank), b);
    b.signal(problem.root, 1);
  }
}

}  // namespace

const Algorithm kDirectTwoPhaseAllReduce = {
    .name = "direct_two_phase",
    .summary =
        "each rank folds its share of all staged inputs in rank order; the others copy the result",
    .collective = Collective::kAllReduce,
    .needs_mapped = true,
    .needs_user_windows = false,
    .rank_order = true,
    .supports = mapped_staging,
    .shape = shape,
    .step_count = one_step,
    .step = all_reduce_step,
    .formula = {"n c x + 2 s + (n-1) c (y + z + x + z)",
                [](const Symbols& q) {
                  return q.n * q.c * q.x + 2 * q.s + q.rest() * (q.y + q.x + 2 * q.z);
                },
                always_exact},
};

const Algorithm kDirectTwoPhaseReduce = {
    .name = "direct_two_phase",
    .summary =
        "each rank folds its share of all staged inputs in rank order; the root copies the result",
    .collective = Collective::kReduce,
    .needs_mapped = true,
    .needs_user_windows = false,
    .rank_order = true,
    .supports = mapped_staging,
    .shape = shape,
    .step_count = one_step,
    .step = reduce_step,
};

}  // namespace weir::algo
