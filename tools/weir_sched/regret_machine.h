// SPDX-License-Identifier: Apache-2.0
// The machines for which `weir-sched regret` judges choices: what a communicator knows of its
// hosts. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/base/types.h"
#include "core/cost/router.h"
#include "core/cost/table.h"
#include "core/graph/forests.h"

namespace weir::sched_tool {

// Hosts that are all alike, but for their networks; the last one may have fewer ranks.
struct RegretMachine {
  std::string name;
  Rank ranks_per_host = 1;
  uint32_t cards_per_host = 1;
  cost::Link network = cost::Link::kTcp;
  cost::Table table;
  // The time on the wire per byte of a card of each host, in turns. Empty: the table's.
  std::vector<double> wires;
};

// "8", "8x4", "8x4:fabric", "8:tcp": ranks and cards of a host, and the network of which `table`
// has the figures. "1:tcp:400+400+50": hosts with cards of so many Mbit/s, in turns. Otherwise the
// name of a file, hwloc's or NCCL's XML: one rank for each GPU (or core), the network cards that
// are the fastest, and a network as fast as these.
Result<RegretMachine> read_regret_machine(const std::string& text, const cost::Table& table);

// `rank_count` ranks on a machine's hosts, in blocks; those of a host are on its cards in blocks.
class RegretHosts {
 public:
  RegretHosts(const RegretMachine& machine, Rank rank_count);

  uint32_t host_count() const { return hosts_.empty() ? 1 : hosts_.back() + 1; }
  // What a communicator asks for this call. Refers to this. Where hosts differ, trees are searched
  // when a collective first asks for them.
  cost::Request request(Collective collective, uint64_t bytes) const;

 private:
  const RegretMachine& machine_;
  Rank rank_count_;
  std::vector<uint32_t> hosts_;  // of each rank; empty: one host
  std::vector<uint32_t> cards_;  // empty: one for each host
  std::vector<double> wires_;    // of each host; empty: all are alike
  std::unique_ptr<graph::Forests> forests_;
};

}  // namespace weir::sched_tool
