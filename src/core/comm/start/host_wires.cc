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
  double fastest = 0;
  for (const double wire : wires) {
    if (wire > 0 && (fastest == 0 || wire < fastest)) fastest = wire;
  }
  if (fastest == 0) return {};
  constexpr double kNone = 1e18;
  const size_t count = *std::max_element(host_of_rank.begin(), host_of_rank.end()) + 1;
  std::vector<double> out(count, kNone);
  std::vector<double> in(count, kNone);
  for (size_t i = 0; i < wires.size(); ++i) {
    const double wire = wires[i] > 0 ? wires[i] : fastest;
    double& sent = out[host_of_rank[brief_pairs[i].first]];
    double& received = in[host_of_rank[brief_pairs[i].second]];
    sent = std::min(sent, wire);
    received = std::min(received, wire);
  }
  std::vector<double> of_host(count);
  for (size_t host = 0; host < count; ++host) of_host[host] = std::max(out[host], in[host]);
  return different_wires(std::move(of_host));
}

bool HostWires::add(std::span<const double> wires) {
  // Of those that differ, the figure of a round of its own.
  constexpr double kRepeats = 0.8;
  ++rounds_;
  if (least_.empty()) {
    least_.assign(wires.begin(), wires.end());
    return !of_host().empty();
  }
  const std::vector<double> before = of_host();
  const std::vector<double> alone = wire_of_host(host_of_rank_, pairs_, wires);
  for (size_t i = 0; i < least_.size(); ++i) {
    const bool known = least_[i] > 0 && wires[i] > 0;
    least_[i] = known ? std::min(least_[i], wires[i]) : std::max(least_[i], wires[i]);
  }
  const std::vector<double> now = of_host();
  if (now.empty() || rounds_ >= kRoundsMax) return false;
  const double fastest = *std::min_element(now.begin(), now.end());
  for (size_t host = 0; host < now.size(); ++host) {
    if (now[host] == fastest) continue;
    const bool repeats = !before.empty() && !alone.empty() &&
                         alone[host] >= kRepeats * before[host] &&
                         before[host] >= kRepeats * alone[host];
    if (!repeats) return true;
  }
  return false;
}

std::vector<double> HostWires::of_host() const {
  return wire_of_host(host_of_rank_, pairs_, least_);
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
