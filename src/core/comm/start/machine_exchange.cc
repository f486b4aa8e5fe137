// SPDX-License-Identifier: Apache-2.0
#include "core/comm/start/machine_exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "core/base/log.h"
#include "core/base/printable.h"
#include "core/comm/start/host_wires.h"
#include "core/comm/start/tree_search.h"
#include "core/cost/cache.h"
#include "core/graph/host_networks.h"
#include "core/graph/machine_graph.h"
#include "core/graph/search_record.h"
#include "core/topo/estimates.h"
#include "net/little_endian.h"

namespace weir::comm {

namespace {

constexpr uint16_t kToldVersion = 1;
// More ranks or kinds of machines than anyone has: there is no graph then.
constexpr Rank kGraphRanksMax = 4096;
constexpr size_t kKindsMax = 64;
constexpr size_t kReasonBytesMax = 200;
// Of the trees that rank 0 tells; those beyond are searched by each rank.
constexpr size_t kTreesBytesMax = 512 * 1024;

template <typename Integer>
void append(Integer value, std::string* text) {
  unsigned char bytes[sizeof value];
  net::put(bytes, value);
  text->append(reinterpret_cast<const char*>(bytes), sizeof bytes);
}

template <typename Integer>
bool take_number(std::string_view* bytes, Integer* value) {
  if (bytes->size() < sizeof(Integer)) return false;
  *value = net::get<Integer>(reinterpret_cast<const unsigned char*>(bytes->data()));
  bytes->remove_prefix(sizeof(Integer));
  return true;
}

bool take_text(std::string_view* bytes, size_t size, std::string_view* text) {
  if (bytes->size() < size) return false;
  *text = bytes->substr(0, size);
  bytes->remove_prefix(size);
  return true;
}

Status unreadable(Rank rank, const std::string& what) {
  return Status(Code::kRefused, fmt::format("rank {} sent {}; do all ranks run the same version of "
                                            "Weir?",
                                            rank, what));
}

// The star of hosts of which only the measured networks are known, as where no topology can be
// told.
std::shared_ptr<graph::Forests> star_of(const AgreedCosts& costs,
                                        const std::vector<uint32_t>& host_of_rank,
                                        const std::vector<double>& cards_of_host) {
  if (costs.wire_of_host.empty()) return nullptr;
  std::vector<graph::KilobytesPerSecond> of_host;
  for (size_t host = 0; host < costs.wire_of_host.size(); ++host) {
    of_host.push_back(graph::on_grid(costs.wire_of_host[host] / cards_of_host[host]));
  }
  const cost::LinkTimes& within = costs.table.times.link(cost::Link::kShmSharedCache);
  const double copied = within.slot_in_ns_per_byte.back() + within.slot_out_ns_per_byte.back();
  return std::make_shared<graph::Forests>(
      graph::host_star(host_of_rank, of_host, graph::on_grid(copied)));
}

// Whether anything says how fast the network of the machine is.
bool network_is_known(const topo::Topology& topology) {
  const std::vector<topo::NodeId> cards = topology.all(topo::NodeKind::kNic);
  return std::any_of(cards.begin(), cards.end(), [&](topo::NodeId card) {
    return topo::network_edge(*topology.node(card).nic).source == topo::Source::kStated;
  });
}

std::string pack_verdict(uint64_t hash, const TreeSearch& found) {
  std::string text;
  append(hash, &text);
  append(static_cast<uint8_t>(found.offered), &text);
  append(static_cast<uint16_t>(found.reason.size()), &text);
  text += found.reason;
  std::string trees;
  uint32_t count = 0;
  for (const auto& [key, forest] : found.searches.all()) {
    const auto packed = graph::pack(forest);
    if (!packed.ok() || trees.size() + packed.value().size() > kTreesBytesMax) continue;
    append(key.first, &trees);
    append(static_cast<uint32_t>(packed.value().size()), &trees);
    trees += packed.value();
    ++count;
  }
  append(count, &text);
  text += trees;
  const graph::Rings* rings = found.searches.find_rings(hash);
  const auto packed = rings != nullptr ? graph::pack(*rings) : Result<std::string>(std::string());
  append(static_cast<uint32_t>(packed.ok() ? packed.value().size() : 0), &text);
  if (packed.ok()) text += packed.value();
  return text;
}

// What rank 0 has told, checked. Error: what is wrong with it.
Result<TreeSearch> unpack_verdict(std::string_view bytes, const graph::LinkGraph& graph) {
  const Status broken(Code::kRefused, "trees that cannot be read");
  TreeSearch told;
  uint64_t hash = 0;
  uint8_t offered = 0;
  uint16_t reason_bytes = 0;
  uint32_t count = 0;
  std::string_view reason;
  if (!take_number(&bytes, &hash) || !take_number(&bytes, &offered) || offered > 1 ||
      !take_number(&bytes, &reason_bytes) || !take_text(&bytes, reason_bytes, &reason) ||
      !take_number(&bytes, &count)) {
    return broken;
  }
  told.offered = offered == 1;
  told.reason = reason;
  std::map<uint64_t, graph::LinkGraph> graphs;
  for (uint32_t i = 0; i < count; ++i) {
    uint64_t of_graph = 0;
    uint32_t size = 0;
    std::string_view packed;
    if (!take_number(&bytes, &of_graph) || !take_number(&bytes, &size) ||
        !take_text(&bytes, size, &packed)) {
      return broken;
    }
    auto forest = graph::unpack_forest(packed);
    if (!forest.ok()) return forest.status().with_context("trees that are none");
    if (graphs.empty()) graphs = searched_graphs(graph);
    const auto known = graphs.find(of_graph);
    if (known == graphs.end()) return Status(Code::kRefused, "trees for links that are not there");
    const std::string flaw = graph::flaw_of(forest.value(), known->second);
    if (!flaw.empty()) return Status(Code::kRefused, "trees with a flaw (" + flaw + ")");
    told.searches.add(of_graph, forest.take());
  }
  uint32_t rings_size = 0;
  std::string_view packed;
  if (!take_number(&bytes, &rings_size) || !take_text(&bytes, rings_size, &packed)) return broken;
  if (!bytes.empty()) return broken;
  if (rings_size == 0) return told;
  auto rings = graph::unpack_rings(packed);
  if (!rings.ok()) return rings.status().with_context("rings that are none");
  if (rings.value().rank_count != graph.rank_count()) {
    return Status(Code::kRefused, "rings of other ranks");
  }
  told.searches.add(hash, rings.take());
  return told;
}

}  // namespace

MachineExchange::MachineExchange(const engine::Context& context, const Settings& settings,
                                 const std::vector<Introduction>& all,
                                 const std::vector<uint32_t>& card_of_rank, Tell tell)
    : context_(context),
      settings_(settings),
      all_(all),
      tell_(tell ? std::move(tell) : [this] { return told_topology(settings_); }),
      hosts_(host_of_rank(all)) {
  for (Rank rank = 0; rank < all_.size(); ++rank) {
    if (host_of(rank) == leaders_.size()) leaders_.push_back(rank);
    has_devices_ = has_devices_ || !all_[rank].device.empty();
  }
  std::vector<std::set<uint32_t>> cards(leaders_.size());
  for (Rank rank = 0; rank < all_.size(); ++rank) {
    cards[host_of(rank)].insert(card_of_rank.empty() ? 0 : card_of_rank[rank]);
  }
  for (const auto& of_host : cards) cards_of_host_.push_back(static_cast<double>(of_host.size()));
  if (all_.size() < 2) return;
  spans_nodes_ =
      context_.mapped() && std::any_of(all_.begin(), all_.end(), [&](const Introduction& one) {
        return one.cpu_place.numa != all_[0].cpu_place.numa;
      });
  takes_part_ = spans_nodes_ || has_devices_ || (!context_.mapped() && !hosts_.empty());
}

Result<std::vector<std::string>> MachineExchange::all_gather(Bootstrap& bootstrap,
                                                             std::string_view blob,
                                                             uint64_t deadline_ns) {
  if (!takes_part_) return bootstrap.all_gather(blob, deadline_ns);
  std::string told(blob);
  const std::string own = rider();
  told += own;
  append(static_cast<uint32_t>(own.size()), &told);
  auto blobs = bootstrap.all_gather(told, deadline_ns);
  if (!blobs.ok()) return blobs;
  WEIR_RETURN_IF_ERROR(take(&blobs.value()));
  ++round_;
  return blobs;
}

std::string MachineExchange::rider() {
  std::string text;
  const Rank rank = context_.rank;
  if (round_ == 0) {
    if (rank == 0) {
      append(static_cast<uint8_t>(settings_.probe && settings_.hooks.empty() && !hosts_.empty()),
             &text);
    }
    if (!is_leader(rank)) return text;
    const auto told = tell_();
    append(static_cast<uint8_t>(told.ok()), &text);
    if (told.ok()) {
      append(told.value().hash, &text);
    } else {
      text += told.status().text().substr(0, kReasonBytesMax);
    }
    return text;
  }
  if (round_ > 1 || !unknown_.empty() || !is_leader(rank)) return text;
  // Two hosts that are alike need no more than that, more of them may differ when measured.
  if (!context_.mapped() && hosts_are_alike() && leaders_.size() < 3) return text;
  const uint32_t kind = kind_of_host_[host_of(rank)];
  const auto first = std::find(kind_of_host_.begin(), kind_of_host_.end(), kind);
  if (leaders_[static_cast<size_t>(first - kind_of_host_.begin())] != rank) return text;
  const auto told = tell_();
  append(kToldVersion, &text);
  if (told.ok()) text += told.value().text;
  return text;
}

Status MachineExchange::take(std::vector<std::string>* blobs) {
  std::vector<std::string> riders;
  for (Rank rank = 0; rank < blobs->size(); ++rank) {
    std::string& blob = (*blobs)[rank];
    uint32_t size = 0;
    if (blob.size() < sizeof size) return unreadable(rank, "nothing about its machine");
    std::string_view end = std::string_view(blob).substr(blob.size() - sizeof size);
    take_number(&end, &size);
    if (size > blob.size() - sizeof size) {
      return unreadable(rank, fmt::format("{} bytes about its machine, and said {}",
                                          blob.size() - sizeof size, size));
    }
    blob.resize(blob.size() - sizeof size);
    riders.push_back(blob.substr(blob.size() - size));
    blob.resize(blob.size() - size);
  }
  if (round_ == 0) {
    for (Rank rank = 0; rank < riders.size(); ++rank) {
      WEIR_RETURN_IF_ERROR(take_hash(rank, riders[rank]));
    }
    if (unknown_.empty() && kinds_.size() > kKindsMax) {
      unknown_ = fmt::format("{} kinds of machines", kinds_.size());
    }
    if (unknown_.empty() && all_.size() > kGraphRanksMax) {
      unknown_ = fmt::format("{} ranks", all_.size());
    }
    if (!unknown_.empty() && context_.rank == 0) {
      log_info(fmt::format("the links between the ranks are not known: {}", unknown_));
    }
    return {};
  }
  for (Rank rank = 0; rank < riders.size(); ++rank) {
    WEIR_RETURN_IF_ERROR(take_topology(rank, riders[rank]));
  }
  return {};
}

Status MachineExchange::take_hash(Rank rank, std::string_view rider) {
  const auto wrong = [&] { return unreadable(rank, "a note on its machine that is none"); };
  uint8_t flag = 0;
  if (rank == 0) {
    if (!take_number(&rider, &flag) || flag > 1) return wrong();
    network_measured_ = flag == 1;
  }
  if (!is_leader(rank)) return rider.empty() ? Status() : wrong();
  if (!take_number(&rider, &flag) || flag > 1) return wrong();
  if (flag == 0) {
    if (rider.size() > kReasonBytesMax) return wrong();
    if (unknown_.empty())
      unknown_ = fmt::format("rank {}: {}", rank, printable(rider, kReasonBytesMax));
    kind_of_host_.push_back(0);
    return {};
  }
  uint64_t hash = 0;
  if (!take_number(&rider, &hash) || !rider.empty()) return wrong();
  const auto known = std::find(kinds_.begin(), kinds_.end(), hash);
  kind_of_host_.push_back(static_cast<uint32_t>(known - kinds_.begin()));
  if (known == kinds_.end()) kinds_.push_back(hash);
  return {};
}

Status MachineExchange::take_topology(Rank rank, std::string_view rider) {
  if (rider.empty()) return {};
  ++topologies_told_;
  uint16_t version = 0;
  const auto leader = std::find(leaders_.begin(), leaders_.end(), rank);
  const bool expected =
      leader != leaders_.end() && unknown_.empty() &&
      kind_of_host_[static_cast<size_t>(leader - leaders_.begin())] == topologies_.size();
  if (!expected) return unreadable(rank, "a topology that was not asked for");
  if (!take_number(&rider, &version) || version != kToldVersion) {
    return unreadable(rank, fmt::format("a topology of version {}, not {}", version, kToldVersion));
  }
  ToldTopology told{.hash = kinds_[topologies_.size()], .text = std::string(rider)};
  auto topology = topology_as_told(told);
  if (!topology.ok()) return unreadable(rank, printable(topology.status().text(), kReasonBytesMax));
  topologies_.push_back(topology.take());
  return {};
}

bool MachineExchange::hosts_are_alike() const {
  std::vector<uint32_t> population(leaders_.size(), 0);
  for (Rank rank = 0; rank < all_.size(); ++rank) ++population[host_of(rank)];
  const auto same = [&](uint32_t count) { return count == population[0]; };
  return kinds_.size() == 1 && !has_devices_ &&
         std::all_of(population.begin(), population.end(), same);
}

Result<graph::LinkGraph> MachineExchange::make_graph(bool on_devices, AgreedCosts* costs,
                                                     std::string* why) {
  std::vector<graph::RankPlace> places;
  devices_known_ = on_devices;
  for (Rank rank = 0; rank < all_.size(); ++rank) {
    graph::RankPlace place;
    place.host = host_of(rank);
    if (on_devices) {
      place.device = device_of(all_[rank].device, topologies_[kind_of_host_[place.host]]);
    }
    if (place.device == topo::kNoNode) {
      devices_known_ = false;
      for (const int cpu : all_[rank].cpus) place.cpus.add(static_cast<uint32_t>(cpu));
    }
    places.push_back(std::move(place));
  }
  auto made = graph::machine_graph({topologies_, kind_of_host_, places});
  if (!made.ok() || hosts_.empty()) return made;
  std::vector<graph::KilobytesPerSecond> of_host = graph::network_of_hosts(made.value());
  if (network_measured_) {
    *why = "measured";
    const double alike = costs->table.times.link(cost::Link::kTcp).wire_ns_per_byte;
    for (size_t host = 0; host < of_host.size(); ++host) {
      const bool differ = !costs->wire_of_host.empty();
      of_host[host] =
          graph::on_grid((differ ? costs->wire_of_host[host] : alike) / cards_of_host_[host]);
    }
  } else {
    *why = "nominal";
    // A machine of which nothing says how fast its network is counts as one of the fastest.
    graph::KilobytesPerSecond most = 0;
    for (size_t host = 0; host < of_host.size(); ++host) {
      if (network_is_known(topologies_[kind_of_host_[host]])) most = std::max(most, of_host[host]);
    }
    for (size_t host = 0; host < of_host.size(); ++host) {
      if (most > 0 && !network_is_known(topologies_[kind_of_host_[host]])) of_host[host] = most;
    }
    std::vector<double> wires;
    for (size_t host = 0; host < of_host.size(); ++host) {
      wires.push_back(1e6 * cards_of_host_[host] /
                      static_cast<double>(std::max(of_host[host], int64_t{1})));
    }
    costs->wire_of_host = different_wires(std::move(wires));
  }
  return graph::with_network_of_hosts(made.value(), of_host);
}

Result<LinksInUse> MachineExchange::agree(Bootstrap& bootstrap, AgreedCosts* costs,
                                          uint64_t deadline_ns) {
  LinksInUse links;
  if (!takes_part_) return links;
  const bool maps = context_.mapped();
  if (!unknown_.empty()) {
    if (!maps) links.forests = star_of(*costs, hosts_, cards_of_host_);
    links.reason = "not known (" + unknown_ + ")";
    return links;
  }
  if (!maps && hosts_are_alike() && costs->wire_of_host.empty()) {
    links.reason = fmt::format("{} hosts that are alike: trees are not faster", leaders_.size());
    return links;
  }
  if (topologies_.empty()) {
    auto told = all_gather(bootstrap, "", deadline_ns);
    if (!told.ok()) return told.status();
  }
  if (topologies_.size() != kinds_.size()) {
    const auto lacking = std::find(kind_of_host_.begin(), kind_of_host_.end(), topologies_.size());
    return unreadable(leaders_[static_cast<size_t>(lacking - kind_of_host_.begin())],
                      "no topology of its machine");
  }
  std::string figures;
  auto graph = make_graph(has_devices_, costs, &figures);
  uint64_t hash = 0;
  if (graph.ok()) hash = graph.value().hash();
  std::string verdict;
  append(hash, &verdict);
  if (context_.rank == 0 && maps) {
    const std::string why = graph.ok() ? "ranks reach each other's memory" : graph.status().text();
    verdict = pack_verdict(hash, {.offered = false, .reason = why, .searches = {}});
  } else if (context_.rank == 0) {
    const auto directory = cost::cache_directory(settings_.cache_dir);
    verdict = pack_verdict(
        hash, graph.ok()
                  ? search_trees(graph.value(), directory.ok() ? directory.value() : "")
                  : TreeSearch{.offered = false, .reason = graph.status().text(), .searches = {}});
  }
  auto verdicts = bootstrap.all_gather(verdict, deadline_ns);
  if (!verdicts.ok()) return verdicts.status();
  for (Rank rank = 0; rank < all_.size(); ++rank) {
    std::string_view bytes = verdicts.value()[rank];
    uint64_t other = 0;
    if (!take_number(&bytes, &other)) return unreadable(rank, "no hash of the link graph");
    std::string_view first = verdicts.value()[0];
    uint64_t of_0 = 0;
    take_number(&first, &of_0);
    if (other == of_0 && (rank == 0 || bytes.empty())) continue;
    return Status(Code::kMismatch,
                  fmt::format("rank {} has made another link graph than rank 0 from what all ranks "
                              "told: {:016x}, not {:016x}; do all ranks run the same version of "
                              "Weir?",
                              rank, other, of_0));
  }
  if (!graph.ok()) {
    if (!maps) links.forests = star_of(*costs, hosts_, cards_of_host_);
    links.reason = "not known (" + graph.status().text() + ")";
    return links;
  }
  auto told = unpack_verdict(verdicts.value()[0], graph.value());
  if (!told.ok()) return unreadable(0, told.status().text());
  if (devices_known_ && hosts_.empty()) {
    links.device_ways =
        std::make_shared<const graph::DeviceWays>(graph::device_ways(graph.value()));
  }
  if (maps) {
    if (links.device_ways != nullptr) {
      links.reason =
          fmt::format("devices, graph {:016x}{}", hash, graph::describe(*links.device_ways));
    } else if (has_devices_) {
      links.reason = "not all devices of the ranks are in the topology of the machine";
    }
    if (!spans_nodes_) return links;
    // The data of collectives on memory of the host lie there, and not on the ranks' devices.
    if (has_devices_) graph = make_graph(false, costs, &figures);
    if (!graph.ok()) return links;
    links.reason += fmt::format(
        "{}ranks in several NUMA nodes, graph {:016x}: predictions know which links they share",
        links.reason.empty() ? "" : "; ", graph.value().hash());
    links.memory_ways = std::make_shared<const cost::MessageWays>(graph.take());
    return links;
  }
  const std::string hosts = hosts_.empty() ? "one host"
                                           : fmt::format("{} hosts of {} kinds, {} networks",
                                                         leaders_.size(), kinds_.size(), figures);
  links.reason = fmt::format("{}, graph {:016x}: trees are {}: {}", hosts, hash,
                             told.value().offered ? "offered" : "not offered",
                             printable(told.value().reason, kReasonBytesMax));
  if (links.device_ways != nullptr) links.reason += graph::describe(*links.device_ways);
  if (told.value().offered) {
    links.forests =
        std::make_shared<graph::Forests>(graph.take(), std::move(told.value().searches));
  }
  return links;
}

}  // namespace weir::comm
