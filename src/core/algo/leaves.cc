// SPDX-License-Identifier: Apache-2.0
// Folds over leaves (base/leaves.h): each element of the result is the balanced tree over all
// leaves, whatever the number of ranks. Ranks bring the nodes of their leaves; a rank that folds
// has all nodes of a chunk, in the order of the leaves, and folds them as the tree does.
//
//   direct            over mapped Staging, one phase: every rank folds all nodes of all ranks
//   direct_two_phase  a chunk per rank, which its owner folds; the others round what it has staged
//   pairwise, ordered over messages: the nodes of a chunk go to its owner, rounded results back
//   linear            over messages: all nodes go to the root
//   recursive_doubling  where each rank has one node, all of one level, and n is a power of two:
//                     ranks at distance 2^k exchange nodes, the siblings of level k above theirs
//
// In place Output lies on the first node's chunks of Input. Input is read for the last time by the
// fold that first writes Output, or is staged or sent before; other chunks of Output are written
// after all of Input was sent or staged.
#include "core/base/leaves.h"

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "core/algo/catalog.h"
#include "core/algo/support.h"

namespace weir::algo {
namespace {

using sched::Builder;
using sched::kAllRanks;
using sched::Ref;
using sched::Shape;

std::vector<LeafNode> nodes_of(const Problem& problem, Rank rank) {
  return leaf_nodes_of(problem.leaf_count, problem.rank_count, rank);
}

uint32_t node_count_of(const Problem& problem, Rank rank) {
  return static_cast<uint32_t>(nodes_of(problem, rank).size());
}

uint32_t node_count_max(const Problem& problem) {
  uint32_t most = 1;
  for (Rank rank = 0; rank < problem.rank_count; ++rank) {
    most = std::max(most, node_count_of(problem, rank));
  }
  return most;
}

// At least node_count_max, in constant time.
uint32_t node_count_bound(const Problem& problem) {
  const uint32_t longest = (problem.leaf_count + problem.rank_count - 1) / problem.rank_count;
  const bool is_even = problem.leaf_count % problem.rank_count == 0;
  if (longest == 1 || (is_even && std::has_single_bit(longest))) return 1;
  return 2 * static_cast<uint32_t>(std::bit_width(longest)) - 1;
}

Ref input(const Builder& b, uint32_t chunk, uint32_t node) {
  Ref ref = b.input(chunk);
  ref.node = static_cast<uint8_t>(node);
  return ref;
}

// dst = the tree over all nodes; place(rank, node) says where a node of a rank is.
template <typename Place>
void emit_tree(const Problem& problem, Ref dst, Builder& b, Place&& place) {
  std::vector<Ref> operands;
  for (Rank rank = 0; rank < problem.rank_count; ++rank) {
    uint32_t index = 0;
    for (const LeafNode& node : nodes_of(problem, rank)) {
      operands.push_back(place(rank, index++));
      operands.back().folds = static_cast<uint8_t>(folds_after(node, problem.leaf_count));
    }
  }
  b.reduce_tree(dst, operands);
}

// A partial result becomes a result.
void emit_round(Ref dst, Ref src, Builder& b) { b.reduce_tree(dst, std::array{src}); }

bool any_leaves(const Problem& problem) { return problem.leaf_count > 0; }
bool mapped_leaves(const Problem& problem) { return problem.leaf_count > 0 && problem.mapped; }

// Every rank has a node. Where a rank folds for others into a slot, its own node tells which chunk
// it is, and so how long.
bool leaves_of_each(const Problem& problem) { return problem.leaf_count >= problem.rank_count; }
bool mapped_leaves_of_each(const Problem& problem) {
  return leaves_of_each(problem) && problem.mapped;
}

// ---- Mapped memory ----------------------------------------------------------------------------

// Staging: slot j * chunk_count + c for chunk c of node j.
void stage_nodes(const Problem& problem, uint32_t chunk_count, uint32_t skipped, Builder& b) {
  const uint32_t node_count = node_count_of(problem, b.self());
  for (uint32_t node = 0; node < node_count; ++node) {
    const auto stage = [&](uint32_t first, uint32_t last) {
      if (first >= last) return;
      b.copy(b.staging(node * chunk_count + first), input(b, first, node), last - first);
    };
    stage(0, std::min(skipped, chunk_count));
    stage(skipped + 1, chunk_count);
  }
}

void emit_staged_tree(const Problem& problem, uint32_t chunk_count, uint32_t chunk, Ref dst,
                      Builder& b) {
  emit_tree(problem, dst, b, [&](Rank rank, uint32_t node) {
    return rank == b.self() ? input(b, chunk, node)
                            : Builder::staging_at(rank, node * chunk_count + chunk);
  });
}

constexpr uint32_t kNoChunk = 0xfffffffe;  // skipped: none

Shape direct_shape(const Problem& problem) {
  const uint32_t chunks = block_count(problem.collective, problem.rank_count);
  return {
      .chunk_count = chunks, .staging_slots = chunks * node_count_max(problem), .signal_count = 1};
}

void direct_all_reduce_step(const Problem& problem, Rank /*rank*/, uint32_t /*step*/, Builder& b) {
  if (problem.rank_count > 1) {
    stage_nodes(problem, 1, kNoChunk, b);
    b.signal(kAllRanks, 0);
    b.wait(kAllRanks, 0, 1);
  }
  emit_staged_tree(problem, 1, 0, b.output(0), b);
}

void direct_reduce_scatter_step(const Problem& problem, Rank rank, uint32_t /*step*/, Builder& b) {
  const Rank n = problem.rank_count;
  if (n > 1) {
    stage_nodes(problem, n, rank, b);
    b.signal(kAllRanks, 0);
    b.wait(kAllRanks, 0, 1);
  }
  emit_staged_tree(problem, n, rank, b.output(rank), b);
}

void direct_reduce_step(const Problem& problem, Rank rank, uint32_t /*step*/, Builder& b) {
  if (rank != problem.root) {
    stage_nodes(problem, 1, kNoChunk, b);
    b.signal(problem.root, 0);
    return;
  }
  if (problem.rank_count > 1) b.wait(kAllRanks, 0, 1);
  emit_staged_tree(problem, 1, 0, b.output(0), b);
}

// The rank's own chunk is not staged: slot `rank` takes its result.
Shape two_phase_shape(const Problem& problem) {
  return {.chunk_count = problem.rank_count,
          .staging_slots = problem.rank_count * node_count_max(problem),
          .signal_count = 2};
}

void emit_staged_results(const Problem& problem, Rank rank, Builder& b) {
  for (Rank i = 0; i < problem.rank_count; ++i) {
    const Rank owner = add_mod(rank, i, problem.rank_count);
    emit_round(b.output(owner), Builder::staging_at(owner, owner), b);
  }
}

// The first phase: each rank folds one segment of all ranks' nodes into its staging.
void fold_own_segment(const Problem& problem, Rank rank, Builder& b) {
  const Rank n = problem.rank_count;
  stage_nodes(problem, n, rank, b);
  b.signal(kAllRanks, 0);
  b.wait(kAllRanks, 0, 1);
  emit_staged_tree(problem, n, rank, b.staging(rank), b);
}

void two_phase_all_reduce_step(const Problem& problem, Rank rank, uint32_t /*step*/, Builder& b) {
  const Rank n = problem.rank_count;
  if (n == 1) return emit_staged_tree(problem, 1, 0, b.output(0), b);
  fold_own_segment(problem, rank, b);
  b.signal(kAllRanks, 1);
  b.wait(kAllRanks, 1, 1);
  emit_staged_results(problem, rank, b);
}

void two_phase_reduce_step(const Problem& problem, Rank rank, uint32_t /*step*/, Builder& b) {
  const Rank n = problem.rank_count;
  if (n == 1) return emit_staged_tree(problem, 1, 0, b.output(0), b);
  fold_own_segment(problem, rank, b);
  if (rank != problem.root) return b.signal(problem.root, 1);
  b.wait(kAllRanks, 1, 1);
  emit_staged_results(problem, rank, b);
}

// ---- Messages ---------------------------------------------------------------------------------

// Scratch: slot p * bound + j for node j of rank p.
Shape pairwise_shape(const Problem& problem) {
  return {.chunk_count = problem.rank_count,
          .scratch_slots = problem.rank_count * node_count_bound(problem)};
}

// One slot more: for the fold of a rank that is not the root, or at the root for what it receives.
Shape ordered_reduce_shape(const Problem& problem) {
  Shape shape = pairwise_shape(problem);
  ++shape.scratch_slots;
  return shape;
}

uint32_t pairwise_step_count(const Problem& problem, Rank /*rank*/) { return problem.rank_count; }

uint32_t ordered_step_count(const Problem& problem, Rank /*rank*/) {
  return 2 * problem.rank_count - 1;
}

// Where both ranks have several nodes, sends and receives alternate.
void emit_exchange(const Problem& problem, Rank rank, uint32_t step, Builder& b) {
  const Rank n = problem.rank_count;
  const Rank to = add_mod(rank, step + 1, n);
  const Rank from = sub_mod(rank, step + 1, n);
  const uint32_t bound = node_count_bound(problem);
  const uint32_t sent = node_count_of(problem, rank);
  const uint32_t received = node_count_of(problem, from);
  for (uint32_t node = 0; node < std::max(sent, received); ++node) {
    if (node < sent) b.send(to, input(b, to, node));
    if (node < received) b.recv(from, b.scratch(from * bound + node));
  }
}

void emit_received_tree(const Problem& problem, Rank rank, Ref dst, Builder& b) {
  const uint32_t bound = node_count_bound(problem);
  emit_tree(problem, dst, b, [&](Rank peer, uint32_t node) {
    return peer == rank ? input(b, rank, node) : b.scratch(peer * bound + node);
  });
}

void pairwise_reduce_scatter_step(const Problem& problem, Rank rank, uint32_t step, Builder& b) {
  if (step + 1 < problem.rank_count) {
    emit_exchange(problem, rank, step, b);
  } else {
    emit_received_tree(problem, rank, b.output(rank), b);
  }
}

void ordered_all_reduce_step(const Problem& problem, Rank rank, uint32_t step, Builder& b) {
  const Rank n = problem.rank_count;
  if (step < n) return pairwise_reduce_scatter_step(problem, rank, step, b);
  const Rank distance = step - n + 1;
  const Rank from = sub_mod(rank, distance, n);
  b.send(add_mod(rank, distance, n), b.output(rank));
  b.recv(from, b.output(from));
}

void ordered_reduce_step(const Problem& problem, Rank rank, uint32_t step, Builder& b) {
  const Rank n = problem.rank_count;
  const bool is_root = rank == problem.root;
  const Ref spare = b.scratch(n * node_count_bound(problem));
  if (step + 1 < n) {
    emit_exchange(problem, rank, step, b);
  } else if (step + 1 == n) {
    emit_received_tree(problem, rank, is_root ? b.output(rank) : spare, b);
  } else {
    const Rank from = add_mod(problem.root, step - n + 1, n);
    if (is_root) {
      b.recv(from, spare);
      emit_round(b.output(from), spare, b);
    } else if (rank == from) {
      b.send(problem.root, spare);
    }
  }
}

Shape linear_shape(const Problem& problem) {
  return {.chunk_count = 1, .scratch_slots = problem.rank_count * node_count_bound(problem)};
}

void linear_reduce_step(const Problem& problem, Rank rank, uint32_t /*step*/, Builder& b) {
  const uint32_t bound = node_count_bound(problem);
  if (rank != problem.root) {
    const uint32_t node_count = node_count_of(problem, rank);
    for (uint32_t node = 0; node < node_count; ++node) b.send(problem.root, input(b, 0, node));
    return;
  }
  for (Rank i = 1; i < problem.rank_count; ++i) {
    const Rank from = add_mod(rank, i, problem.rank_count);
    const uint32_t node_count = node_count_of(problem, from);
    for (uint32_t node = 0; node < node_count; ++node) b.recv(from, b.scratch(from * bound + node));
  }
  emit_tree(problem, b.output(0), b, [&](Rank peer, uint32_t node) {
    return peer == rank ? input(b, 0, node) : b.scratch(peer * bound + node);
  });
}

bool nodes_are_siblings(const Problem& problem) {
  const Rank n = problem.rank_count;
  return problem.leaf_count > 0 && std::has_single_bit(n) && problem.leaf_count % n == 0 &&
         std::has_single_bit(problem.leaf_count / n);
}

// Scratch: 0 and 1 for the node of this round and of the next, 2 for what is received.
Shape doubling_shape(const Problem& /*problem*/) { return {.chunk_count = 1, .scratch_slots = 3}; }

uint32_t doubling_step_count(const Problem& problem, Rank /*rank*/) {
  return std::max(1u, ceil_log2(problem.rank_count));
}

void doubling_step(const Problem& problem, Rank rank, uint32_t step, Builder& b) {
  if (problem.rank_count == 1) return emit_round(b.output(0), b.input(0), b);
  const bool is_last = step + 1 == ceil_log2(problem.rank_count);
  const Rank peer = rank ^ (1u << step);
  const Ref own = step == 0 ? b.input(0) : b.scratch(step % 2);
  const Ref received = b.scratch(2);
  b.send(peer, own);
  b.recv(peer, received);
  std::array operands{rank < peer ? own : received, rank < peer ? received : own};
  operands[1].folds = 1;
  b.reduce_tree(is_last ? b.output(0) : b.scratch((step + 1) % 2), operands);
}

}  // namespace

const Algorithm kLeavesDirectAllReduce = {
    .name = "direct",
    .summary = "every rank folds the staged nodes of all ranks as the tree does",
    .collective = Collective::kAllReduce,
    .needs_mapped = true,
    .needs_user_windows = false,
    .rank_order = true,
    .supports = mapped_leaves,
    .shape = direct_shape,
    .step_count = one_step,
    .step = direct_all_reduce_step,
};

const Algorithm kLeavesTwoPhaseAllReduce = {
    .name = "direct_two_phase",
    .summary = "each rank folds its share of all staged nodes; all round the results",
    .collective = Collective::kAllReduce,
    .needs_mapped = true,
    .needs_user_windows = false,
    .rank_order = true,
    .supports = mapped_leaves_of_each,
    .shape = two_phase_shape,
    .step_count = one_step,
    .step = two_phase_all_reduce_step,
};

const Algorithm kLeavesDoublingAllReduce = {
    .name = "recursive_doubling",
    .summary = "ranks at distance 2^k exchange sibling nodes; one node a rank, n a power of two",
    .collective = Collective::kAllReduce,
    .needs_mapped = false,
    .needs_user_windows = false,
    .rank_order = true,
    .supports = nodes_are_siblings,
    .shape = doubling_shape,
    .step_count = doubling_step_count,
    .step = doubling_step,
};

const Algorithm kLeavesOrderedAllReduce = {
    .name = "ordered",
    .summary = "the nodes of a share go to its owner, which folds and rounds; then all-gather",
    .collective = Collective::kAllReduce,
    .needs_mapped = false,
    .needs_user_windows = false,
    .rank_order = true,
    .supports = any_leaves,
    .shape = pairwise_shape,
    .step_count = ordered_step_count,
    .step = ordered_all_reduce_step,
};

const Algorithm kLeavesDirectReduceScatter = {
    .name = "direct",
    .summary = "each rank folds its block of the staged nodes of all ranks",
    .collective = Collective::kReduceScatter,
    .needs_mapped = true,
    .needs_user_windows = false,
    .rank_order = true,
    .supports = mapped_leaves,
    .shape = direct_shape,
    .step_count = one_step,
    .step = direct_reduce_scatter_step,
};

const Algorithm kLeavesPairwiseReduceScatter = {
    .name = "pairwise",
    .summary = "the nodes of a block go to its owner, which folds and rounds",
    .collective = Collective::kReduceScatter,
    .needs_mapped = false,
    .needs_user_windows = false,
    .rank_order = true,
    .supports = any_leaves,
    .shape = pairwise_shape,
    .step_count = pairwise_step_count,
    .step = pairwise_reduce_scatter_step,
};

const Algorithm kLeavesDirectReduce = {
    .name = "direct",
    .summary = "the root folds the staged nodes of all ranks",
    .collective = Collective::kReduce,
    .needs_mapped = true,
    .needs_user_windows = false,
    .rank_order = true,
    .supports = mapped_leaves,
    .shape = direct_shape,
    .step_count = one_step,
    .step = direct_reduce_step,
};

const Algorithm kLeavesTwoPhaseReduce = {
    .name = "direct_two_phase",
    .summary = "each rank folds its share of all staged nodes; the root rounds the results",
    .collective = Collective::kReduce,
    .needs_mapped = true,
    .needs_user_windows = false,
    .rank_order = true,
    .supports = mapped_leaves_of_each,
    .shape = two_phase_shape,
    .step_count = one_step,
    .step = two_phase_reduce_step,
};

const Algorithm kLeavesOrderedReduce = {
    .name = "ordered",
    .summary = "the nodes of a share go to its owner, which folds; the root rounds what it gathers",
    .collective = Collective::kReduce,
    .needs_mapped = false,
    .needs_user_windows = false,
    .rank_order = true,
    .supports = leaves_of_each,
    .shape = ordered_reduce_shape,
    .step_count = ordered_step_count,
    .step = ordered_reduce_step,
};

const Algorithm kLeavesLinearReduce = {
    .name = "linear",
    .summary = "every rank sends its nodes to the root, which folds",
    .collective = Collective::kReduce,
    .needs_mapped = false,
    .needs_user_windows = false,
    .rank_order = true,
    .supports = any_leaves,
    .shape = linear_shape,
    .step_count = one_step,
    .step = linear_reduce_step,
};

}  // namespace weir::algo
