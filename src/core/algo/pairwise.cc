// SPDX-License-Identifier: Apache-2.0
// `pairwise`: each pair of ranks exchanges directly, one partner per round. And `ordered`, built on
// it: all contributions to a chunk meet at one rank, unfolded, and are folded there by one reduce
// in rank order. The fold's bits are then those of any other rank-ordered algorithm, whatever the
// transport.
//
// all_to_all: the partner's partner is the rank, so that a block is sent and then replaced by the
// one received from the same rank: it works in place without scratch. If a host has a power of two
// of ranks and n is a multiple of it, all its ranks leave it in the same rounds, so that none of
// them falls behind.
//
// In place (reductions): Input is only read until the fold of the rank's own chunk, which is the
// last operation that reads it; other chunks of Output are received after all of Input was sent.
#include "core/algo/catalog.h"
#include "core/algo/support.h"

namespace weir::algo {
namespace {

using sched::Builder;
using sched::Ref;
using sched::Shape;

Shape all_to_all_shape(const Problem& problem) {
  return {.chunk_count = problem.rank_count * problem.rank_count};
}

uint32_t all_to_all_step_count(const Problem& problem, Rank /*rank*/) { return problem.rank_count; }

void all_to_all_step(const Problem& problem, Rank rank, uint32_t step, Builder& b) {
  const Rank n = problem.rank_count;
  const Rank peer = partner_in_round(rank, step, n);
  if (peer == rank) {
    b.copy(b.output(rank * n + rank), b.input(rank * n + rank));
    return;
  }
  b.send(peer, b.input(rank * n + peer));
  b.recv(peer, b.output(peer * n + rank));
}

// --- Reductions: rounds 0 .. n-2 exchange, step n-1 folds, then the result is shared. ---

// The contributions of the other ranks, by rank.
uint32_t slot_of(Rank peer, Rank rank) { return peer < rank ? peer : peer - 1; }

Shape reduce_scatter_shape(const Problem& problem) {
  return {.chunk_count = problem.rank_count, .scratch_slots = problem.rank_count - 1};
}

// For a reduce, the fold of a rank other than the root waits for its send in one more slot.
Shape ordered_reduce_shape(const Problem& problem) {
  return {.chunk_count = problem.rank_count, .scratch_slots = problem.rank_count};
}

uint32_t reduce_scatter_step_count(const Problem& problem, Rank /*rank*/) {
  return problem.rank_count;
}

uint32_t ordered_step_count(const Problem& problem, Rank /*rank*/) {
  return 2 * problem.rank_count - 1;
}

void emit_exchange(const Problem& problem, Rank rank, uint32_t step, Builder& b) {
  const Rank n = problem.rank_count;
  const Rank to = add_mod(rank, step + 1, n);
  const Rank from = sub_mod(rank, step + 1, n);
  b.send(to, b.input(to));
  b.recv(from, b.scratch(slot_of(from, rank)));
}

void emit_fold(const Problem& problem, Rank rank, Ref dst, Builder& b) {
  std::vector<Ref> operands(problem.rank_count, b.scratch(0));
  for (Rank peer = 0; peer < rank; ++peer) operands[peer].chunk = slot_of(peer, rank);
  operands[rank] = b.input(rank);
  for (Rank peer = rank + 1; peer < problem.rank_count; ++peer) {
    operands[peer].chunk = slot_of(peer, rank);
  }
  emit_fold_or_copy(dst, operands, 1, b);
}

void reduce_scatter_step(const Problem& problem, Rank rank, uint32_t step, Builder& b) {
  if (step + 1 < problem.rank_count) {
    emit_exchange(problem, rank, step, b);
  } else {
    emit_fold(problem, rank, b.output(rank), b);
  }
}

void ordered_all_reduce_step(const Problem& problem, Rank rank, uint32_t step, Builder& b) {
  const Rank n = problem.rank_count;
  if (step < n) {
    reduce_scatter_step(problem, rank, step, b);
    return;
  }
  const Rank distance = step - n + 1;
  const Rank from = sub_mod(rank, distance, n);
  b.send(add_mod(rank, distance, n), b.output(rank));
  b.recv(from, b.output(from));
}

void ordered_reduce_step(const Problem& problem, Rank rank, uint32_t step, Builder& b) {
  const Rank n = problem.rank_count;
  const bool is_root = rank == problem.root;
  if (step + 1 < n) {
    emit_exchange(problem, rank, step, b);
  } else if (step + 1 == n) {
    emit_fold(problem, rank, is_root ? b.output(rank) : b.scratch(n - 1), b);
  } else {
    const Rank distance = step - n + 1;
    const Rank from = add_mod(problem.root, distance, n);
    if (is_root) {
      b.recv(from, b.output(from));
    } else if (rank == from) {
      b.send(problem.root, b.scratch(n - 1));
    }
  }
}

}  // namespace

const Algorithm kPairwiseAllToAll = {
    .name = "pairwise",
    .summary = "one partner per round, in place with no scratch",
    .collective = Collective::kAllToAll,
    .needs_mapped = false,
    .needs_user_windows = false,
    .rank_order = false,
    .lengths = BlockLengths::kKnownToEnds,
    .symmetry = Symmetry::kXor,
    .supports = any_problem,
    .shape = all_to_all_shape,
    .step_count = all_to_all_step_count,
    .step = all_to_all_step,
    .formula = {"(n-1) (a + c b) + c x",
                [](const Symbols& q) { return (q.n - 1) * (q.a + q.c * q.b) + q.c * q.x; },
                never_exact},
};

const Algorithm kPairwiseReduceScatter = {
    .name = "pairwise",
    .summary = "contributions go straight to the owner, which folds them in rank order at once",
    .collective = Collective::kReduceScatter,
    .needs_mapped = false,
    .needs_user_windows = false,
    .rank_order = true,
    .lengths = BlockLengths::kKnownToAll,
    .symmetry = Symmetry::kShift,
    .supports = any_problem,
    .shape = reduce_scatter_shape,
    .step_count = reduce_scatter_step_count,
    .step = reduce_scatter_step,
    .formula = {"(n-1) (a + c b + c y)",
                [](const Symbols& q) { return (q.n - 1) * (q.a + q.c * (q.b + q.y)); },
                always_exact},
};

const Algorithm kOrderedAllReduce = {
    .name = "ordered",
    .summary = "pairwise reduce-scatter with one fold in rank order, then pairwise all-gather",
    .collective = Collective::kAllReduce,
    .needs_mapped = false,
    .needs_user_windows = false,
    .rank_order = true,
    .symmetry = Symmetry::kShift,
    .supports = any_problem,
    .shape = reduce_scatter_shape,
    .step_count = ordered_step_count,
    .step = ordered_all_reduce_step,
    .formula = {"(n-1) (2(a + c b) + c y)",
                [](const Symbols& q) { return (q.n - 1) * (2 * (q.a + q.c * q.b) + q.c * q.y); },
                always_exact},
};

const Algorithm kOrderedReduce = {
    .name = "ordered",
    .summary = "pairwise reduce-scatter with one fold in rank order, then gather at the root",
    .collective = Collective::kReduce,
    .needs_mapped = false,
    .needs_user_windows = false,
    .rank_order = true,
    .supports = any_problem,
    .shape = ordered_reduce_shape,
    .step_count = ordered_step_count,
    .step = ordered_reduce_step,
};

}  // namespace weir::algo
