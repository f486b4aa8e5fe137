// SPDX-License-Identifier: Apache-2.0
// NCCL_TESTS_SPLIT and NCCL_TESTS_SPLIT_MASK of nccl-tests: the processes form groups, and each
// group (group.h) runs the operation at the same time as the others. Thread-safe.
#pragma once

#include <cstdint>
#include <string>

namespace weir::perf {

struct Split {
  enum class Rule : uint8_t { kNone, kAnd, kOr, kMod, kDiv };
  Rule rule = Rule::kNone;
  int value = 0;

  // The group of a process, as nccl-tests numbers it; 0 for all without a rule.
  int color(int process) const;
};

// Reads the values of the two variables; nullptr: not set. The mask is hexadecimal and comes first.
// The other one is AND, OR, MOD or DIV (or & | % /) and a number: decimal, or after 0x or 0b.
// Returns "", or what is wrong.
std::string read_split(const char* mask, const char* rule, Split* split);

}  // namespace weir::perf
