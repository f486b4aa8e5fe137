// SPDX-License-Identifier: Apache-2.0
#include "core/comm/start/measured_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/base/per_process.h"
#include "core/comm/start/host_wires.h"
#include "core/comm/start/kept_table.h"
#include "core/comm/start/machine_exchange.h"
#include "core/comm/start/process_topology.h"
#include "core/comm/start/rank_groups.h"
#include "core/cost/cache.h"
#include "core/engine/probe.h"
#include "core/engine/probe_link.h"
#include "core/plugin/registry.h"
#include "net/auth.h"
#include "net/little_endian.h"

namespace weir::comm {

namespace {

// What rank 0 tells the others: a table, or that ranks 0 and 1 measure one first.
constexpr std::string_view kProbeNow = "probe";
// Follows a table that was measured only in part, for lack of time.
constexpr std::string_view kCutShort = "cut short";
// Nanoseconds per byte; one millisecond.
constexpr double kWireMax = 1e6;

// What ranks tell of their machines goes with what they tell of costs.
Result<std::vector<std::string>> gather(Bootstrap& bootstrap, const std::string& told,
                                        uint64_t deadline_ns, MachineExchange* machines) {
  if (machines == nullptr) return bootstrap.all_gather(told, deadline_ns);
  return machines->all_gather(bootstrap, told, deadline_ns);
}

std::string pack(const cost::Table& table) {
  const cost::TableBlob blob = cost::to_blob(table);
  return std::string(reinterpret_cast<const char*>(blob.data()), blob.size());
}

Result<cost::Table> unpack(const std::string& blob) {
  return cost::table_from_blob(std::as_bytes(std::span(blob.data(), blob.size())));
}

// The table, then 8 bytes for each host that has a figure of its own.
std::string pack(const AgreedCosts& costs) {
  std::string blob = pack(costs.table);
  const auto* wires = reinterpret_cast<const char*>(costs.wire_of_host.data());
  return blob.append(wires, costs.wire_of_host.size() * sizeof(double));
}

Status lacks_figures(Rank rank) {
  return Status(Code::kRefused, fmt::format("rank {} sent figures of other links than it measured; "
                                            "do all ranks run the same version of Weir?",
                                            rank));
}

// `count`: of figures that there may be beside the table of `rank`.
Result<AgreedCosts> unpack_costs(const std::string& blob, size_t count, Rank rank = 0) {
  const size_t wire_bytes =
      blob.size() > cost::kTableBlobBytes ? blob.size() - cost::kTableBlobBytes : 0;
  if (wire_bytes != 0 && wire_bytes != count * sizeof(double)) return lacks_figures(rank);
  auto table = unpack(blob.substr(0, cost::kTableBlobBytes));
  if (!table.ok()) return table.status();
  AgreedCosts costs{.table = table.take(), .wire_of_host = {}, .cached_in = {}};
  costs.wire_of_host.resize(wire_bytes / sizeof(double));
  if (wire_bytes != 0) {
    std::memcpy(costs.wire_of_host.data(), blob.data() + cost::kTableBlobBytes, wire_bytes);
  }
  for (const double wire : costs.wire_of_host) {
    if (!(wire >= 0 && wire <= kWireMax)) {
      return Status(Code::kRefused,
                    fmt::format("rank {} sent a figure of a link that is out of range", rank));
    }
  }
  return costs;
}

// The cost of a connection within this machine does not change, and neither does that of its
// memory.
uint64_t hash_over(uint64_t topology, const std::string& transport) {
  for (const char c : transport) {
    topology = (topology ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  return topology;
}

// Tables of this process: its communicators are often made of one another.
using Memory = std::map<std::string, AgreedCosts>;
constinit InheritedState<Memory> memory;
constexpr size_t kTablesMax = 256;

std::optional<AgreedCosts> recall(const std::string& key) {
  const auto tables = memory.use();
  const auto found = tables->find(key);
  return found == tables->end() ? std::nullopt : std::optional(found->second);
}

void remember(const std::string& key, const AgreedCosts& costs) {
  const auto tables = memory.use();
  if (tables->size() < kTablesMax) tables->emplace(key, costs);
}

// What this rank has measured: its own core, if `decides`, and the links of pairs that it leads.
struct Measured {
  cost::Table table = cost::built_in_table();
  std::vector<double> wires;  // of the brief pairs, in their order
  bool complete = true;
};

Status measure(engine::Context& context, const std::vector<Pair>& pairs, uint64_t hash,
               bool decides, uint64_t deadline_ns, const engine::ProbeWatch& watch,
               Measured* measured) {
  cost::Table& table = measured->table;
  for (const Pair& pair : pairs) {
    if (context.rank != pair.first && context.rank != pair.second) continue;
    const bool leads = context.rank == pair.first;
    const Rank peer = leads ? pair.second : pair.first;
    bool whole = true;
    cost::LinkTimes link = table.times.link(pair.link);
    WEIR_RETURN_IF_ERROR(engine::probe_link(
        context, peer, leads, {.is_network = cost::is_network(pair.link), .brief = pair.brief},
        deadline_ns, watch, &link, &whole));
    if (pair.brief) {
      if (leads) measured->wires.push_back(link.wire_ns_per_byte);
      continue;
    }
    table.times.link(pair.link) = link;
    measured->complete = measured->complete && whole;
  }
  if (decides) {
    bool whole = true;
    const std::vector<cost::LinkTimes> links(table.times.links.begin(), table.times.links.end());
    auto own = engine::probe_tasks(context, hash, deadline_ns, watch, &whole);
    if (!own.ok()) return own.status();
    table = own.take();
    std::copy(links.begin(), links.end(), table.times.links.begin());
  }
  table.topology_hash = hash;
  return cost::validate(table);
}

// Early enough for the other ranks to hear which rank waited for which before their own deadline.
uint64_t end_of_probe(uint64_t deadline_ns) {
  constexpr uint64_t kReserveNsMax = 1'000'000'000;
  const uint64_t now = now_ns();
  return deadline_ns > now ? deadline_ns - std::min(kReserveNsMax, (deadline_ns - now) / 4) : now;
}

// The probe has failed on this rank: there is no communicator, on any rank, and all say why.
Status fail_start(Bootstrap& bootstrap, const Status& status, const std::string& transport_error) {
  const bool is_transports = status.code() != Code::kTimeout && status.code() != Code::kAborted &&
                             !transport_error.empty();
  return bootstrap.give_up(
      is_transports ? Status(status.code(), status.text() + ": " + transport_error) : status);
}

bool share_cores(const std::vector<Introduction>& all) {
  const std::vector<bool> shares = shared_cores(all);
  return std::find(shares.begin(), shares.end(), true) != shares.end();
}

// Empty: there is none.
std::string directory_of(const Settings& settings) {
  auto found = cost::cache_directory(settings.cache_dir);
  return found.ok() ? found.take() : "";
}

// On rank 0: where the times of earlier runs are.
std::optional<LearnedPlace> learned_place(const engine::Context& context, const Settings& settings,
                                          const std::vector<Introduction>& all) {
  if (context.rank != 0 || context.rank_count == 1) return std::nullopt;
  LearnedPlace place;
  place.directory = learned_directory(settings);
  if (place.directory.empty()) return std::nullopt;
  place.of.topology_hash = topology_hash(settings);
  if (place.of.topology_hash == 0) return std::nullopt;
  const std::string parts = plugin::describe_parts(*context.transport);
  place.of.transport = context.transport->name + (parts.empty() ? "" : " (" + parts + ")");
  place.of.rank_count = context.rank_count;
  place.of.layout = describe_layout(all);
  if (settings.tls != "off") place.of.layout += "; WEIR_TLS=" + settings.tls;
  place.of.layout += fmt::format("; staging memory of {} bytes", settings.staging_bytes);
  if (settings.slice_bytes != 0) {
    place.of.layout += fmt::format(", slices of {}", settings.slice_bytes);
  }
  return place;
}

// Splits what rank 0 has told first, and adds the times to `agreed`, if it is ok.
Result<AgreedCosts> with_learned(Result<AgreedCosts> agreed, const std::string& learned) {
  if (!agreed.ok()) return agreed;
  if (learned.size() < sizeof agreed.value().learn_seed) return lacks_figures(0);
  agreed.value().learn_seed =
      net::get<uint64_t>(reinterpret_cast<const unsigned char*>(learned.data()));
  const std::string_view kept = std::string_view(learned).substr(sizeof(uint64_t));
  if (kept.empty()) return agreed;
  auto times = cost::LearnedTimes::unpack(kept);
  if (!times.ok()) return times.status();
  agreed.value().learned = times.take();
  return agreed;
}

Result<AgreedCosts> with_directory(Result<AgreedCosts> costs, const std::string& directory) {
  if (costs.ok()) costs.value().cached_in = directory;
  return costs;
}

// Of the brief pairs, from what the ranks that led them have told.
Result<std::vector<double>> brief_wires(const std::vector<std::string>& told,
                                        const std::vector<Pair>& pairs) {
  std::map<Rank, size_t> led;
  for (const Pair& pair : pairs) ++led[pair.first];
  std::map<Rank, std::vector<double>> of_rank;
  for (const auto& [rank, count] : led) {
    auto costs = unpack_costs(told[rank], count, rank);
    if (!costs.ok()) return costs.status();
    of_rank[rank] = costs.value().wire_of_host;
    if (of_rank[rank].size() != count) return lacks_figures(rank);
  }
  std::map<Rank, size_t> taken;
  std::vector<double> wires;
  for (const Pair& pair : pairs) wires.push_back(of_rank[pair.first][taken[pair.first]++]);
  return wires;
}

// Over a transport without mapped memory: every link is measured by messages.
Result<AgreedCosts> agree_on_links(Bootstrap& bootstrap, engine::Context& context,
                                   const Settings& settings, const std::vector<Introduction>& all,
                                   uint64_t deadline_ns, const std::string& transport_error,
                                   std::string* learned, MachineExchange* machines) {
  const bool decides = context.rank == 0;
  const std::vector<uint32_t> hosts = host_of_rank(all);
  const std::vector<Pair> pairs = pairs_to_measure(hosts, context.rank_count);
  // The network may be another one in the next run.
  const bool keeps = hosts.empty();
  const size_t host_count = keeps ? 0 : *std::max_element(hosts.begin(), hosts.end()) + 1;
  const std::string key = context.transport->name + std::string(" ") + hosts_of(all);
  uint64_t hash = 0;
  std::string directory;
  const auto kept_table = [&] {
    return KeptTable(directory, hash, {.shared_cores = share_cores(all), .by_messages = true});
  };
  std::string told;
  if (decides) {
    std::optional<AgreedCosts> known;
    hash = keeps ? topology_hash(settings) : 0;
    if (hash != 0) {
      directory = directory_of(settings);
      hash = hash_over(hash, context.transport->name);
    }
    if (auto table = kept_table().find(); table) {
      known = AgreedCosts{.table = *table, .wire_of_host = {}, .cached_in = {}};
    }
    if (!known) known = recall(key);
    told = known ? pack(*known) : std::string(kProbeNow);
  }
  auto first =
      gather(bootstrap, decides ? append_learned(told, *learned) : told, deadline_ns, machines);
  if (!first.ok()) return first.status();
  if (!split_learned(&first.value()[0], learned)) return lacks_figures(0);
  if (first.value()[0] != kProbeNow) {
    return with_directory(unpack_costs(first.value()[0], host_count), directory);
  }

  Measured mine;
  const Status measured = measure(
      context, pairs, hash, decides, end_of_probe(deadline_ns), [&] { return bootstrap.look(); },
      &mine);
  if (!measured.ok()) return fail_start(bootstrap, measured, transport_error);
  const bool measures = std::any_of(pairs.begin(), pairs.end(),
                                    [&](const Pair& pair) { return pair.first == context.rank; });
  auto second = gather(bootstrap,
                       measures || decides ? pack(AgreedCosts{mine.table, mine.wires, {}}) +
                                                 (mine.complete ? "" : std::string(kCutShort))
                                           : "",
                       deadline_ns, machines);
  if (!second.ok()) return second.status();
  bool complete = true;
  for (std::string& told_by : second.value()) {
    if (!told_by.ends_with(kCutShort)) continue;
    told_by.resize(told_by.size() - kCutShort.size());
    complete = false;
  }
  // Of each rank, with the figures of the brief pairs that it led.
  std::map<Rank, AgreedCosts> by_rank;
  std::map<Rank, size_t> led;
  for (const Pair& pair : pairs) led[pair.first] += pair.brief ? 1 : 0;
  led.try_emplace(0, 0);
  for (const auto& [rank, count] : led) {
    auto of_rank = unpack_costs(second.value()[rank], count, rank);
    if (!of_rank.ok()) return of_rank.status();
    if (of_rank.value().wire_of_host.size() != count) return lacks_figures(rank);
    by_rank.emplace(rank, of_rank.take());
  }
  AgreedCosts agreed{.table = by_rank.at(0).table, .wire_of_host = {}, .cached_in = {}};
  std::vector<Pair> brief;
  std::vector<double> wires;
  std::map<Rank, size_t> taken;
  for (const Pair& pair : pairs) {
    const AgreedCosts& of_pair = by_rank.at(pair.first);
    if (pair.brief) {
      brief.push_back(pair);
      wires.push_back(of_pair.wire_of_host[taken[pair.first]++]);
      if (decides) {
        const std::string found =
            wires.back() > 0 ? fmt::format("measured briefly: {:.3f} ns per byte", wires.back())
                             : std::string("not measured, as a small message takes too long");
        log_info(fmt::format("{} from rank {} to rank {}, {}", context.transport->name, pair.first,
                             pair.second, found));
      }
      continue;
    }
    const cost::LinkTimes link = of_pair.table.times.link(pair.link);
    agreed.table.times.link(pair.link) = link;
    if (decides) {
      log_info(fmt::format(
          "{} {}, measured by ranks {} and {}: {:.2f} us for a small message, {:.3f} ns per byte",
          context.transport->name, cost::is_network(pair.link) ? "between hosts" : "within a host",
          pair.first, pair.second, link.message_ns / 1000,
          std::max(
              {link.wire_ns_per_byte, link.slot_in_ns_per_byte[1], link.slot_out_ns_per_byte[1]})));
    }
    if (cost::is_network(pair.link)) continue;
    agreed.table.times.link(cost::Link::kShmSameSocket) = link;
    agreed.table.times.link(cost::Link::kShmCrossSocket) = link;
  }
  HostWires of_hosts(hosts, brief);
  for (bool again = of_hosts.add(wires); again; again = of_hosts.add(wires)) {
    if (decides) log_info("hosts seem to differ: their networks are measured again");
    Measured round;
    const Status status = measure(
        context, brief, hash, false, end_of_probe(deadline_ns), [&] { return bootstrap.look(); },
        &round);
    if (!status.ok()) return fail_start(bootstrap, status, transport_error);
    auto told_again = bootstrap.all_gather(
        round.wires.empty() ? "" : pack(AgreedCosts{round.table, round.wires, {}}), deadline_ns);
    if (!told_again.ok()) return told_again.status();
    auto found = brief_wires(told_again.value(), brief);
    if (!found.ok()) return found.status();
    wires = found.take();
  }
  agreed.wire_of_host = of_hosts.of_host();
  if (decides) remember(key, agreed);
  if (decides && complete) kept_table().keep(agreed.table);
  return with_directory(std::move(agreed), directory);
}

// Which links a table tells apart. One of ranks that are all equally near is as it always was.
uint64_t hash_over_links(uint64_t hash, const std::vector<Pair>& pairs) {
  if (pairs.empty() || (pairs.size() == 1 && pairs[0].link == cost::Link::kShmSharedCache)) {
    return hash;
  }
  std::string links = "links";
  for (size_t link = 0; link < cost::kLinkCount; ++link) {
    const bool measured = std::any_of(pairs.begin(), pairs.end(), [&](const Pair& pair) {
      return static_cast<size_t>(pair.link) == link;
    });
    if (measured) links += fmt::format(" {}", link);
  }
  return hash_over(hash, links);
}

// This rank's part of the measurements over mapped memory: ranks 0 and 1 measure their core and the
// first pair. `mine` gets the figures of the pairs that this rank leads.
Status measure_mapped(engine::Context& context, const std::vector<Pair>& pairs, uint64_t hash,
                      uint64_t deadline_ns, const engine::ProbeWatch& watch, cost::Table* mine,
                      bool* complete) {
  for (uint32_t i = 0; i < pairs.size(); ++i) {
    const Pair& pair = pairs[i];
    if (context.rank != pair.first && context.rank != pair.second) continue;
    context.want_huge_pages();
    bool whole = true;
    if (i == 0) {
      auto table = engine::probe_tasks(context, hash, deadline_ns, watch, &whole);
      if (!table.ok()) return table.status();
      *mine = table.take();
      if (whole) mine->times.link(pair.link) = mine->times.link(cost::Link::kShmSharedCache);
    } else {
      cost::LinkTimes link = mine->times.link(pair.link);
      WEIR_RETURN_IF_ERROR(engine::probe_mapped_pair(context, {pair.first, pair.second, i},
                                                     deadline_ns, watch, &link, &whole));
      if (whole && context.rank == pair.first) mine->times.link(pair.link) = link;
    }
    *complete = *complete && whole;
  }
  return cost::validate(*mine);
}

// Takes the figures of each pair from what its leader has told, into the table of rank 0. Links
// that no pair has get those of the next nearer ones, or of the next farther.
Status take_links(const std::vector<Pair>& pairs, const std::vector<std::string>& told,
                  cost::Table* table) {
  std::map<cost::Link, cost::LinkTimes> measured;
  for (const Pair& pair : pairs) {
    auto of_pair = unpack_costs(told[pair.first], 0, pair.first);
    if (!of_pair.ok()) return of_pair.status();
    measured[pair.link] = of_pair.value().table.times.link(pair.link);
  }
  if (measured.empty()) return {};
  for (const cost::Link link :
       {cost::Link::kShmSharedCache, cost::Link::kShmSameSocket, cost::Link::kShmCrossSocket}) {
    const auto farther = measured.lower_bound(link);
    const bool is_measured = farther != measured.end() && farther->first == link;
    const bool takes_nearer = !is_measured && farther != measured.begin();
    if (takes_nearer && link == cost::Link::kShmCrossSocket) continue;  // the built-in figures
    table->times.link(link) = (takes_nearer ? std::prev(farther) : farther)->second;
  }
  return {};
}

// `learned`: on rank 0, what it tells all others beside the table; then what all have been told.
Result<AgreedCosts> agree(Bootstrap& bootstrap, engine::Context& context, const Settings& settings,
                          const std::vector<Introduction>& all, uint64_t deadline_ns,
                          const std::string& transport_error, std::string* learned,
                          MachineExchange* machines) {
  const bool decides = context.rank == 0;
  // Rank 0 decides whether there is a probe, whatever other ranks' settings are: both ranks of a
  // pair must take part. A hook may count operations, or fail them.
  if ((settings.probe || !decides) && settings.hooks.empty() && !context.mapped() &&
      context.rank_count > 1) {
    return agree_on_links(bootstrap, context, settings, all, deadline_ns, transport_error, learned,
                          machines);
  }
  const std::vector<Pair> pairs =
      context.mapped() ? pairs_by_link(rank_groups(all), context.rank_count) : std::vector<Pair>();
  uint64_t hash = 0;
  std::string directory;
  const auto kept_table = [&] {
    return KeptTable(directory, hash, {.shared_cores = share_cores(all), .by_messages = false});
  };
  std::string told;
  if (decides) {
    std::optional<cost::Table> table;
    if (settings.probe) {
      hash = topology_hash(settings);
      if (hash != 0) {
        directory = directory_of(settings);
        hash = hash_over_links(hash, pairs);
      }
      table = kept_table().find();
    }
    const bool probes = settings.probe && !table && context.mapped() && context.rank_count > 1;
    told = probes ? std::string(kProbeNow) : pack(table ? *table : cost::built_in_table());
  }
  auto first =
      gather(bootstrap, decides ? append_learned(told, *learned) : told, deadline_ns, machines);
  if (!first.ok()) return first.status();
  if (!split_learned(&first.value()[0], learned)) return lacks_figures(0);
  // What delays messages on purpose says nothing about the table.
  const std::string judged_in = settings.hooks.empty() ? directory : "";
  if (first.value()[0] != kProbeNow) {
    return with_directory(unpack_costs(first.value()[0], 0), judged_in);
  }

  cost::Table mine = cost::built_in_table();
  bool complete = true;
  const Status measured = measure_mapped(
      context, pairs, hash, end_of_probe(deadline_ns), [&] { return bootstrap.look(); }, &mine,
      &complete);
  if (!measured.ok()) return fail_start(bootstrap, measured, transport_error);
  const bool leads = std::any_of(pairs.begin(), pairs.end(),
                                 [&](const Pair& pair) { return pair.first == context.rank; });
  auto second =
      gather(bootstrap, leads ? pack(mine) + (complete ? "" : std::string(kCutShort)) : "",
             deadline_ns, machines);
  if (!second.ok()) return second.status();
  for (std::string& told_by : second.value()) {
    if (!told_by.ends_with(kCutShort)) continue;
    told_by.resize(told_by.size() - kCutShort.size());
    complete = false;
  }
  auto agreed = unpack_costs(second.value()[0], 0);
  if (!agreed.ok()) return agreed.status();
  if (complete) {
    WEIR_RETURN_IF_ERROR(take_links(pairs, second.value(), &agreed.value().table));
    if (decides) kept_table().keep(agreed.value().table);
  }
  return with_directory(std::move(agreed), judged_in);
}

}  // namespace

Result<AgreedCosts> agree_on_costs(Bootstrap& bootstrap, engine::Context& context,
                                   const Settings& settings, const std::vector<Introduction>& all,
                                   uint64_t deadline_ns, const std::string& transport_error,
                                   MachineExchange* machines) {
  // Even if nothing needs the topology, whoever names a file is told that it cannot be read.
  if (context.rank == 0 && !settings.topology_file.empty()) (void)topology_hash(settings);
  const std::optional<LearnedPlace> place = learned_place(context, settings, all);
  // Otherwise short jobs would explore the same calls with the same algorithms each time.
  unsigned char seed[sizeof(uint64_t)] = {};
  if (settings.learn && context.rank == 0 && !net::fill_random(seed, sizeof seed)) {
    net::put(seed, now_ns());
  }
  std::string learned(reinterpret_cast<const char*>(seed), sizeof seed);
  if (place) learned += learned_times(*place).pack();
  auto agreed = with_learned(
      agree(bootstrap, context, settings, all, deadline_ns, transport_error, &learned, machines),
      learned);
  if (agreed.ok()) agreed.value().learned_in = place;
  if (agreed.ok() && context.rank == 0 && !settings.costs_file.empty()) {
    const Status written = cost::write_table(settings.costs_file, agreed.value().table);
    if (!written.ok()) log_warn(fmt::format("WEIR_COSTS_FILE: {}", written.text()));
  }
  return agreed;
}

}  // namespace weir::comm
