// SPDX-License-Identifier: Apache-2.0
// Rules: a file (WEIR_TUNING_FILE, TOML) with which a user overrides the route.
//
//   [[rule]]
//   collective = "all_reduce"      # required
//   algorithm = "ring"             # required; one of the collective's algorithms
//   bytes_min = "64K"              # of the largest buffer of a rank; an integer, or text with K, M
//   bytes_max = "1M"               #   or G (powers of 1024); inclusive; default: no bound
//   ranks_min = 2                  # inclusive; default: no bound
//   ranks_max = 8
//   slice_bytes = 65536            # optional: 64 to 1G, a multiple of 64
//
// Values; thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/algo/algorithm.h"
#include "core/base/status.h"

namespace weir::cost {

struct Rule {
  Collective collective = Collective::kAllReduce;
  const algo::Algorithm* algorithm = nullptr;
  uint64_t bytes_min = 0;
  uint64_t bytes_max = ~uint64_t{0};
  uint32_t ranks_min = 1;
  uint32_t ranks_max = ~uint32_t{0};
  uint64_t slice_bytes = 0;  // 0: not said
  uint32_t line = 0;         // where the rule begins, for messages
};

struct Rules {
  std::string file;
  std::vector<Rule> rules;  // no two apply to the same call

  // The rule that applies, or nullptr.
  const Rule* find(Collective collective, uint64_t bytes, uint32_t rank_count) const;
};

// The error lists every mistake, one "file:line: reason" per line of text: unknown keys,
// collectives and algorithms, wrong types, empty ranges, rules that overlap. `among`: the
// algorithms that rules may name.
Result<Rules> parse_rules(const std::string& text, const std::string& file_name,
                          std::span<const algo::Algorithm* const> among = algo::all_algorithms());
Result<Rules> load_rules(const std::string& path,
                         std::span<const algo::Algorithm* const> among = algo::all_algorithms());

}  // namespace weir::cost
