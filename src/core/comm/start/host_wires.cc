// SPDX-License-Identifier: Apache-2.0
#include "core/comm/start/host_wires.h"

#include <algorithm>
#include <optional>

#include "core/base/check.h"

namespace weir::comm {

std::vector<Pair> pairs_to_measure(std::span<const uint32_t> host_of_rank, Rank rank_count) {
  const auto host = [&](Rank r) { return host_of_rank.empty() ? 0 : host_of_rank[r]; };
  std::vector<Rank> first_of_host(rank_count, rank_count);
  std::optional<Pair> within;  // of the hosts with two ranks, the one that comes first
  for (Rank p = 0; p < rank_count; ++p) {
    Rank& first = first_of_host[host(p)];
    if (first == rank_count) {
      first = p;
    } else if (!within || first < within->first) {
      within = Pair{first, p, cost::Link::kShmSharedCache};
    }
  }
  first_of_host.erase(std::remove(first_of_host.begin(), first_of_host.end(), rank_count),
                      first_of_host.end());
  const size_t count = first_of_host.size();
  std::vector<Pair> pairs;
  const auto add = [&](size_t i) {
    pairs.push_back({first_of_host[i], first_of_host[(i + 1) % count], cost::Link::kTcp});
  };
  for (size_t i = 0; i + 1 < count; i += 2) add(i);
  for (size_t i = 1; i + 1 < count; i += 2) add(i);
  if (count > 2) add(count - 1);
  if (within) pairs.push_back(*within);
  return pairs;
}

std::vector<double> wire_of_host(std::span<const uint32_t> host_of_rank,
                                 std::span<const Pair> pairs, std::span<const double> wires) {
  WEIR_CHECK(pairs.size() == wires.size(), "a figure for each pair");
  if (host_of_rank.empty()) return {};
  constexpr double kUnknown = 1e18;
  const uint32_t count = *std::max_element(host_of_rank.begin(), host_of_rank.end()) + 1;
  std::vector<double> of_host(count, kUnknown);
  double fastest = kUnknown;
  for (size_t i = 0; i < pairs.size(); ++i) {
    if (!cost::is_network(pairs[i].link)) continue;
    for (const Rank rank : {pairs[i].first, pairs[i].second}) {
      double& least = of_host[host_of_rank[rank]];
      least = std::min(least, wires[i]);
    }
    fastest = std::min(fastest, wires[i]);
  }
  bool differ = false;
  for (double& it : of_host) {
    if (it == kUnknown || it <= kAlike * fastest) {
      it = fastest;
    } else {
      differ = true;
    }
  }
  // Two hosts are one link.
  return differ && count > 2 ? of_host : std::vector<double>();
}

}  // namespace weir::comm
