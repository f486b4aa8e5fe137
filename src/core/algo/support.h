// SPDX-License-Identifier: Apache-2.0
// Shared by several algorithms: the usual answers to supports() and step_count(), the program of a
// single rank, and segments of rank ranges that wrap around. Pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/algo/algorithm.h"

namespace weir::algo {

// supports()
bool any_problem(const Problem& problem);
bool mapped_staging(const Problem& problem);
bool mapped_inputs(const Problem& problem);
bool mapped_inputs_outputs(const Problem& problem);

// step_count()
uint32_t one_step(const Problem& problem, Rank rank);

// Number of grid chunks of a collective whose blocks are one chunk each.
uint32_t block_count(Collective collective, Rank rank_count);

// When the communicator has one rank: emits Output <- Input for the whole grid (nothing for a
// barrier) and returns true.
bool emit_alone(const Problem& problem, uint32_t chunk_count, sched::Builder& builder);

// Copies the chunks [first, last) of `input`, except `skipped`, to Staging slots chunk - first.
void stage_all_but(uint32_t first, uint32_t last, uint32_t skipped, sched::Builder& builder);

// dst = fold of the operands; a single one is copied (in place onto itself, which costs nothing).
void emit_fold_or_copy(sched::Ref dst, std::span<const sched::Ref> operands, uint32_t count,
                       sched::Builder& builder);

// The largest power of two <= n, n >= 1.
constexpr uint32_t floor_power_of_two(uint32_t n) {
  uint32_t power = 1;
  while (power <= n / 2) power *= 2;
  return power;
}

// ceil(log2(n)), n >= 1.
constexpr uint32_t ceil_log2(uint32_t n) {
  uint32_t bits = 0;
  while ((uint64_t{1} << bits) < n) ++bits;
  return bits;
}

constexpr Rank add_mod(Rank a, Rank b, Rank n) { return static_cast<Rank>((uint64_t{a} + b) % n); }
// a - b modulo n; b <= n.
constexpr Rank sub_mod(Rank a, Rank b, Rank n) {
  return static_cast<Rank>((uint64_t{a} + n - b) % n);
}

// With whom `rank` exchanges blocks in round `round` of n: everybody once, itself in one round, and
// the partner's partner is the rank. Of b consecutive ranks, b the largest power of two that
// divides n, all have partners in the same such block; blocks are paired as (round - block) mod
// their number, ranks within by xor.
constexpr Rank partner_in_round(Rank rank, Rank round, Rank n) {
  const Rank b = n & (0u - n);
  return sub_mod(round / b, rank / b, n / b) * b + (rank % b ^ round % b);
}

// Calls visit(first, count, offset) for the one or two ranges that the `count` numbers from `first`
// on, modulo `n`, consist of; `offset` counts from the start of the whole range.
template <typename Visit>
void for_each_segment(uint32_t first, uint32_t count, uint32_t n, Visit&& visit) {
  first %= n;
  const uint32_t head = count < n - first ? count : n - first;
  if (head > 0) visit(first, head, 0u);
  if (count > head) visit(0u, count - head, head);
}

}  // namespace weir::algo
