// SPDX-License-Identifier: Apache-2.0
#include "core/base/rank_list.h"

#include <fmt/format.h>

namespace weir {
namespace {

constexpr size_t kItemCountMax = 16;

}  // namespace

std::string describe_ranks(const std::vector<Rank>& ranks) {
  if (ranks.empty()) return "no rank";
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  size_t item_count = 0;
  for (size_t first = 0; first < ranks.size();) {
    if (item_count == kItemCountMax) {
      text += fmt::format(" and {} more", ranks.size() - first);
      break;
    }
    size_t last = first;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (last - first < 2) last = first;
    if (item_count > 0) text += ", ";
    text += last == first ? fmt::format("{}", ranks[first])
                          : fmt::format("{}-{}", ranks[first], ranks[last]);
    ++item_count;
    first = last + 1;
  }
  return text;
}

}  // namespace weir
