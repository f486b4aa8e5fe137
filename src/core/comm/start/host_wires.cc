// SPDX-License-Identifier: Apache-2.0
#include "core/comm/start/host_wires.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

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
  if (count > 1) pairs.push_back({first_of_host[0], first_of_host[1], cost::Link::kTcp});
  const auto add_round = [&](size_t from, size_t to) {
    for (const bool back : {false, true}) {
      for (size_t i = from; i < to; i += 2) {
        const Rank a = first_of_host[i];
        const Rank b = first_of_host[(i + 1) % count];
        pairs.push_back({back ? b : a, back ? a : b, cost::Link::kTcp, true});
      }
    }
  };
  if (count > 2) {
    add_round(0, count - 1);
    add_round(1, count - 1);
    add_round(count - 1, count);
  }
  if (within) pairs.push_back(*within);
  return pairs;
}

std::vector<double> wire_of_host(std::span<const uint32_t> host_of_rank,
                                 std::span<const Pair> brief_pairs, std::span<const double> wires) {
  WEIR_CHECK(brief_pairs.size() == wires.size(), "a figure for each pair");
  if (brief_pairs.empty()) return {};
  std::map<std::pair<Rank, Rank>, double> slower;  // of both directions
  for (size_t i = 0; i < wires.size(); ++i) {
    double& wire = slower[std::minmax(brief_pairs[i].first, brief_pairs[i].second)];
    wire = std::max(wire, wires[i]);
  }
  constexpr double kUnknown = 1e18;
  std::vector<double> of_host(*std::max_element(host_of_rank.begin(), host_of_rank.end()) + 1,
                              kUnknown);
  for (const auto& [ranks, wire] : slower) {
    for (const Rank rank : {ranks.first, ranks.second}) {
      double& least = of_host[host_of_rank[rank]];
      least = std::min(least, wire);
    }
  }
  return different_wires(std::move(of_host));
}

std::vector<double> different_wires(std::vector<double> of_host) {
  const double fastest = *std::min_element(of_host.begin(), of_host.end());
  bool differ = false;
  for (double& it : of_host) {
    if (it <= kAlike * fastest) {
      it = fastest;
    } else {
      differ = true;
    }
  }
  return differ ? of_host : std::vector<double>();
}

}  // namespace weir::comm
