// SPDX-License-Identifier: Apache-2.0
#include "core/graph/rings.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>

namespace weir::graph {
namespace {

// A ring more is worth it if the time falls below this share.
constexpr double kWorthwhile = 0.95;

// How long a link takes for its rings, in an integer of one unit for all links, so that every
// machine orders them alike.
using Pressure = int64_t;
constexpr Pressure kPressureUnit = Pressure{1} << 50;

Pressure pressure_of(const Link& link, uint32_t rings) {
  return link.bandwidth == kUnlimited ? 0 : rings * (kPressureUnit / link.bandwidth);
}

class Search {
 public:
  Search(const LinkGraph& graph, Routes* routes, uint64_t steps)
      : graph_(graph),
        routes_(*routes),
        steps_left_(steps),
        uses_(graph.links().size(), 0),
        visited_(graph.rank_count()),
        left_in_host_(graph.host_count(), 0) {
    ranks_of_host_.resize(graph.host_count());
    for (Rank rank = 0; rank < graph.rank_count(); ++rank) {
      ranks_of_host_[graph.host_of(rank)].push_back(rank);
    }
    std::erase_if(ranks_of_host_, [](const auto& ranks) { return ranks.empty(); });
    host_index_.resize(graph.rank_count());
    for (uint32_t host = 0; host < ranks_of_host_.size(); ++host) {
      for (const Rank rank : ranks_of_host_[host]) host_index_[rank] = host;
    }
  }

  // The next ring, and counts its links. No value: none was found.
  std::optional<std::vector<Rank>> next() {
    // The least limit on the pressure of a link for which there is a cycle, by bisection.
    const std::vector<Pressure> limits = possible_limits();
    std::optional<std::vector<Rank>> best;
    size_t low = 0;
    size_t high = limits.size();
    while (low < high) {
      const size_t middle = best ? (low + high) / 2 : high - 1;
      auto found = cycle_within(limits[middle]);
      if (found) {
        best = std::move(found);
        high = middle;
      } else if (!best) {
        return std::nullopt;
      } else {
        low = middle + 1;
      }
    }
    if (best) {
      for (size_t i = 0; i < best->size(); ++i) use((*best)[i], (*best)[(i + 1) % best->size()], 1);
    }
    return best;
  }

  Pressure most() const {
    Pressure most = 0;
    for (size_t i = 0; i < uses_.size(); ++i) {
      most = std::max(most, pressure_of(graph_.links()[i], uses_[i]));
    }
    return most;
  }

 private:
  struct Hop {
    Rank to = 0;
    Pressure pressure = 0;  // afterwards, of the link of its way that then has the most
    uint32_t onward = 0;    // ranks of this host that would still be reached from there
  };

  // Of every link for one to a few rings more; ascending.
  std::vector<Pressure> possible_limits() const {
    std::set<Pressure> limits{0};
    const auto ranks = static_cast<uint32_t>(graph_.rank_count());
    for (size_t i = 0; i < uses_.size(); ++i) {
      const Link& link = graph_.links()[i];
      if (link.bandwidth == kUnlimited) continue;
      // A ring may pass a link once for each hop.
      for (uint32_t more = 1; more <= std::min(ranks, kUsesMax); ++more) {
        limits.insert(pressure_of(link, uses_[i] + more));
      }
      limits.insert(pressure_of(link, uses_[i] + ranks));
    }
    return {limits.begin(), limits.end()};
  }

  std::optional<std::vector<Rank>> cycle_within(Pressure limit) {
    limit_ = limit;
    std::optional<std::vector<Rank>> found;
    const std::vector<Rank> starts = possible_starts();
    for (const Rank start : starts) {
      // A share for each: that a ring cannot be closed shows only at its end.
      steps_left_here_ = std::min(steps_left_, kStepsOfOneLimit / starts.size());
      const uint64_t before = steps_left_here_;
      ring_.assign(1, start);
      visited_.assign(graph_.rank_count(), false);
      visited_[start] = true;
      for (uint32_t host = 0; host < ranks_of_host_.size(); ++host) {
        left_in_host_[host] = static_cast<uint32_t>(ranks_of_host_[host].size());
      }
      --left_in_host_[host_index_[start]];
      const bool is_cycle = extend();
      steps_left_ -= before - steps_left_here_;
      for (size_t i = 0; i + 1 < ring_.size(); ++i) use(ring_[i], ring_[i + 1], -1);
      if (is_cycle) {
        use(ring_.back(), start, -1);
        found = ring_;
        break;
      }
    }
    return found;
  }

  // Where a ring may begin and end. One host: anywhere, so at rank 0.
  std::vector<Rank> possible_starts() {
    if (ranks_of_host_.size() == 1) return {0};
    std::vector<Rank> starts;
    for (const Rank start : ranks_of_host_.front()) {
      const auto& last = ranks_of_host_.back();
      if (std::any_of(last.begin(), last.end(), [&](Rank rank) { return reaches(rank, start); })) {
        starts.push_back(start);
      }
    }
    return starts;
  }

  void use(Rank from, Rank to, int32_t change) {
    for (const LinkId id : routes_.links(from, to)) {
      uses_[id] = static_cast<uint32_t>(static_cast<int32_t>(uses_[id]) + change);
    }
  }

  Pressure pressure_after(Rank from, Rank to) {
    Pressure most = 0;
    for (const LinkId id : routes_.links(from, to)) {
      most = std::max(most, pressure_of(graph_.links()[id], uses_[id] + 1));
    }
    return most;
  }

  bool reaches(Rank from, Rank to) {
    return !routes_.links(from, to).empty() && pressure_after(from, to) <= limit_;
  }

  // Continues the ring until it has all ranks and is closed. An explicit stack, since there may be
  // thousands of ranks. On success the closing hop is counted, too.
  bool extend() {
    std::vector<std::vector<Hop>> open;
    open.push_back(hops_from(ring_.back()));
    while (!open.empty()) {
      if (ring_.size() == graph_.rank_count() && reaches(ring_.back(), ring_.front())) {
        use(ring_.back(), ring_.front(), 1);
        return true;
      }
      if (open.back().empty()) {
        open.pop_back();
        if (open.empty()) break;
        const Rank last = ring_.back();
        ring_.pop_back();
        use(ring_.back(), last, -1);
        visited_[last] = false;
        ++left_in_host_[host_index_[last]];
        continue;
      }
      if (steps_left_here_ == 0) break;
      --steps_left_here_;
      const Rank to = open.back().back().to;
      open.back().pop_back();
      use(ring_.back(), to, 1);
      ring_.push_back(to);
      visited_[to] = true;
      --left_in_host_[host_index_[to]];
      open.push_back(hops_from(to));
    }
    return false;
  }

  // The best last. All ranks of a host come one after the other, and hosts in order.
  std::vector<Hop> hops_from(Rank from) {
    std::vector<Hop> hops;
    if (ring_.size() == graph_.rank_count()) return hops;
    const uint32_t host = host_index_[from];
    const bool stays = left_in_host_[host] > 0;
    const auto next_host = static_cast<uint32_t>((host + 1) % ranks_of_host_.size());
    for (const Rank to : ranks_of_host_[stays ? host : next_host]) {
      if (visited_[to] || !reaches(from, to)) continue;
      hops.push_back({to, pressure_after(from, to), 0});
    }
    // Who has the fewest ways on goes first, as in Warnsdorff's rule.
    if (stays && hops.size() > 1 && hops.size() <= kLookAheadMax) {
      for (Hop& hop : hops) {
        for (const Rank onward : ranks_of_host_[host]) {
          if (onward == hop.to || visited_[onward]) continue;
          hop.onward += reaches(hop.to, onward) ? 1 : 0;
        }
      }
    }
    std::stable_sort(hops.begin(), hops.end(), [](const Hop& a, const Hop& b) {
      if (a.pressure != b.pressure) return a.pressure > b.pressure;
      if (a.onward != b.onward) return a.onward > b.onward;
      return a.to > b.to;
    });
    return hops;
  }

  static constexpr uint32_t kUsesMax = 16;
  static constexpr size_t kLookAheadMax = 32;
  static constexpr uint64_t kStepsOfOneLimit = 20'000;

  const LinkGraph& graph_;
  Routes& routes_;
  uint64_t steps_left_;
  uint64_t steps_left_here_ = 0;
  std::vector<uint32_t> uses_;  // of each link, by rings
  std::vector<std::vector<Rank>> ranks_of_host_;
  std::vector<uint32_t> host_index_;  // of each rank, in ranks_of_host_
  Pressure limit_ = 0;
  std::vector<Rank> ring_;
  std::vector<bool> visited_;
  std::vector<uint32_t> left_in_host_;
};

}  // namespace

Rings rings_of(std::vector<std::vector<Rank>> orders) {
  Rings rings;
  rings.rank_count = orders.empty() ? 0 : static_cast<uint32_t>(orders[0].size());
  for (const std::vector<Rank>& order : orders) {
    std::vector<uint32_t>& position = rings.positions.emplace_back(order.size());
    for (uint32_t i = 0; i < order.size(); ++i) position[order[i]] = i;
  }
  rings.orders = std::move(orders);
  return rings;
}

Result<Rings> find_rings(const LinkGraph& graph, Routes* routes, const RingOptions& options) {
  if (graph.rank_count() < 2) return Status(Code::kInvalidArgument, "a ring needs two ranks");
  Search search(graph, routes, options.steps_max);
  std::vector<std::vector<Rank>> orders;
  size_t best_count = 0;
  double best = 0;
  while (orders.size() < options.rings_max) {
    auto ring = search.next();
    if (!ring) break;
    orders.push_back(std::move(*ring));
    const double each = static_cast<double>(search.most()) / static_cast<double>(orders.size());
    if (best_count != 0 && each > kWorthwhile * best) continue;
    best_count = orders.size();
    best = each;
  }
  if (best_count == 0) {
    return Status(Code::kUnsupported, fmt::format("no ring through all {} ranks was found in {} "
                                                  "steps",
                                                  graph.rank_count(), options.steps_max));
  }
  orders.resize(best_count);
  return rings_of(std::move(orders));
}

Rings ring_by_host(std::span<const uint32_t> host_of_rank) {
  std::vector<Rank> order(host_of_rank.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](Rank a, Rank b) { return host_of_rank[a] < host_of_rank[b]; });
  return rings_of({std::move(order)});
}

uint32_t crossings(std::span<const uint32_t> host_of_rank) {
  uint32_t count = 0;
  for (size_t rank = 0; rank < host_of_rank.size(); ++rank) {
    count += host_of_rank[rank] != host_of_rank[(rank + 1) % host_of_rank.size()] ? 1 : 0;
  }
  return count;
}

double ring_ns_per_byte(const LinkGraph& graph, const Rings& rings, Routes* routes) {
  std::vector<uint32_t> uses(graph.links().size(), 0);
  for (const std::vector<Rank>& order : rings.orders) {
    for (size_t i = 0; i < order.size(); ++i) {
      for (const LinkId id : routes->links(order[i], order[(i + 1) % order.size()])) ++uses[id];
    }
  }
  const double n = rings.rank_count;
  double most = 0;
  for (size_t i = 0; i < uses.size(); ++i) {
    const KilobytesPerSecond bandwidth = graph.links()[i].bandwidth;
    if (bandwidth == kUnlimited) continue;
    most = std::max(most, uses[i] * 1e6 / static_cast<double>(bandwidth));
  }
  return most * (n - 1) / n / static_cast<double>(rings.orders.size());
}

std::string flaw_of(const std::vector<std::vector<Rank>>& orders, uint32_t rank_count) {
  if (rank_count < 2) return "a ring needs two ranks";
  if (orders.empty()) return "there is no ring";
  for (size_t i = 0; i < orders.size(); ++i) {
    const std::vector<Rank>& order = orders[i];
    std::vector<bool> seen(rank_count);
    if (order.size() != rank_count) {
      return fmt::format("ring {} has {} of {} ranks", i, order.size(), rank_count);
    }
    for (const Rank rank : order) {
      if (rank >= rank_count) return fmt::format("ring {} has rank {}", i, rank);
      if (seen[rank]) return fmt::format("ring {} passes rank {} twice", i, rank);
      seen[rank] = true;
    }
  }
  return "";
}

}  // namespace weir::graph
