// SPDX-License-Identifier: Apache-2.0
#include "weir_sched/regret_machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>

#include "core/engine/slicing.h"
#include "core/graph/host_networks.h"
#include "core/topo/discover.h"

namespace weir::sched_tool {
namespace {

constexpr double kFabricMbps = 40'000;  // and faster

// What transports that send memory of devices leave for programs (ucx).
constexpr uint32_t kDeviceLanes = 7;

Result<RegretMachine> read_file(const std::string& file, const cost::Table& table, bool by_links) {
  const Result<topo::Topology> read = topo::read_file(file);
  if (!read.ok()) return read.status();
  const topo::Topology& topology = read.value();
  RegretMachine machine;
  machine.name = std::filesystem::path(file).filename().string();
  machine.name = machine.name.substr(0, machine.name.find('.'));
  size_t ranks = topology.all(topo::NodeKind::kGpu).size();
  if (ranks == 0) ranks = topology.all(topo::NodeKind::kCore).size();
  if (ranks == 0) return invalid_argument(file + ": has neither GPUs nor cores");
  machine.ranks_per_host = static_cast<Rank>(ranks);
  machine.table = table;
  if (by_links) {
    machine.links_file = file;
    if (!topology.all(topo::NodeKind::kGpu).empty()) machine.table = cost::device_table();
  }
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

// "400+400+50"; empty: it is not of this form.
std::vector<double> wires_of(std::string_view text) {
  std::vector<double> wires;
  while (!text.empty()) {
    double mbps = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), mbps);
    if (error != std::errc() || !(mbps > 0.001 && mbps < 1e7)) return {};
    wires.push_back(8000 / mbps);
    text.remove_prefix(static_cast<size_t>(stop - text.data()));
    if (text.empty()) return wires;
    if (text[0] != '+') return {};
    text.remove_prefix(1);
  }
  return {};
}

}  // namespace

Result<RegretMachine> read_regret_machine(const std::string& text, const cost::Table& table,
                                          bool by_links) {
  if (std::filesystem::exists(text)) return read_file(text, table, by_links);
  if (by_links) return invalid_argument(fmt::format("--links: '{}' is not a file", text));
  RegretMachine machine;
  machine.name = text;
  machine.table = table;
  const std::string counts = text.substr(0, text.find(':'));
  std::string network = text.size() > counts.size() ? text.substr(counts.size() + 1) : "tcp";
  const size_t colon = network.find(':');
  const bool differ = colon != std::string::npos;
  if (differ) {
    machine.wires = wires_of(std::string_view(network).substr(colon + 1));
    network.resize(colon);
  }
  char rest = 0;
  const int read = std::sscanf(counts.c_str(), "%ux%u%c", &machine.ranks_per_host,
                               &machine.cards_per_host, &rest);
  const bool one = counts.find('x') == std::string::npos;
  if (read != (one ? 1 : 2) || machine.ranks_per_host < 1 || machine.cards_per_host < 1 ||
      machine.ranks_per_host > 4096 || machine.cards_per_host > machine.ranks_per_host ||
      (network != "tcp" && network != "fabric") || (differ && machine.wires.empty())) {
    return invalid_argument(fmt::format(
        "--machine \"{}\" is neither a file nor of the form RANKSxCARDS:NETWORK:MBITS of a host, "
        "such as 8, 8x4, 8x4:fabric or 1:tcp:400+400+50",
        text));
  }
  if (network == "fabric") machine.network = cost::Link::kFabric;
  return machine;
}

RegretHosts::RegretHosts(const RegretMachine& machine, Rank rank_count)
    : machine_(machine), rank_count_(rank_count) {
  const Rank per_host = machine.ranks_per_host;
  if (!machine.links_file.empty()) {
    const uint32_t host_count = (rank_count + per_host - 1) / per_host;
    auto read = read_sim_machine(machine.links_file, host_count, rank_count);
    if (!read.ok()) {
      status_ = read.status();
      return;
    }
    links_ = read.take();
    hosts_ = links_->nodes;
    for (const uint32_t cache : links_->cache_of_rank) {
      const auto& all = links_->cache_of_rank;
      ranks_per_cache_ = std::max(ranks_per_cache_,
                                  static_cast<uint32_t>(std::count(all.begin(), all.end(), cache)));
    }
    ways_ = std::make_unique<cost::MessageWays>(links_->graph);
    if (!links_->on_accelerators) return;
    forests_ = std::make_unique<graph::Forests>(links_->graph);
    return;
  }
  if (rank_count <= per_host) return;
  for (Rank rank = 0; rank < rank_count; ++rank) hosts_.push_back(rank / per_host);
  for (Rank rank = 0; rank < rank_count && machine.cards_per_host > 1; ++rank) {
    const uint32_t of_host = rank % per_host * machine.cards_per_host / per_host;
    cards_.push_back(hosts_[rank] * machine.cards_per_host + of_host);
  }
  if (machine.wires.empty()) return;
  std::vector<graph::KilobytesPerSecond> of_host;
  for (uint32_t host = 0; host < host_count(); ++host) {
    wires_.push_back(machine.wires[host % machine.wires.size()]);
    of_host.push_back(graph::on_grid(wires_.back() / machine.cards_per_host));
  }
  const cost::LinkTimes& within = machine.table.times.link(cost::Link::kShmSharedCache);
  const double copied = within.slot_in_ns_per_byte.back() + within.slot_out_ns_per_byte.back();
  forests_ =
      std::make_unique<graph::Forests>(graph::host_star(hosts_, of_host, graph::on_grid(copied)));
}

cost::Request RegretHosts::request(Collective collective, uint64_t bytes, Rank root) const {
  cost::Request request;
  cost::Workload& work = request.work;
  work.problem.collective = collective;
  work.problem.rank_count = rank_count_;
  work.problem.root = root;
  work.problem.mapped = hosts_.empty();
  work.problem.node_of_rank = hosts_;
  work.bytes = bytes;
  double slowest_wire = 0;
  for (const double wire : wires_) slowest_wire = std::max(slowest_wire, wire);
  work.slicing = {.slice_bytes = engine::message_slice_bytes(collective, rank_count_, slowest_wire),
                  .in_flight = 4};
  work.layout.host_of_rank = hosts_;
  work.layout.card_of_rank = cards_;
  work.layout.network = machine_.network;
  work.layout.wire_of_host = wires_;
  if (links_) {
    work.problem.cache_of_rank = work.layout.cache_of_rank = links_->cache_of_rank;
    work.problem.numa_of_rank = links_->numa_of_rank;
    work.layout.ranks_per_cache = ranks_per_cache_;
  }
  if (ways_ != nullptr && !links_->on_accelerators) {
    work.layout.memory_ways = ways_.get();
  } else if (ways_ != nullptr) {
    work.problem.mapped = false;
    work.problem.lanes_max = kDeviceLanes;
    work.layout.ways = ways_.get();
    work.layout.network = cost::Link::kFabric;
    work.slicing.in_flight = kDeviceLanes;
    request.slices = engine::kDeviceSliceBytes;
  }
  if (forests_ == nullptr) return request;
  // Otherwise as many lanes as tcp has for programs.
  request.lane_count_max = work.problem.lanes_max;
  work.problem.forest = forests_->of(collective, work.problem.root);
  work.problem.rings = forests_->rings();
  work.problem.tree_lanes_max = cost::tree_lanes(work.problem, bytes, work.slicing.slice_bytes);
  return request;
}

}  // namespace weir::sched_tool
