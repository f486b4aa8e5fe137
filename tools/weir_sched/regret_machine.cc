// SPDX-License-Identifier: Apache-2.0
#include "weir_sched/regret_machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>

#include "core/cost/memory_ports.h"
#include "core/engine/slicing.h"
#include "core/topo/discover.h"

namespace weir::sched_tool {
namespace {

constexpr double kFabricMbps = 40'000;  // and faster

// Numbers from 0 in order of first appearance; empty where there is one.
std::vector<uint32_t> numbered(const std::vector<uint32_t>& groups) {
  std::map<uint32_t, uint32_t> known;
  std::vector<uint32_t> numbers;
  for (const uint32_t group : groups) {
    numbers.push_back(known.try_emplace(group, known.size()).first->second);
  }
  return known.size() > 1 ? numbers : std::vector<uint32_t>();
}

Result<RegretMachine> read_file(const std::string& file, const cost::Table& table) {
  const Result<topo::Topology> read = topo::read_file(file);
  if (!read.ok()) return read.status();
  const topo::Topology& topology = read.value();
  RegretMachine machine;
  machine.name = std::filesystem::path(file).filename().string();
  machine.name = machine.name.substr(0, machine.name.find('.'));
  size_t ranks = topology.all(topo::NodeKind::kGpu).size();
  if (ranks == 0) {
    const std::vector<topo::NodeId> cores = topology.all(topo::NodeKind::kCore);
    ranks = cores.size();
    for (const topo::NodeId core : cores) {
      machine.cores.push_back(topo::place_of(topology.node(core).cpus, topology));
    }
    machine.memory_links = cost::usual_memory_links(topo::package_link_mbs(topology));
  }
  if (ranks == 0) return invalid_argument(file + ": has neither GPUs nor cores");
  machine.ranks_per_host = static_cast<Rank>(ranks);
  machine.table = table;
  double fastest_mbps = 0;
  uint32_t count = 0;
  for (const topo::NodeId nic : topology.all(topo::NodeKind::kNic)) {
    const double mbps = topology.node(nic).nic->speed_mbps();
    if (mbps > fastest_mbps) count = 0;
    fastest_mbps = std::max(fastest_mbps, mbps);
    count += mbps == fastest_mbps ? 1 : 0;
  }
  machine.cards_per_host = std::clamp(count, 1u, machine.ranks_per_host);
  if (fastest_mbps >= kFabricMbps) machine.network = cost::Link::kFabric;
  if (fastest_mbps > 0) {
    machine.table.times.link(machine.network).wire_ns_per_byte = 8000 / fastest_mbps;
  }
  return machine;
}

}  // namespace

Result<RegretMachine> read_regret_machine(const std::string& text, const cost::Table& table) {
  if (std::filesystem::exists(text)) return read_file(text, table);
  RegretMachine machine;
  machine.name = text;
  machine.table = table;
  const std::string counts = text.substr(0, text.find(':'));
  const std::string network = text.size() > counts.size() ? text.substr(counts.size() + 1) : "tcp";
  char rest = 0;
  const int read = std::sscanf(counts.c_str(), "%ux%u%c", &machine.ranks_per_host,
                               &machine.cards_per_host, &rest);
  const bool one = counts.find('x') == std::string::npos;
  if (read != (one ? 1 : 2) || machine.ranks_per_host < 1 || machine.cards_per_host < 1 ||
      machine.ranks_per_host > 4096 || machine.cards_per_host > machine.ranks_per_host ||
      (network != "tcp" && network != "fabric")) {
    return invalid_argument(fmt::format(
        "--machine \"{}\" is neither a file nor of the form RANKSxCARDS:NETWORK of a host, such as "
        "8, 8x4 or 8x4:fabric",
        text));
  }
  if (network == "fabric") machine.network = cost::Link::kFabric;
  return machine;
}

RegretHosts::RegretHosts(const RegretMachine& machine, Rank rank_count)
    : machine_(machine), rank_count_(rank_count) {
  const Rank per_host = machine.ranks_per_host;
  if (rank_count <= per_host) {
    if (machine.cores.empty()) return;
    for (Rank rank = 0; rank < rank_count; ++rank) {
      const topo::CpuPlace& core = machine.cores[rank * machine.cores.size() / rank_count];
      packages_.push_back(core.package);
      caches_.push_back(core.cache);
      nodes_.push_back(core.numa);
    }
    std::map<uint32_t, uint32_t> on_cache;
    for (const uint32_t cache : caches_) {
      ranks_per_cache_ = std::max(ranks_per_cache_, ++on_cache[cache]);
    }
    packages_ = numbered(packages_);
    caches_ = numbered(caches_);
    nodes_ = numbered(nodes_);
    return;
  }
  for (Rank rank = 0; rank < rank_count; ++rank) hosts_.push_back(rank / per_host);
  if (machine.cards_per_host == 1) return;
  for (Rank rank = 0; rank < rank_count; ++rank) {
    const uint32_t of_host = rank % per_host * machine.cards_per_host / per_host;
    cards_.push_back(hosts_[rank] * machine.cards_per_host + of_host);
  }
}

cost::Request RegretHosts::request(Collective collective, uint64_t bytes) const {
  cost::Request request;
  cost::Workload& work = request.work;
  work.problem.collective = collective;
  work.problem.rank_count = rank_count_;
  work.problem.mapped = hosts_.empty();
  work.problem.node_of_rank = hosts_;
  work.bytes = bytes;
  work.slicing = {.slice_bytes = engine::message_slice_bytes(collective, rank_count_),
                  .in_flight = 4};
  work.layout.host_of_rank = hosts_;
  work.layout.card_of_rank = cards_;
  work.layout.network = machine_.network;
  work.problem.cache_of_rank = work.layout.cache_of_rank = caches_;
  work.problem.numa_of_rank = work.layout.numa_of_rank = nodes_;
  work.layout.socket_of_rank = packages_;
  work.layout.ranks_per_cache = ranks_per_cache_;
  work.layout.memory_links = machine_.memory_links;
  return request;
}

}  // namespace weir::sched_tool
