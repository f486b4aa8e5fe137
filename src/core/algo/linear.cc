// SPDX-License-Identifier: Apache-2.0
// `linear`: the root exchanges one message with every other rank, nearest first. One hop, n - 1
// messages at the root; best for few ranks or long blocks, where the root's port is the bound
// anyway.
//
// all_to_all: every rank copies its own block, sends to all others and then receives from all, so
// that no message waits for a round to end. This helps with blocks that differ in length, where a
// round of `pairwise` lasts as long as its longest block; with equal blocks `pairwise` keeps every
// port as busy and never has two senders for one receiver. The order of partners is that of
// `pairwise`.
//
// In place: the root's own block is copied onto itself; no data is read after it was overwritten.
// all_to_all: a block is sent before the one that takes its place is received.
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

Shape all_to_all_shape(const Problem& problem) {
  return {.chunk_count = problem.rank_count * problem.rank_count};
}

bool blocks_differ(const Problem& problem) { return problem.lengths != BlockLengths::kEqual; }

void all_to_all_step(const Problem& problem, Rank rank, uint32_t /*step*/, Builder& b) {
  const Rank n = problem.rank_count;
  b.copy(b.output(rank * n + rank), b.input(rank * n + rank));
  for (Rank round = 0; round < n; ++round) {
    const Rank peer = partner_in_round(rank, round, n);
    if (peer != rank) b.send(peer, b.input(rank * n + peer));
  }
  for (Rank round = 0; round < n; ++round) {
    const Rank peer = partner_in_round(rank, round, n);
    if (peer != rank) b.recv(peer, b.output(peer * n + rank));
  }
}

double gather_ns(const Symbols& q) {
  const double first = q.o + q.L;
  return std::max({first + q.rest() * q.b + q.r, first + q.c * q.b + (q.n - 1) * q.r,
                   q.c * q.x + (q.n - 1) * q.r});
}

// The root sends messages of `bytes` each one after another and copies its own block at the end.
double send_ns(const Symbols& q, double bytes) {
  const double last_leaves = q.o + (q.n - 2) * std::max(q.o, bytes * q.b);
  return std::max(last_leaves + q.L + bytes * q.b + q.r, (q.n - 1) * q.o + bytes * q.x);
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
    .formula = {"o + (n-2) max(o, m b) + L + m b + r",
                [](const Symbols& q) { return send_ns(q, q.m); }, always_exact},
};

const Algorithm kLinearAllToAll = {
    .name = "linear",
    .summary = "every rank sends all its blocks at once; for blocks that differ in length",
    .collective = Collective::kAllToAll,
    .needs_mapped = false,
    .needs_user_windows = false,
    .rank_order = false,
    .lengths = BlockLengths::kKnownToEnds,
    .supports = blocks_differ,
    .shape = all_to_all_shape,
    .step_count = one_step,
    .step = all_to_all_step,
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
    .formula = {"o + L + max((n-1) c b + r, c b + (n-1) r)", gather_ns, exact_from_root_0},
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
    .formula = {"o + (n-2) max(o, c b) + L + c b + r",
                [](const Symbols& q) { return send_ns(q, q.c); }, always_exact},
};

}  // namespace weir::algo
