// SPDX-License-Identifier: Apache-2.0
// NCCL_TESTS_SPLIT and NCCL_TESTS_SPLIT_MASK of nccl-tests: the processes form groups, and each
// group runs the operation at the same time as the others. Not thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include <weir/weir.h>

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

// The ranks with which this one performs the operation: those of its group, or all.
class Group {
 public:
  Group() = default;
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  // Collective over `all`. Returns "", or the error.
  std::string make(weir_comm_t all, int rank, const Split& split, int process);
  // Collective over the group. Returns "", or the error.
  std::string release();

  weir_comm_t comm() const { return comm_; }
  int rank() const { return rank_; }
  int rank_count() const { return rank_count_; }

 private:
  weir_comm_t comm_ = nullptr;
  bool owned_ = false;
  int rank_ = 0;
  int rank_count_ = 1;
};

}  // namespace weir::perf
