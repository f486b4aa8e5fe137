// SPDX-License-Identifier: Apache-2.0
// `window`: the users' buffers themselves are mapped, so that nothing is staged: a rank reads its
// peers' Input and, in all-reduce and reduce, writes their Output. Signal 0 says "you may use my
// buffers"; the last signal says "I no longer use yours", and no rank returns before all ranks that
// use its buffers have given that signal.
//
// In place: chunk c of all ranks' buffers is read and written by one rank only, the one that folds
// it (reductions), or is written by no rank that has it as input (all_gather, broadcast, gather,
// scatter). all_to_all swaps: one rank of each pair exchanges the two blocks through its scratch.
//
// With blocks whose lengths only their ends know, where a block lies in its sender's Input is the
// sender's own matter, too: the ranks tell each other (comm/collective/call_agreement.h).
//
// Where the ranks tell their buffers with their first signal, other programs do the same and serve
// buffers that are in no window: window_told.h.
#include "core/algo/catalog.h"
#include "core/algo/support.h"
#include "core/algo/window_told.h"

namespace weir::algo {
namespace {

using sched::Builder;
using sched::kAllRanks;
using sched::Ref;
using sched::Shape;

constexpr uint8_t kEntered = kWindowsEntered;
constexpr uint8_t kLeft = 1;

Shape block_shape(const Problem& problem) {
  if (problem.told) return told::shape(problem);
  return {.chunk_count = block_count(problem.collective, problem.rank_count), .signal_count = 2};
}

Shape chunk_per_rank_shape(const Problem& problem) {
  if (problem.told) return told::shape(problem);
  return {.chunk_count = problem.rank_count, .signal_count = 2};
}

Shape one_scratch_shape(const Problem& problem) {
  if (problem.told) return told::shape(problem);
  return {.chunk_count = problem.collective == Collective::kReduce
                             ? problem.rank_count
                             : block_count(problem.collective, problem.rank_count),
          .scratch_slots = 1,
          .signal_count = 2};
}

void meet(uint8_t signal, Builder& b) {
  b.signal(kAllRanks, signal);
  b.wait(kAllRanks, signal, 1);
}

// dst = fold in rank order of chunk `rank` of all Inputs.
void emit_fold(const Problem& problem, Rank rank, Ref dst, Builder& b) {
  std::vector<Ref> operands(problem.rank_count);
  for (Rank peer = 0; peer < problem.rank_count; ++peer) {
    operands[peer] = Builder::input_at(peer, rank);
  }
  b.reduce(dst, operands);
}

void all_reduce_step(const Problem& problem, Rank rank, uint32_t /*step*/, Builder& b) {
  if (emit_alone(problem, 1, b)) return;
  meet(kEntered, b);
  emit_fold(problem, rank, b.output(rank), b);
  for (Rank i = 1; i < problem.rank_count; ++i) {
    b.copy(Builder::output_at(add_mod(rank, i, problem.rank_count), rank), b.output(rank));
  }
  meet(kLeft, b);
}

void reduce_scatter_step(const Problem& problem, Rank rank, uint32_t /*step*/, Builder& b) {
  if (emit_alone(problem, 1, b)) return;
  if (problem.told) return told::emit(problem, rank, b);
  meet(kEntered, b);
  emit_fold(problem, rank, b.output(rank), b);
  meet(kLeft, b);
}

void reduce_step(const Problem& problem, Rank rank, uint32_t /*step*/, Builder& b) {
  if (emit_alone(problem, 1, b)) return;
  meet(kEntered, b);
  if (rank == problem.root) {
    emit_fold(problem, rank, b.output(rank), b);
  } else {
    emit_fold(problem, rank, b.scratch(0), b);
    b.copy(Builder::output_at(problem.root, rank), b.scratch(0));
  }
  meet(kLeft, b);
}

void all_gather_step(const Problem& problem, Rank rank, uint32_t /*step*/, Builder& b) {
  if (emit_alone(problem, 1, b)) return;
  if (problem.told) return told::emit(problem, rank, b);
  b.signal(kAllRanks, kEntered);
  b.copy(b.output(rank), b.input(rank));
  b.wait(kAllRanks, kEntered, 1);
  for (Rank i = 1; i < problem.rank_count; ++i) {
    const Rank peer = add_mod(rank, i, problem.rank_count);
    b.copy(b.output(peer), Builder::input_at(peer, peer));
  }
  meet(kLeft, b);
}

// Which rank of a pair swaps; spreads the work evenly.
bool swaps(Rank rank, Rank peer) { return ((rank + peer) % 2 == 0) == (rank < peer); }

void all_to_all_step(const Problem& problem, Rank rank, uint32_t /*step*/, Builder& b) {
  const Rank n = problem.rank_count;
  if (emit_alone(problem, 1, b)) return;
  if (problem.told) return told::emit(problem, rank, b);
  b.signal(kAllRanks, kEntered);
  b.copy(b.output(rank * n + rank), b.input(rank * n + rank));
  b.wait(kAllRanks, kEntered, 1);
  for (Rank i = 1; i < n; ++i) {
    const Rank peer = add_mod(rank, i, n);
    if (!problem.in_place) {
      b.copy(b.output(peer * n + rank), Builder::input_at(peer, peer * n + rank));
    } else if (swaps(rank, peer)) {
      b.copy(b.scratch(0), b.input(rank * n + peer));
      b.copy(b.output(peer * n + rank), Builder::input_at(peer, peer * n + rank));
      b.copy(Builder::output_at(peer, rank * n + peer), b.scratch(0));
    }
  }
  meet(kLeft, b);
}

void broadcast_step(const Problem& problem, Rank rank, uint32_t /*step*/, Builder& b) {
  if (emit_alone(problem, 1, b)) return;
  if (problem.told) return told::emit(problem, rank, b);
  if (rank == problem.root) {
    b.signal(kAllRanks, kEntered);
    b.copy(b.output(0), b.input(0));
    b.wait(kAllRanks, kLeft, 1);
  } else {
    b.wait(problem.root, kEntered, 1);
    b.copy(b.output(0), Builder::input_at(problem.root, 0));
    b.signal(problem.root, kLeft);
  }
}

void gather_step(const Problem& problem, Rank rank, uint32_t /*step*/, Builder& b) {
  if (emit_alone(problem, 1, b)) return;
  if (problem.told) return told::emit(problem, rank, b);
  if (rank != problem.root) {
    b.signal(problem.root, kEntered);
    b.wait(problem.root, kLeft, 1);
    return;
  }
  b.copy(b.output(rank), b.input(rank));
  b.wait(kAllRanks, kEntered, 1);
  for (Rank i = 1; i < problem.rank_count; ++i) {
    const Rank peer = add_mod(rank, i, problem.rank_count);
    b.copy(b.output(peer), Builder::input_at(peer, peer));
  }
  b.signal(kAllRanks, kLeft);
}

void scatter_step(const Problem& problem, Rank rank, uint32_t /*step*/, Builder& b) {
  if (emit_alone(problem, 1, b)) return;
  if (problem.told) return told::emit(problem, rank, b);
  if (rank == problem.root) {
    b.signal(kAllRanks, kEntered);
    b.copy(b.output(rank), b.input(rank));
    b.wait(kAllRanks, kLeft, 1);
  } else {
    b.wait(problem.root, kEntered, 1);
    b.copy(b.output(rank), Builder::input_at(problem.root, rank));
    b.signal(problem.root, kLeft);
  }
}

}  // namespace

const Algorithm kWindowAllReduce = {
    .name = "window",
    .summary = "each rank folds its share of all inputs in rank order and writes it to all outputs",
    .collective = Collective::kAllReduce,
    .needs_mapped = false,
    .needs_user_windows = true,
    .rank_order = true,
    .symmetry = Symmetry::kShift,
    .supports = mapped_inputs_outputs,
    .shape = chunk_per_rank_shape,
    .step_count = one_step,
    .step = all_reduce_step,
};

const Algorithm kWindowReduceScatter = {
    .name = "window",
    .summary = "each rank folds its block of all inputs in rank order",
    .collective = Collective::kReduceScatter,
    .needs_mapped = false,
    .needs_user_windows = true,
    .rank_order = true,
    .lengths = BlockLengths::kKnownToAll,
    .symmetry = Symmetry::kShift,
    .supports = mapped_inputs,
    .shape = block_shape,
    .step_count = one_step,
    .step = reduce_scatter_step,
};

const Algorithm kWindowReduce = {
    .name = "window",
    .summary =
        "each rank folds its share of all inputs in rank order and writes it to the root's output",
    .collective = Collective::kReduce,
    .needs_mapped = false,
    .needs_user_windows = true,
    .rank_order = true,
    .supports = mapped_inputs_outputs,
    .shape = one_scratch_shape,
    .step_count = one_step,
    .step = reduce_step,
};

const Algorithm kWindowAllGather = {
    .name = "window",
    .summary = "each rank copies all blocks out of the others' inputs",
    .collective = Collective::kAllGather,
    .needs_mapped = false,
    .needs_user_windows = true,
    .rank_order = false,
    .lengths = BlockLengths::kKnownToAll,
    .symmetry = Symmetry::kShift,
    .supports = mapped_inputs,
    .shape = block_shape,
    .step_count = one_step,
    .step = all_gather_step,
};

const Algorithm kWindowAllToAll = {
    .name = "window",
    .summary = "each rank copies its blocks out of the others' inputs; in place, pairs swap",
    .collective = Collective::kAllToAll,
    .needs_mapped = false,
    .needs_user_windows = true,
    .rank_order = false,
    .lengths = BlockLengths::kKnownToEnds,
    .symmetry = Symmetry::kShift,
    .supports =
        [](const Problem& problem) {
          const bool uneven = problem.lengths != BlockLengths::kEqual;
          if (uneven && (problem.in_place || problem.told)) return false;
          return problem.in_place ? mapped_inputs_outputs(problem) : mapped_inputs(problem);
        },
    .shape = one_scratch_shape,
    .step_count = one_step,
    .step = all_to_all_step,
};

const Algorithm kWindowBroadcast = {
    .name = "window",
    .summary = "each rank copies the root's input",
    .collective = Collective::kBroadcast,
    .needs_mapped = false,
    .needs_user_windows = true,
    .rank_order = false,
    .supports = mapped_inputs,
    .shape = block_shape,
    .step_count = one_step,
    .step = broadcast_step,
};

const Algorithm kWindowGather = {
    .name = "window",
    .summary = "the root copies the others' inputs",
    .collective = Collective::kGather,
    .needs_mapped = false,
    .needs_user_windows = true,
    .rank_order = false,
    .supports = mapped_inputs,
    .shape = block_shape,
    .step_count = one_step,
    .step = gather_step,
};

const Algorithm kWindowScatter = {
    .name = "window",
    .summary = "each rank copies its block out of the root's input",
    .collective = Collective::kScatter,
    .needs_mapped = false,
    .needs_user_windows = true,
    .rank_order = false,
    .supports = mapped_inputs,
    .shape = block_shape,
    .step_count = one_step,
    .step = scatter_step,
};

}  // namespace weir::algo
