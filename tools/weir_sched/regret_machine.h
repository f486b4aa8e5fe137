// SPDX-License-Identifier: Apache-2.0
// The machines for which `weir-sched regret` judges choices: what a communicator knows of its
// hosts. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/base/types.h"
#include "core/cost/message_ways.h"
#include "core/cost/router.h"
#include "core/cost/table.h"
#include "core/graph/forests.h"
#include "weir_sched/sim_machine.h"

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
  // Of a file whose links are simulated: buffers of ranks on GPUs lie on these, and `table` is
  // cost::device_table(). Empty: with the task times of `table`.
  std::string links_file;
};

// "8", "8x4", "8x4:fabric", "8:tcp": ranks and cards of a host, and the network of which `table`
// has the figures. "1:tcp:400+400+50": hosts with cards of so many Mbit/s, in turns. Otherwise the
// name of a file, hwloc's or NCCL's XML: one rank for each GPU (or core), the network cards that
// the fastest, and a network as fast as these. `by_links`: of a file, over its links.
Result<RegretMachine> read_regret_machine(const std::string& text, const cost::Table& table,
                                          bool by_links = false);

// `rank_count` ranks on a machine's hosts, in blocks; those of a host are on its cards in blocks.
class RegretHosts {
 public:
  // Of a machine with `links_file`, `status` says why it cannot be used.
  RegretHosts(const RegretMachine& machine, Rank rank_count);

  const Status& status() const { return status_; }

  uint32_t host_count() const { return hosts_.empty() ? 1 : hosts_.back() + 1; }
  // What a communicator asks for this call. Refers to this. Where hosts differ, trees are searched
  // when a collective first asks for them.
  cost::Request request(Collective collective, uint64_t bytes, Rank root = 0) const;
  // Over which it is simulated; nullptr: the machine has no `links_file`.
  const graph::LinkGraph* links() const { return links_ ? &links_->graph : nullptr; }

 private:
  const RegretMachine& machine_;
  Rank rank_count_;
  std::vector<uint32_t> hosts_;  // of each rank; empty: one host
  std::vector<uint32_t> cards_;  // empty: one for each host
  std::vector<double> wires_;    // of each host; empty: all are alike
  std::unique_ptr<graph::Forests> forests_;
  std::optional<SimMachine> links_;
  std::unique_ptr<cost::MessageWays> ways_;
  uint32_t ranks_per_cache_ = 0;
  Status status_;
};

}  // namespace weir::sched_tool
