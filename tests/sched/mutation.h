// SPDX-License-Identifier: Apache-2.0
// Mutants of correct programs: one change each, of a kind that a bug in an algorithm could be.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/sched/program.h"

namespace weir::sched {

enum class MutationKind : uint8_t { kDrop, kSwap, kRetarget };

struct Mutant {
  MutationKind kind;
  std::string text;  // "drop rank 1 op 3 (…)"
  Rank rank;
  uint32_t op_index;
  const std::vector<Program>* programs;
};

// Calls visit for every single drop, every swap of two neighbours of a lane that differ, and every
// change of one field (peer, chunk, rank, slot, signal, value, count, lane, one operand) to a near
// value, of ranks `ranks`. The programs are those of the original but for the one change.
void for_each_mutant(const std::vector<Program>& original, const std::vector<Rank>& ranks,
                     const std::function<void(const Mutant&)>& visit);

}  // namespace weir::sched
