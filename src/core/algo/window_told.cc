// SPDX-License-Identifier: Apache-2.0
// In place, the ranks of an all_to_all write what their peers still read: there, Input must be
// closed. The other programs write no chunk of Input that a peer reads.
#include "core/algo/window_told.h"

#include <vector>

#include "core/algo/support.h"

namespace weir::algo::told {
namespace {

using sched::Builder;
using sched::kAllRanks;
using sched::Ref;
using sched::When;

constexpr uint8_t kEntered = 0;

// The slot that stands in for a chunk is its number in the buffer.
void stage_input(uint32_t first, uint32_t count, uint32_t skipped, Builder& b) {
  b.when(When::kInputClosed);
  stage_all_but(first, first + count, skipped, b);
  b.when(When::kAlways);
}

void stage_one_input(uint32_t chunk, Builder& b) {
  b.when(When::kInputClosed);
  b.copy(b.staging(0), b.input(chunk));
  b.when(When::kAlways);
}

void wait_if(When when, uint32_t peer, uint8_t signal, Builder& b) {
  b.when(when);
  b.wait(peer, signal, 1);
  b.when(When::kAlways);
}

void meet(uint8_t signal, Builder& b) {
  b.signal(kAllRanks, signal);
  b.wait(kAllRanks, signal, 1);
}

// "I no longer read yours"; whose Input is open waits for the others'.
void leave(uint8_t signal, Builder& b) {
  b.signal(kAllRanks, signal);
  wait_if(When::kInputOpen, kAllRanks, signal, b);
}

// dst = fold in rank order of chunk `rank` of all Inputs.
void emit_fold(const Problem& problem, Rank rank, Ref dst, Builder& b) {
  std::vector<Ref> operands(problem.rank_count);
  for (Rank peer = 0; peer < problem.rank_count; ++peer) {
    operands[peer] = peer == rank ? b.input(rank) : Builder::input_at(peer, rank, rank);
  }
  b.reduce(dst, operands);
}

// Calls visit(peer) for all others, beginning with the next one, so that readers spread.
template <typename Visit>
void for_each_peer(const Problem& problem, Rank rank, Visit&& visit) {
  for (Rank i = 1; i < problem.rank_count; ++i) visit(add_mod(rank, i, problem.rank_count));
}

void reduce_scatter(const Problem& problem, Rank rank, Builder& b) {
  stage_input(0, problem.rank_count, rank, b);
  meet(kEntered, b);
  emit_fold(problem, rank, b.output(rank), b);
  leave(1, b);
}

void all_gather(const Problem& problem, Rank rank, Builder& b) {
  stage_one_input(rank, b);
  b.signal(kAllRanks, kEntered);
  b.copy(b.output(rank), b.input(rank));
  b.wait(kAllRanks, kEntered, 1);
  for_each_peer(problem, rank,
                [&](Rank peer) { b.copy(b.output(peer), Builder::input_at(peer, peer, 0)); });
  leave(1, b);
}

void all_to_all(const Problem& problem, Rank rank, Builder& b) {
  const Rank n = problem.rank_count;
  stage_input(rank * n, n, rank * n + rank, b);
  b.signal(kAllRanks, kEntered);
  b.copy(b.output(rank * n + rank), b.input(rank * n + rank));
  b.wait(kAllRanks, kEntered, 1);
  for_each_peer(problem, rank, [&](Rank peer) {
    b.copy(b.output(peer * n + rank), Builder::input_at(peer, peer * n + rank, rank));
  });
  leave(1, b);
}

void broadcast(const Problem& problem, Rank rank, Builder& b) {
  if (rank == problem.root) {
    stage_one_input(0, b);
    b.signal(kAllRanks, kEntered);
    b.copy(b.output(0), b.input(0));
    wait_if(When::kInputOpen, kAllRanks, 1, b);
  } else {
    b.wait(problem.root, kEntered, 1);
    b.copy(b.output(0), Builder::input_at(problem.root, 0, 0));
    b.signal(problem.root, 1);
  }
}

void gather(const Problem& problem, Rank rank, Builder& b) {
  if (rank != problem.root) {
    stage_one_input(rank, b);
    b.signal(problem.root, kEntered);
    wait_if(When::kInputOpen, problem.root, 1, b);
    return;
  }
  b.copy(b.output(rank), b.input(rank));
  b.wait(kAllRanks, kEntered, 1);
  for_each_peer(problem, rank,
                [&](Rank peer) { b.copy(b.output(peer), Builder::input_at(peer, peer, 0)); });
  b.signal(kAllRanks, 1);
}

void scatter(const Problem& problem, Rank rank, Builder& b) {
  if (rank == problem.root) {
    stage_input(0, problem.rank_count, rank, b);
    b.signal(kAllRanks, kEntered);
    b.copy(b.output(rank), b.input(rank));
    wait_if(When::kInputOpen, kAllRanks, 1, b);
  } else {
    b.wait(problem.root, kEntered, 1);
    b.copy(b.output(rank), Builder::input_at(problem.root, rank, rank));
    b.signal(problem.root, 1);
  }
}

}  // namespace

sched::Shape shape(const Problem& problem) {
  const Rank n = problem.rank_count;
  sched::Shape shape{.chunk_count = n, .staging_slots = n, .signal_count = 2};
  switch (problem.collective) {
    case Collective::kAllToAll:
      shape.chunk_count = n * n;
      break;
    case Collective::kBroadcast:
      shape.chunk_count = shape.staging_slots = 1;
      break;
    case Collective::kAllGather:
    case Collective::kGather:
      shape.staging_slots = 1;
      break;
    default:
      break;
  }
  return shape;
}

void emit(const Problem& problem, Rank rank, Builder& builder) {
  switch (problem.collective) {
    case Collective::kReduceScatter:
      return reduce_scatter(problem, rank, builder);
    case Collective::kAllGather:
      return all_gather(problem, rank, builder);
    case Collective::kAllToAll:
      return all_to_all(problem, rank, builder);
    case Collective::kBroadcast:
      return broadcast(problem, rank, builder);
    case Collective::kGather:
      return gather(problem, rank, builder);
    case Collective::kScatter:
      return scatter(problem, rank, builder);
    default:
      return;
  }
}

}  // namespace weir::algo::told
