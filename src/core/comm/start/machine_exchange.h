// SPDX-License-Identifier: Apache-2.0
// MachineExchange: how the ranks of a new communicator learn which machines they are on, and agree
// on the link graph of these and on the trees in it.
//
// Which rounds it takes, over the bootstrap:
//
//   1. With the first gather of the costs, the first rank of each host (its leader) tells the hash
//      of its topology, and rank 0 whether the network is measured.
//   2. With the second one, if there is one, otherwise by itself and only if it is needed: the
//      leader of the first host of each hash tells the topology. So equal hosts cost one.
//   3. By itself, and only where trees may be worth it: rank 0 tells the hash of the graph and the
//      trees, the others the hash of the graph that they have made. Everyone checks both.
//
// Nothing is told where nothing can be gained: by ranks that share mapped memory, whose algorithms
// go without messages; by ranks of one host without devices, whose messages cost time of processors
// and not of links. Hosts that are alike (one kind of machine, the same number of ranks, no
// devices, and networks that were not measured to differ) end after the first gather: what hosts
// are to each other, the algorithms by host use as well as any tree.
//
// What ranks tell (integers little-endian; each is the end of what the gather carries, with its
// size, 4 bytes, behind it):
//
//   1  leader: 1, hash (8); or 0 and why its topology cannot be told, <= 200 bytes. Rank 0 puts in
//      front: 1, the network is measured, or 0
//   2  version (2): 1, and NCCL's XML (process_topology.h)
//   3  hash of the graph (8), 0: there is none. Rank 0 continues: whether trees are offered (1),
//      the reason for people (2: size; text), number of forests (4); each: hash of its graph (8),
//      size (4), bytes (graph/search_record.h). Rings: size (4), 0: none are told; bytes
//
// One thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/settings.h"
#include "core/base/status.h"
#include "core/comm/start/bootstrap.h"
#include "core/comm/start/introduction.h"
#include "core/comm/start/measured_table.h"
#include "core/comm/start/process_topology.h"
#include "core/cost/message_ways.h"
#include "core/engine/context.h"
#include "core/graph/device_ways.h"
#include "core/graph/forests.h"
#include "core/graph/link_graph.h"

namespace weir::comm {

// What a communicator knows of the links between its ranks; the same on all of them.
struct LinksInUse {
  // Trees for these links; nullptr: links are alike, or not known.
  std::shared_ptr<graph::Forests> forests;
  // Of ranks on devices of one machine; nullptr: there are none, or their links are not known.
  std::shared_ptr<const graph::DeviceWays> device_ways;
  // Of ranks that map each other's memory, in several NUMA nodes; nullptr likewise.
  std::shared_ptr<const cost::MessageWays> memory_ways;
  // For a reader who asks why; "": there was nothing to decide.
  std::string reason;
};

class MachineExchange {
 public:
  // Reads this machine's topology, for the leader of a host: told_topology.
  using Tell = std::function<Result<ToldTopology>()>;

  // All ranks make it with the same `all` and `card_of_rank` (cost::RankLayout). `context` says
  // whether memory is mapped. `tell`: empty but in tests.
  MachineExchange(const engine::Context& context, const Settings& settings,
                  const std::vector<Introduction>& all, const std::vector<uint32_t>& card_of_rank,
                  Tell tell = {});

  // As Bootstrap::all_gather; what this exchange has to tell goes along. kRefused, naming the rank,
  // where that cannot be read.
  Result<std::vector<std::string>> all_gather(Bootstrap& bootstrap, std::string_view blob,
                                              uint64_t deadline_ns);

  // Collective, after the costs have been agreed on: tells what is left. Sets
  // AgreedCosts::wire_of_host where only the nominal figures of the hosts' networks differ. Rank 0
  // keeps searches in the cache directory. Errors, the same on all ranks: kRefused and kMismatch,
  // naming the rank, and those of the bootstrap.
  Result<LinksInUse> agree(Bootstrap& bootstrap, AgreedCosts* costs, uint64_t deadline_ns);

  // For tests: how many topologies have been told so far, by all ranks.
  uint32_t topologies_told() const { return topologies_told_; }

 private:
  std::string rider();
  Status take(std::vector<std::string>* blobs);
  Status take_hash(Rank rank, std::string_view rider);
  Status take_topology(Rank rank, std::string_view rider);
  bool is_leader(Rank rank) const { return leaders_[host_of(rank)] == rank; }
  uint32_t host_of(Rank rank) const { return hosts_.empty() ? 0 : hosts_[rank]; }
  // By what is known after the first gather.
  bool hosts_are_alike() const;
  // `on_devices`: of the ranks' devices, as far as these are known.
  Result<graph::LinkGraph> make_graph(bool on_devices, AgreedCosts* costs, std::string* why);

  const engine::Context& context_;
  const Settings& settings_;
  const std::vector<Introduction>& all_;
  const Tell tell_;
  const std::vector<uint32_t> hosts_;  // empty: one
  std::vector<Rank> leaders_;          // of each host
  std::vector<double> cards_of_host_;  // how many its ranks use
  bool has_devices_ = false;
  bool spans_nodes_ = false;  // ranks of several NUMA nodes map each other's memory
  bool takes_part_ = false;
  uint32_t round_ = 0;
  // After the first gather:
  bool network_measured_ = false;
  std::string unknown_;  // why there is no graph; "": there may be one
  std::vector<uint64_t> kinds_;
  std::vector<uint32_t> kind_of_host_;
  // After the second:
  std::vector<topo::Topology> topologies_;  // of each kind
  bool devices_known_ = false;              // of the latest graph: it has each rank's
  uint32_t topologies_told_ = 0;
};

}  // namespace weir::comm
