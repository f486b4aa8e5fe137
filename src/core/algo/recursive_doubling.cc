// SPDX-License-Identifier: Apache-2.0
// `recursive_doubling`: in round k members at distance 2^k exchange all they have. log2(n) rounds,
// the least possible with messages; for short data. Thakur, Rabenseifner and Gropp, "Optimization
// of collective communication operations in MPICH" (2005). Ranks beyond a power of two:
// recursive_group.h.
//
// Both partners fold the lower half of the ranks first, so that all ranks hold the same bits.
//
// In place: Input is read for the last time by the operation that first writes Output.
#include <array>

#include "core/algo/catalog.h"
#include "core/algo/recursive_group.h"

namespace weir::algo {
namespace {

using sched::Builder;
using sched::Ref;
using sched::Shape;

// Step 0: pairs fold; steps 1 .. rounds: exchange; last: pairs share the result.
uint32_t step_count(const Problem& problem, Rank rank) {
  return RecursiveGroup(problem.rank_count, rank).round_count() + 2;
}

Shape all_reduce_shape(const Problem& /*problem*/) {
  return {.chunk_count = 1, .scratch_slots = 1};
}

void all_reduce_step(const Problem& problem, Rank rank, uint32_t step, Builder& b) {
  const RecursiveGroup group(problem.rank_count, rank);
  if (problem.rank_count == 1) {
    if (step == 0) emit_alone(problem, 1, b);
    return;
  }
  if (step == 0) {
    if (!group.in_pair()) return;
    if (group.hands_over()) {
      b.send(group.partner(), b.input(0));
    } else {
      b.recv(group.partner(), b.scratch(0));
      b.reduce(b.output(0), std::array{b.scratch(0), b.input(0)});
    }
  } else if (step <= group.round_count()) {
    if (group.hands_over()) return;
    const uint32_t distance = 1u << (step - 1);
    const uint32_t other = group.member() ^ distance;
    const Rank peer = group.rank_of_member(other);
    const Ref mine = step == 1 && !group.in_pair() ? b.input(0) : b.output(0);
    b.send(peer, mine);
    b.recv(peer, b.scratch(0));
    if (other < group.member()) {
      b.reduce(b.output(0), std::array{b.scratch(0), mine});
    } else {
      b.reduce(b.output(0), std::array{mine, b.scratch(0)});
    }
  } else if (group.hands_over()) {
    b.recv(group.partner(), b.output(0));
  } else if (group.in_pair()) {
    b.send(group.partner(), b.output(0));
  }
}

Shape all_gather_shape(const Problem& problem) { return {.chunk_count = problem.rank_count}; }

void all_gather_step(const Problem& problem, Rank rank, uint32_t step, Builder& b) {
  const Rank n = problem.rank_count;
  const RecursiveGroup group(n, rank);
  if (step == 0) {
    b.copy(b.output(rank), b.input(rank));
    if (!group.in_pair()) return;
    if (group.hands_over()) {
      b.send(group.partner(), b.input(rank));
    } else {
      b.recv(group.partner(), b.output(group.partner()));
    }
  } else if (step <= group.round_count()) {
    if (group.hands_over()) return;
    const uint32_t distance = 1u << (step - 1);
    const uint32_t mine = group.member() & ~(distance - 1);
    const uint32_t theirs = mine ^ distance;
    const Rank peer = group.rank_of_member(group.member() ^ distance);
    const Rank first_mine = group.first_rank(mine);
    const Rank first_theirs = group.first_rank(theirs);
    b.send(peer, b.output(first_mine), group.first_rank(mine + distance) - first_mine);
    b.recv(peer, b.output(first_theirs), group.first_rank(theirs + distance) - first_theirs);
  } else if (group.in_pair()) {
    // The rank that handed over its work has its own block: the two ranges around it are sent.
    const Rank receiver = rank & ~1u;
    const bool receives = group.hands_over();
    for (const auto& [first, last] : {std::array{0u, receiver}, std::array{receiver + 1, n}}) {
      if (first == last) continue;
      if (receives) {
        b.recv(group.partner(), b.output(first), last - first);
      } else {
        b.send(group.partner(), b.output(first), last - first);
      }
    }
  }
}

}  // namespace

const Algorithm kRecursiveDoublingAllReduce = {
    .name = "recursive_doubling",
    .summary = "members at doubling distance exchange and fold everything (Thakur et al. 2005)",
    .collective = Collective::kAllReduce,
    .needs_mapped = false,
    .needs_user_windows = false,
    .rank_order = false,
    .symmetry = Symmetry::kXor,
    .supports = any_problem,
    .shape = all_reduce_shape,
    .step_count = step_count,
    .step = all_reduce_step,
    .formula = {"k (a + m b + m y)",
                [](const Symbols& q) {
                  return q.h * (q.a + q.m * (q.b + q.y)) + q.pairs(q.m * (q.b + q.y), q.m * q.b);
                },
                exact_for_powers_of_two},
};

const Algorithm kRecursiveDoublingAllGather = {
    .name = "recursive_doubling",
    .summary = "members at doubling distance exchange all blocks they have (Thakur et al. 2005)",
    .collective = Collective::kAllGather,
    .needs_mapped = false,
    .needs_user_windows = false,
    .rank_order = false,
    .symmetry = Symmetry::kXor,
    .supports = any_problem,
    .shape = all_gather_shape,
    .step_count = step_count,
    .step = all_gather_step,
    .formula = {"c x + k a + (n-1) c b",
                [](const Symbols& q) {
                  return q.c * q.x + q.h * q.a + q.rest() * q.b +
                         q.pairs(q.c * q.b, q.rest() * q.b);
                },
                exact_for_powers_of_two},
};

}  // namespace weir::algo
