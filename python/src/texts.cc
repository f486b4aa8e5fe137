// SPDX-License-Identifier: Apache-2.0
#include "texts.h"

#include <algorithm>
#include <regex>
#include <set>
#include <string_view>
#include <utility>

namespace weir::pytorch {

namespace {

constexpr size_t kNamedRanksMax = 8;

// Those that follow "rank" or "ranks": "rank 3", "ranks 1, 5-7".
std::set<size_t> ranks_in(const std::string& text, size_t rank_count) {
  static const std::regex kList(R"(\branks? (\d{1,9}(-\d{1,9})?(, \d{1,9}(-\d{1,9})?)*))");
  static const std::regex kItem(R"((\d{1,9})(-(\d{1,9}))?)");
  std::set<size_t> ranks;
  for (std::sregex_iterator list(text.begin(), text.end(), kList), end; list != end; ++list) {
    const std::string items = (*list)[1];
    for (std::sregex_iterator item(items.begin(), items.end(), kItem); item != end; ++item) {
      const size_t first = std::stoul((*item)[1]);
      const size_t last = (*item)[3].matched ? std::stoul((*item)[3]) : first;
      for (size_t rank = first; rank <= std::min(last, rank_count - 1); ++rank) ranks.insert(rank);
    }
  }
  return ranks;
}

constexpr std::pair<std::string_view, std::string_view> kPhrases[] = {
    {"weir_comm_lost_ranks", "weir.lost_ranks"},
    {"weir_comm_shrink", "weir.shrink"},
    {"weir_comm_split", "torch.distributed.new_group"},
    {"weir_comm_abort", "abort"},
    {"weir_window_create", "weir.Window"},
    {"weir_wait_signal", "Window.wait_signal"},
    {"weir_arena_alloc", "allocate_tensor"},
    {"use weir_send and weir_recv, or another transport", "use another transport"},
    // PyTorch gives each group its deadline.
    {"or raise WEIR_TIMEOUT_MS", "or give the group or the call a longer timeout"},
    {"raise the timeout (WEIR_TIMEOUT_MS)", "give the group a longer timeout"},
    // A process that ends in order does so too.
    {" destroyed the communicator", " ended, or destroyed the group"},
};

}  // namespace

std::string for_python(std::string text) {
  for (const auto& [ours, theirs] : kPhrases) {
    for (size_t at = 0; (at = text.find(ours, at)) != std::string::npos; at += theirs.size()) {
      text.replace(at, ours.size(), theirs);
    }
  }
  return text;
}

std::string with_default_ranks(std::string text, const std::vector<int>& members) {
  if (members.empty()) return text;
  std::string named;
  size_t count = 0;
  for (const size_t rank : ranks_in(text, members.size())) {
    if (members[rank] == static_cast<int>(rank)) continue;
    if (++count > kNamedRanksMax) break;
    named += (named.empty() ? "rank " : ", rank ") + std::to_string(rank) + " is rank " +
             std::to_string(members[rank]);
  }
  if (count > kNamedRanksMax) named += ", …";
  return named.empty() ? text : text + "; in the default group, " + named;
}

}  // namespace weir::pytorch
