// SPDX-License-Identifier: Apache-2.0
// `linear`: the root exchanges one message with every other rank, nearest first. One hop, n - 1
// messages at the root; best for few ranks or long blocks, where the root's port is the bound
// anyway.
//
// In place: the root's own block is copied onto itself; nothing is read after it was written.
#include "core/algo/catalog.h"
#include "core/algo/support.h"

namespace weir::algo {
namespace {

using sched::Builder;
using sched::Shape;

Shape shape(const Problem& problem) {
  return {.chunk_count = block_count(problem.collective, problem.rank_count)};
}

void broadcast_step(const Problem& problem, Rank rank, uint32_t /*step*/, Builder& b) {
  if (rank != problem.root) {
    b.recv(problem.root, b.output(0));
    return;
  }
  for (Rank i = 1; i < problem.rank_count; ++i) {
    b.send(add_mod(rank, i, problem.rank_count), b.input(0));
  }
  b.copy(b.output(0), b.input(0));
}

void gather_step(const Problem& problem, Rank rank, uint32_t /*step*/, Builder& b) {
  if (rank != problem.root) {
    b.send(problem.root, b.input(rank));
    return;
  }
  b.copy(b.output(rank), b.input(rank));
  for (Rank i = 1; i < problem.rank_count; ++i) {
    const Rank peer = add_mod(rank, i, problem.rank_count);
    b.recv(peer, b.output(peer));
  }
}

void scatter_step(const Problem& problem, Rank rank, uint32_t /*step*/, Builder& b) {
  if (rank != problem.root) {
    b.recv(problem.root, b.output(rank));
    return;
  }
  for (Rank i = 1; i < problem.rank_count; ++i) {
    const Rank peer = add_mod(rank, i, problem.rank_count);
    b.send(peer, b.input(peer));
  }
  b.copy(b.output(rank), b.input(rank));
}

}  // namespace

const Algorithm kLinearBroadcast = {
    .name = "linear",
    .summary = "the root sends to each rank in turn",
    .collective = Collective::kBroadcast,
    .needs_mapped = false,
    .needs_user_windows = false,
    .rank_order = false,
    .supports = any_problem,
    .shape = shape,
    .step_count = one_step,
    .step = broadcast_step,
};

const Algorithm kLinearGather = {
    .name = "linear",
    .summary = "each rank sends its block to the root",
    .collective = Collective::kGather,
    .needs_mapped = false,
    .needs_user_windows = false,
    .rank_order = false,
    .supports = any_problem,
    .shape = shape,
    .step_count = one_step,
    .step = gather_step,
};

const Algorithm kLinearScatter = {
    .name = "linear",
    .summary = "the root sends each rank its block",
    .collective = Collective::kScatter,
    .needs_mapped = false,
    .needs_user_windows = false,
    .rank_order = false,
    .supports = any_problem,
    .shape = shape,
    .step_count = one_step,
    .step = scatter_step,
};

}  // namespace weir::algo
