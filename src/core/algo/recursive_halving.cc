// SPDX-License-Identifier: Apache-2.0
// `recursive_halving_doubling` all-reduce (Rabenseifner 2004): halve the data while the distance
// halves, folding, then double back. 2 log2(n) rounds and nearly the least bytes. And
// `recursive_halving` reduce-scatter, its first half with a grid of n blocks. Ranks beyond a power
// of two: recursive_group.h.
//
// In place: an operation that writes Output chunk c is the last that reads Input chunk c;
// reduce-scatter writes Output at the very end.
#include <array>

#include "core/algo/catalog.h"
#include "core/algo/recursive_group.h"

namespace weir::algo {
namespace {

using sched::Builder;
using sched::Ref;
using sched::Shape;

// The members [first, last) whose data a member still works on before round `round` of the halving.
struct Window {
  uint32_t first;
  uint32_t last;
};

Window window_before(const RecursiveGroup& group, uint32_t round) {
  const uint32_t width = group.member_count() >> round;
  const uint32_t first = group.member() & ~(width - 1);
  return {first, first + width};
}

// dst[first..) = fold of the own and the received operand, lower member first.
void emit_ordered_reduce(Ref dst, Ref own, Ref received, bool received_first, uint32_t count,
                         Builder& b) {
  if (received_first) {
    b.reduce(dst, std::array{received, own}, count);
  } else {
    b.reduce(dst, std::array{own, received}, count);
  }
}

// Grid: a chunk per member. Step 0: pairs fold; then `rounds` of halving and `rounds` of doubling;
// last: pairs share the result.
Shape all_reduce_shape(const Problem& problem) {
  const uint32_t members = floor_power_of_two(problem.rank_count);
  const bool has_pairs = members < problem.rank_count;
  return {.chunk_count = members, .scratch_slots = has_pairs ? members : (members + 1) / 2};
}

uint32_t all_reduce_step_count(const Problem& problem, Rank rank) {
  return 2 * RecursiveGroup(problem.rank_count, rank).round_count() + 2;
}

void emit_all_reduce_halving(const RecursiveGroup& group, uint32_t round, Builder& b) {
  const Window window = window_before(group, round);
  const uint32_t half = (window.last - window.first) / 2;
  const uint32_t other = group.member() ^ half;
  const Rank peer = group.rank_of_member(other);
  const bool is_lower = group.member() < other;
  const uint32_t kept = is_lower ? window.first : window.first + half;
  const uint32_t sent = is_lower ? window.first + half : window.first;
  const bool from_input = round == 0 && !group.in_pair();
  b.send(peer, from_input ? b.input(sent) : b.output(sent), half);
  b.recv(peer, b.scratch(0), half);
  emit_ordered_reduce(b.output(kept), from_input ? b.input(kept) : b.output(kept), b.scratch(0),
                      !is_lower, half, b);
}

void emit_all_reduce_doubling(const RecursiveGroup& group, uint32_t round, Builder& b) {
  const uint32_t width = 1u << round;
  const uint32_t mine = group.member() & ~(width - 1);
  const Rank peer = group.rank_of_member(group.member() ^ width);
  b.send(peer, b.output(mine), width);
  b.recv(peer, b.output(mine ^ width), width);
}

void all_reduce_step(const Problem& problem, Rank rank, uint32_t step, Builder& b) {
  const RecursiveGroup group(problem.rank_count, rank);
  const uint32_t rounds = group.round_count();
  const uint32_t chunk_count = group.member_count();
  if (problem.rank_count == 1) {
    if (step == 0) emit_alone(problem, 1, b);
    return;
  }
  if (step == 0) {
    if (!group.in_pair()) return;
    if (group.hands_over()) {
      b.send(group.partner(), b.input(0), chunk_count);
    } else {
      b.recv(group.partner(), b.scratch(0), chunk_count);
      b.reduce(b.output(0), std::array{b.scratch(0), b.input(0)}, chunk_count);
    }
  } else if (step <= 2 * rounds) {
    if (group.hands_over()) return;
    if (step <= rounds) {
      emit_all_reduce_halving(group, step - 1, b);
    } else {
      emit_all_reduce_doubling(group, step - 1 - rounds, b);
    }
  } else if (group.hands_over()) {
    b.recv(group.partner(), b.output(0), chunk_count);
  } else if (group.in_pair()) {
    b.send(group.partner(), b.output(0), chunk_count);
  }
}

// Grid: a chunk per rank; a member works for the one or two chunks of the ranks it stands for.
// Scratch: [0, n) folds by chunk number, [n, 2n) what is received, by chunk number.
Shape reduce_scatter_shape(const Problem& problem) {
  return {.chunk_count = problem.rank_count, .scratch_slots = 2 * problem.rank_count};
}

uint32_t reduce_scatter_step_count(const Problem& problem, Rank rank) {
  return RecursiveGroup(problem.rank_count, rank).round_count() + 2;
}

void reduce_scatter_step(const Problem& problem, Rank rank, uint32_t step, Builder& b) {
  const Rank n = problem.rank_count;
  const RecursiveGroup group(n, rank);
  if (n == 1) {
    if (step == 0) emit_alone(problem, 1, b);
    return;
  }
  const uint32_t rounds = group.round_count();
  if (step == 0) {
    if (!group.in_pair()) return;
    if (group.hands_over()) {
      b.send(group.partner(), b.input(0), n);
    } else {
      b.recv(group.partner(), b.scratch(n), n);
      b.reduce(b.scratch(0), std::array{b.scratch(n), b.input(0)}, n);
    }
  } else if (step <= rounds) {
    if (group.hands_over()) return;
    const Window window = window_before(group, step - 1);
    const uint32_t half = (window.last - window.first) / 2;
    const uint32_t other = group.member() ^ half;
    const Rank peer = group.rank_of_member(other);
    const bool is_lower = group.member() < other;
    const Rank middle = group.first_rank(window.first + half);
    const Rank first = group.first_rank(window.first);
    const Rank last = group.first_rank(window.last);
    const Rank kept = is_lower ? first : middle;
    const Rank kept_count = is_lower ? middle - first : last - middle;
    const Rank sent = is_lower ? middle : first;
    const Rank sent_count = is_lower ? last - middle : middle - first;
    const bool from_input = step == 1 && !group.in_pair();
    const bool is_result = step == rounds && kept_count == 1;
    b.send(peer, from_input ? b.input(sent) : b.scratch(sent), sent_count);
    b.recv(peer, b.scratch(n + kept), kept_count);
    emit_ordered_reduce(is_result ? b.output(kept) : b.scratch(kept),
                        from_input ? b.input(kept) : b.scratch(kept), b.scratch(n + kept),
                        !is_lower, kept_count, b);
  } else if (group.hands_over()) {
    b.recv(group.partner(), b.output(rank));
  } else if (group.in_pair()) {
    b.send(group.partner(), b.scratch(group.partner()));
    b.copy(b.output(rank), b.scratch(rank));
  }
}

}  // namespace

const Algorithm kRecursiveHalvingDoublingAllReduce = {
    .name = "recursive_halving_doubling",
    .summary = "halve and fold, then double back (Rabenseifner 2004)",
    .collective = Collective::kAllReduce,
    .needs_mapped = false,
    .needs_user_windows = false,
    .rank_order = false,
    .symmetry = Symmetry::kXor,
    .supports = any_problem,
    .shape = all_reduce_shape,
    .step_count = all_reduce_step_count,
    .step = all_reduce_step,
    .formula = {"2 k a + (n-1)/n (2 m b + m y)",
                [](const Symbols& q) {
                  return 2 * q.h * q.a + (q.p - 1) / q.p * q.m * (2 * q.b + q.y) +
                         q.pairs(q.m * (q.b + q.y), q.m * q.b);
                },
                exact_for_powers_of_two},
};

const Algorithm kRecursiveHalvingReduceScatter = {
    .name = "recursive_halving",
    .summary = "members at halving distance exchange and fold halves (Thakur et al. 2005)",
    .collective = Collective::kReduceScatter,
    .needs_mapped = false,
    .needs_user_windows = false,
    .rank_order = false,
    .symmetry = Symmetry::kXor,
    .supports = any_problem,
    .shape = reduce_scatter_shape,
    .step_count = reduce_scatter_step_count,
    .step = reduce_scatter_step,
    .formula = {"k a + (n-1) c (b + y)",
                [](const Symbols& q) {
                  return q.h * q.a + q.rest() * (q.b + q.y) + q.pairs(q.m * (q.b + q.y), q.c * q.b);
                },
                exact_for_powers_of_two},
};

}  // namespace weir::algo
