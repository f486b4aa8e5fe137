// SPDX-License-Identifier: Apache-2.0
// `bruck`: ceil(log2 n) rounds for any number of ranks. Bruck, Ho, Kipnis, Upfal and Weathersby,
// "Efficient algorithms for all-to-all communications in multiport message-passing systems" (1997).
// For short blocks: all_to_all moves every block up to log2(n) times.
//
// all_gather writes each block directly to its final place, so that there is no rotation at the
// end; a range of blocks that wraps around travels as two messages.
//
// all_to_all: block i of rank r starts as the one for rank r + i, and ends as the one from rank r -
// i. In round k all blocks whose bit k is set move 2^k ranks on. They are packed into one message,
// and stay where they were received until they are packed again or copied to Output: no unpacking.
// Input is read before Output is first written, so the algorithm works in place.
#include <array>
#include <bit>

#include "core/algo/catalog.h"
#include "core/algo/support.h"

namespace weir::algo {
namespace {

using sched::Builder;
using sched::Ref;
using sched::Shape;

Shape all_gather_shape(const Problem& problem) { return {.chunk_count = problem.rank_count}; }

uint32_t all_gather_step_count(const Problem& problem, Rank /*rank*/) {
  return ceil_log2(problem.rank_count) + 1;
}

void all_gather_step(const Problem& problem, Rank rank, uint32_t step, Builder& b) {
  const Rank n = problem.rank_count;
  if (step == 0) {
    b.copy(b.output(rank), b.input(rank));
    return;
  }
  const uint32_t distance = 1u << (step - 1);
  const uint32_t count = distance < n - distance ? distance : n - distance;
  const Rank from = add_mod(rank, distance, n);
  // Both ranges may have two segments; sending one between the receives needs a credit of only one.
  struct Segment {
    uint32_t first, count;
  };
  std::array<Segment, 2> sent{};
  std::array<Segment, 2> received{};
  uint32_t sent_count = 0;
  uint32_t received_count = 0;
  for_each_segment(rank, count, n, [&](uint32_t first, uint32_t length, uint32_t) {
    sent[sent_count++] = {first, length};
  });
  for_each_segment(from, count, n, [&](uint32_t first, uint32_t length, uint32_t) {
    received[received_count++] = {first, length};
  });
  for (uint32_t i = 0; i < 2; ++i) {
    if (i < sent_count) b.send(sub_mod(rank, distance, n), b.output(sent[i].first), sent[i].count);
    if (i < received_count) b.recv(from, b.output(received[i].first), received[i].count);
  }
}

// Where the blocks of one rank are: in Input until their first move, then in the receive area of
// the last round that moved them. Area j lies in scratch from base[j] on; the pack area comes
// first.
class BlockPlaces {
 public:
  explicit BlockPlaces(Rank n) : n_(n), next_(n / 2) {
    for (uint32_t round = 0; round < ceil_log2(n); ++round) {
      base_[round] = next_;
      next_ += moved_count(round);
    }
  }

  uint32_t slot_count() const { return next_; }
  // Blocks below n whose bit `round` is set.
  uint32_t moved_count(uint32_t round) const { return index_in_round(n_, round); }
  uint32_t base(uint32_t round) const { return base_[round]; }

  // The place of block `block` before round `round`.
  Ref place(Rank rank, uint32_t block, uint32_t round, const Builder& b) const {
    const uint32_t moves = block & ((1u << round) - 1);
    if (moves == 0) return b.input(rank * n_ + add_mod(rank, block, n_));
    const uint32_t last = static_cast<uint32_t>(std::bit_width(moves)) - 1;
    return b.scratch(base_[last] + index_in_round(block, last));
  }

 private:
  // Numbers below `block` whose bit `round` is set.
  static uint32_t index_in_round(uint32_t block, uint32_t round) {
    const uint32_t bit = 1u << round;
    const uint32_t whole = block >> (round + 1) << round;
    const uint32_t rest = block & (2 * bit - 1);
    return whole + (rest > bit ? rest - bit : 0);
  }

  Rank n_;
  uint32_t next_;
  std::array<uint32_t, 32> base_{};
};

Shape all_to_all_shape(const Problem& problem) {
  const Rank n = problem.rank_count;
  return {.chunk_count = n * n, .scratch_slots = BlockPlaces(n).slot_count()};
}

uint32_t all_to_all_step_count(const Problem& problem, Rank /*rank*/) {
  return ceil_log2(problem.rank_count) + 1;
}

void all_to_all_step(const Problem& problem, Rank rank, uint32_t step, Builder& b) {
  const Rank n = problem.rank_count;
  const uint32_t rounds = ceil_log2(n);
  const BlockPlaces places(n);
  if (step == rounds) {
    for (uint32_t block = 0; block < n; ++block) {
      b.copy(b.output(sub_mod(rank, block, n) * n + rank), places.place(rank, block, rounds, b));
    }
    return;
  }
  const uint32_t bit = 1u << step;
  uint32_t packed = 0;
  for (uint32_t block = bit; block < n; block = (block + 1) | bit) {
    b.copy(b.scratch(packed++), places.place(rank, block, step, b));
  }
  b.send(add_mod(rank, bit, n), b.scratch(0), packed);
  b.recv(sub_mod(rank, bit, n), b.scratch(places.base(step)), packed);
}

double all_to_all_ns(const Symbols& q) {
  double sum = q.n * q.c * q.x;
  const uint32_t n = static_cast<uint32_t>(q.n);
  for (uint32_t bit = 1; bit < n; bit *= 2) {
    uint32_t moved = 0;
    for (uint32_t block = 0; block < n; ++block) moved += (block & bit) != 0;
    sum += q.a + moved * q.c * (q.b + q.x);
  }
  return sum;
}

}  // namespace

const Algorithm kBruckAllGather = {
    .name = "bruck",
    .summary = "blocks double every round, for any number of ranks (Bruck et al. 1997)",
    .collective = Collective::kAllGather,
    .needs_mapped = false,
    .needs_user_windows = false,
    .rank_order = false,
    .supports = any_problem,
    .shape = all_gather_shape,
    .step_count = all_gather_step_count,
    .step = all_gather_step,
    .formula = {"c x + k a + (n-1) c b",
                [](const Symbols& q) { return q.c * q.x + q.k * q.a + q.rest() * q.b; },
                never_exact},
};

const Algorithm kBruckAllToAll = {
    .name = "bruck",
    .summary =
        "log2(n) rounds, each moves the blocks with one bit of their distance (Bruck et al. 1997)",
    .collective = Collective::kAllToAll,
    .needs_mapped = false,
    .needs_user_windows = false,
    .rank_order = false,
    .symmetry = Symmetry::kShift,
    .supports = any_problem,
    .shape = all_to_all_shape,
    .step_count = all_to_all_step_count,
    .step = all_to_all_step,
    .formula = {"sum over rounds i < k (a + n_i c (b + x)) + n c x", all_to_all_ns, always_exact},
};

}  // namespace weir::algo
