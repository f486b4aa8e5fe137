// SPDX-License-Identifier: Apache-2.0
// `binomial` trees from any root: ceil(log2 n) rounds, each doubling (or halving) the ranks that
// take part. Ranks are renumbered from the root: v = (rank - root) mod n; the parent of v is v
// without its lowest set bit, and v's subtree is the `size` numbers from v on. In gather and
// scatter a subtree's blocks travel in one message, or in two where they wrap around the end of the
// grid.
//
// In place: only the root has both buffers. It copies its own block onto itself, and a reduce reads
// Input in the first operation that writes Output.
#include <algorithm>
#include <array>

#include "core/algo/catalog.h"
#include "core/algo/support.h"

namespace weir::algo {
namespace {

using sched::Builder;
using sched::Ref;
using sched::Shape;

// A rank's position in the tree.
struct Position {
  Position(const Problem& problem, Rank rank)
      : n(problem.rank_count), root(problem.root), number(sub_mod(rank, problem.root, n)) {
    lowest_bit = number == 0 ? floor_power_of_two(n > 1 ? n - 1 : 1) * 2 : number & (0u - number);
  }
  Rank rank_of(uint32_t v) const { return add_mod(root, v, n); }
  Rank parent() const { return rank_of(number - lowest_bit); }
  bool has_child(uint32_t bit) const { return bit < lowest_bit && number + bit < n; }
  Rank child(uint32_t bit) const { return rank_of(number + bit); }
  uint32_t child_size(uint32_t bit) const { return std::min(bit, n - number - bit); }
  uint32_t size() const { return number == 0 ? n : std::min(lowest_bit, n - number); }

  Rank n;
  Rank root;
  uint32_t number;
  uint32_t lowest_bit;  // of number; for the root the first power of two >= n
};

Shape broadcast_shape(const Problem& /*problem*/) { return {.chunk_count = 1}; }

void broadcast_step(const Problem& problem, Rank rank, uint32_t /*step*/, Builder& b) {
  const Position at(problem, rank);
  const bool is_root = at.number == 0;
  if (!is_root) b.recv(at.parent(), b.output(0));
  for (uint32_t bit = at.lowest_bit / 2; bit > 0; bit /= 2) {
    if (at.has_child(bit)) b.send(at.child(bit), is_root ? b.input(0) : b.output(0));
  }
  if (is_root) b.copy(b.output(0), b.input(0));
}

// Slot 0 receives, slot 1 holds the fold of a rank that is not the root.
Shape reduce_shape(const Problem& /*problem*/) { return {.chunk_count = 1, .scratch_slots = 2}; }

void reduce_step(const Problem& problem, Rank rank, uint32_t /*step*/, Builder& b) {
  if (emit_alone(problem, 1, b)) return;
  const Position at(problem, rank);
  const bool is_root = at.number == 0;
  const Ref fold = is_root ? b.output(0) : b.scratch(1);
  Ref so_far = b.input(0);
  for (uint32_t bit = 1; at.has_child(bit); bit *= 2) {
    b.recv(at.child(bit), b.scratch(0));
    b.reduce(fold, std::array{so_far, b.scratch(0)});
    so_far = fold;
  }
  if (!is_root) b.send(at.parent(), so_far);
}

// Slot i holds the block of number v + i, for inner ranks other than the root.
Shape blocks_shape(const Problem& problem) {
  const Rank n = problem.rank_count;
  return {.chunk_count = n, .scratch_slots = n > 1 ? floor_power_of_two(n - 1) : 0};
}

void gather_step(const Problem& problem, Rank rank, uint32_t /*step*/, Builder& b) {
  const Position at(problem, rank);
  const bool is_root = at.number == 0;
  const bool is_leaf = at.size() == 1 && !is_root;
  if (is_root) {
    b.copy(b.output(rank), b.input(rank));
  } else if (!is_leaf) {
    b.copy(b.scratch(0), b.input(rank));
  }
  for (uint32_t bit = 1; at.has_child(bit); bit *= 2) {
    for_each_segment(at.child(bit), at.child_size(bit), at.n,
                     [&](uint32_t first, uint32_t count, uint32_t offset) {
                       b.recv(at.child(bit), is_root ? b.output(first) : b.scratch(bit + offset),
                              count);
                     });
  }
  if (is_root) return;
  for_each_segment(rank, at.size(), at.n, [&](uint32_t, uint32_t count, uint32_t offset) {
    b.send(at.parent(), is_leaf ? b.input(rank) : b.scratch(offset), count);
  });
}

void scatter_step(const Problem& problem, Rank rank, uint32_t /*step*/, Builder& b) {
  const Position at(problem, rank);
  const bool is_root = at.number == 0;
  const bool is_leaf = at.size() == 1 && !is_root;
  if (!is_root) {
    for_each_segment(rank, at.size(), at.n, [&](uint32_t, uint32_t count, uint32_t offset) {
      b.recv(at.parent(), is_leaf ? b.output(rank) : b.scratch(offset), count);
    });
  }
  for (uint32_t bit = at.lowest_bit / 2; bit > 0; bit /= 2) {
    if (!at.has_child(bit)) continue;
    for_each_segment(at.child(bit), at.child_size(bit), at.n,
                     [&](uint32_t first, uint32_t count, uint32_t offset) {
                       b.send(at.child(bit), is_root ? b.input(first) : b.scratch(bit + offset),
                              count);
                     });
  }
  if (is_root) {
    b.copy(b.output(rank), b.input(rank));
  } else if (!is_leaf) {
    b.copy(b.output(rank), b.scratch(0));
  }
}

}  // namespace

const Algorithm kBinomialBroadcast = {
    .name = "binomial",
    .summary = "a binomial tree: the ranks that have the data double every round",
    .collective = Collective::kBroadcast,
    .needs_mapped = false,
    .needs_user_windows = false,
    .rank_order = false,
    .supports = any_problem,
    .shape = broadcast_shape,
    .step_count = one_step,
    .step = broadcast_step,
    .formula = {"max(k (a + m b), k o + m x)",
                [](const Symbols& q) {
                  return std::max(q.k * (q.a + q.m * q.b), q.k * q.o + q.m * q.x);
                },
                exact_for_powers_of_two},
};

const Algorithm kBinomialReduce = {
    .name = "binomial",
    .summary = "a binomial tree: partial folds meet pairwise on their way to the root",
    .collective = Collective::kReduce,
    .needs_mapped = false,
    .needs_user_windows = false,
    .rank_order = false,
    .supports = any_problem,
    .shape = reduce_shape,
    .step_count = one_step,
    .step = reduce_step,
    .formula = {"k (a + m b + m y)",
                [](const Symbols& q) { return q.k * (q.a + q.m * (q.b + q.y)); },
                exact_for_powers_of_two},
};

const Algorithm kBinomialGather = {
    .name = "binomial",
    .summary = "a binomial tree: blocks of whole subtrees travel together to the root",
    .collective = Collective::kGather,
    .needs_mapped = false,
    .needs_user_windows = false,
    .rank_order = false,
    .supports = any_problem,
    .shape = blocks_shape,
    .step_count = one_step,
    .step = gather_step,
    .formula = {"k a + (n-1) c b + max(0, c x - o - L - c b)",
                [](const Symbols& q) {
                  return q.k * q.a + q.rest() * q.b +
                         std::max(0.0, q.c * q.x - q.o - q.L - q.c * q.b);
                },
                exact_for_powers_of_two},
};

const Algorithm kBinomialScatter = {
    .name = "binomial",
    .summary = "a binomial tree: blocks of whole subtrees travel together from the root",
    .collective = Collective::kScatter,
    .needs_mapped = false,
    .needs_user_windows = false,
    .rank_order = false,
    .supports = any_problem,
    .shape = blocks_shape,
    .step_count = one_step,
    .step = scatter_step,
    .formula = {"(k-1) a + (n-2) c b + max(a + c b, o + c x)",
                [](const Symbols& q) {
                  return (q.k - 1) * q.a + (q.n - 2) * q.c * q.b +
                         std::max(q.a + q.c * q.b, q.o + q.c * q.x);
                },
                exact_for_powers_of_two},
};

}  // namespace weir::algo
