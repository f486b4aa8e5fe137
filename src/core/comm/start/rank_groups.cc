// SPDX-License-Identifier: Apache-2.0
#include "core/comm/start/rank_groups.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/cost/memory_ports.h"
#include "core/topo/discover.h"

namespace weir::comm {

namespace {

// Ranks are together if they are in `within` and have the same number. Empty: within `within` all
// are together.
std::vector<uint32_t> groups_by(const std::vector<Introduction>& all,
                                const std::vector<uint32_t>& within,
                                uint32_t topo::CpuPlace::*number) {
  std::vector<uint32_t> group_of_rank;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> known;
  uint32_t next = 0;
  for (Rank rank = 0; rank < all.size(); ++rank) {
    const uint32_t own = all[rank].cpu_place.*number;
    if (own == topo::CpuPlace::kSeveral) {
      group_of_rank.push_back(next++);
      continue;
    }
    const auto [group, is_new] = known.try_emplace({within[rank], own}, next);
    if (is_new) ++next;
    group_of_rank.push_back(group->second);
  }
  return group_of_rank;
}

std::vector<uint32_t> none_if_equal(std::vector<uint32_t> groups,
                                    const std::vector<uint32_t>& hosts) {
  return groups == hosts ? std::vector<uint32_t>() : std::move(groups);
}

}  // namespace

RankGroups rank_groups(const std::vector<Introduction>& all) {
  std::vector<uint32_t> hosts = host_of_rank(all);
  if (hosts.empty()) hosts.assign(all.size(), 0);
  const auto packages = groups_by(all, hosts, &topo::CpuPlace::package);
  const auto caches = groups_by(all, packages, &topo::CpuPlace::cache);

  RankGroups groups;
  std::map<uint32_t, uint32_t> on_host;
  std::map<uint32_t, uint32_t> on_cache;
  for (Rank rank = 0; rank < all.size(); ++rank) {
    ++on_host[hosts[rank]];
    ++on_cache[caches[rank]];
  }
  for (Rank rank = 0; rank < all.size(); ++rank) {
    const bool moves = all[rank].cpu_place.cache == topo::CpuPlace::kSeveral;
    groups.ranks_per_cache =
        std::max(groups.ranks_per_cache, moves ? on_host[hosts[rank]] : on_cache[caches[rank]]);
  }
  groups.cache_of_rank = none_if_equal(caches, hosts);
  groups.numa_of_rank = none_if_equal(groups_by(all, hosts, &topo::CpuPlace::numa), hosts);
  groups.package_of_rank = none_if_equal(packages, hosts);
  return groups;
}

std::vector<Pair> pairs_by_link(const RankGroups& groups, Rank rank_count) {
  const cost::RankLayout layout = {.host_of_rank = {},
                                   .socket_of_rank = groups.package_of_rank,
                                   .cache_of_rank = groups.cache_of_rank,
                                   .wire_of_host = {},
                                   .card_of_rank = {}};
  std::vector<Pair> pairs;
  const bool alike = groups.package_of_rank.empty() && groups.cache_of_rank.empty();
  for (Rank a = 0; a < rank_count; ++a) {
    for (Rank b = a + 1; b < rank_count; ++b) {
      const cost::Link link = layout.link(a, b);
      const bool known = std::any_of(pairs.begin(), pairs.end(),
                                     [&](const Pair& pair) { return pair.link == link; });
      if (!known) pairs.push_back({a, b, link});
      if (alike || pairs.size() == 3) return pairs;
    }
  }
  return pairs;
}

cost::MemoryLinks memory_links(const std::vector<Introduction>& all) {
  return cost::usual_memory_links(all.front().package_link_mbs);
}

void place_by_file(const std::string& file, Introduction* self) {
  const auto topology = topo::read_file(file);
  if (!topology.ok()) return;
  topo::CpuSet cpus;
  for (const int cpu : self->cpus) cpus.add(static_cast<uint32_t>(cpu));
  const topo::CpuPlace told = topo::place_of(cpus, topology.value());
  const auto take = [](uint32_t from, uint32_t* to) {
    if (from != topo::CpuPlace::kUnknown) *to = from;
  };
  take(told.cache, &self->cpu_place.cache);
  take(told.numa, &self->cpu_place.numa);
  take(told.package, &self->cpu_place.package);
  self->package_link_mbs = topo::package_link_mbs(topology.value());
}

}  // namespace weir::comm
