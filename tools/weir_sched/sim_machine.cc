// SPDX-License-Identifier: Apache-2.0
#include "weir_sched/sim_machine.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/graph/machine_graph.h"
#include "core/topo/cpus.h"
#include "core/topo/discover.h"
#include "core/topo/nccl_xml.h"

namespace weir::sched_tool {
namespace {

// The ways between all ranks are kept, some 30 bytes each.
constexpr Rank kRanksMax = 4096;

// Where the ranks of one host can run, one each.
struct Seats {
  std::vector<topo::NodeId> devices;
  std::vector<topo::CpuSet> cores;  // without devices

  size_t count() const { return devices.empty() ? cores.size() : devices.size(); }
  const char* name() const { return devices.empty() ? "cores" : "GPUs"; }
};

Seats seats_of(const topo::Topology& topology) {
  Seats seats;
  seats.devices = topology.all(topo::NodeKind::kGpu);
  if (!seats.devices.empty()) return seats;
  for (const topo::NodeId core : topology.all(topo::NodeKind::kCore)) {
    seats.cores.push_back(topology.node(core).cpus);
  }
  if (!seats.cores.empty()) return seats;
  // A file may name processors without their cores.
  for (const topo::NodeId numa : topology.all(topo::NodeKind::kNuma)) {
    for (const uint32_t cpu : topology.node(numa).cpus.cpus()) {
      seats.cores.emplace_back().add(cpu);
    }
  }
  return seats;
}

std::vector<uint32_t> none_if_one(std::vector<uint32_t> groups) {
  const bool several = !groups.empty() && *std::max_element(groups.begin(), groups.end()) > 0;
  return several ? std::move(groups) : std::vector<uint32_t>();
}

void find_groups(const topo::Topology& topology, const std::vector<graph::RankPlace>& places,
                 SimMachine* machine) {
  std::vector<topo::CpuSet> cpus;
  for (const graph::RankPlace& place : places) cpus.push_back(place.cpus);
  uint32_t level = 0;
  for (const topo::Node& node : topology.nodes()) {
    if (node.cache) level = std::max(level, node.cache->level);
  }
  machine->numa_of_rank = none_if_one(topo::numa_groups(topology, cpus));
  if (level > 0) machine->cache_of_rank = none_if_one(topo::cache_groups(topology, cpus, level));
}

// What the ranks of other hosts read.
Result<topo::Topology> told_form(const topo::Topology& topology) {
  const auto text = topo::to_nccl_xml(topology);
  if (!text.ok()) return text.status();
  return topo::parse_nccl_xml(text.value(), "NCCL's XML");
}

}  // namespace

Result<SimMachine> read_sim_machine(const std::string& file, uint32_t host_count, Rank rank_count,
                                    bool as_told) {
  Result<topo::Topology> topology = topo::read_file(file);
  if (!topology.ok()) return topology.status();
  const Seats seats = seats_of(topology.value());
  if (seats.count() == 0) {
    return invalid_argument(
        fmt::format("{}: has neither GPUs nor cores that ranks could run on", file));
  }
  const uint64_t seat_count = uint64_t{host_count} * seats.count();
  const uint64_t count = rank_count == 0 ? seat_count : rank_count;
  if (count > kRanksMax) {
    return invalid_argument(
        fmt::format("{} ranks over the links of a topology; allowed are 1 to {}: give less --hosts "
                    "or --ranks",
                    count, kRanksMax));
  }
  if (count > seat_count) {
    return invalid_argument(
        fmt::format("--ranks {}: {} hosts like {} have {} {}; give more --hosts", count, host_count,
                    file, seat_count, seats.name()));
  }
  if (host_count < 1 || host_count > count) {
    return invalid_argument(
        fmt::format("--hosts {} must lie within 1..{}, the number of ranks", host_count, count));
  }
  std::vector<graph::RankPlace> places;
  std::vector<uint32_t> population(host_count, 0);
  for (uint64_t rank = 0; rank < count; ++rank) {
    places.emplace_back().host = static_cast<uint32_t>(rank * host_count / count);
    ++population[places.back().host];
  }
  std::vector<uint32_t> seated(host_count, 0);
  for (graph::RankPlace& place : places) {
    const size_t number = seated[place.host]++;
    if (!seats.devices.empty()) {
      place.device = seats.devices[number];
    } else {
      place.cpus = seats.cores[number * seats.cores.size() / population[place.host]];
    }
  }
  std::vector<topo::Topology> kinds = {topology.take()};
  if (as_told) {
    auto told = told_form(kinds[0]);
    if (!told.ok()) return told.status().with_context(file);
    for (graph::RankPlace& place : places) {
      if (place.device == topo::kNoNode) continue;
      const auto device = told.value().find(kinds[0].label(place.device));
      if (!device.ok()) return device.status().with_context(file);
      place.device = device.value();
    }
    kinds[0] = told.take();
  }
  const std::vector<uint32_t> kind_of_host(host_count, 0);
  Result<graph::LinkGraph> graph = graph::machine_graph({kinds, kind_of_host, places});
  if (!graph.ok()) return invalid_argument(file + ": " + graph.status().text());
  SimMachine machine{.graph = graph.take(),
                     .nodes = {},
                     .cache_of_rank = {},
                     .numa_of_rank = {},
                     .host_count = host_count,
                     .on_accelerators = !seats.devices.empty()};
  if (host_count > 1) {
    for (const graph::RankPlace& place : places) machine.nodes.push_back(place.host);
  }
  if (host_count == 1 && !machine.on_accelerators) find_groups(kinds[0], places, &machine);
  return machine;
}

}  // namespace weir::sched_tool
