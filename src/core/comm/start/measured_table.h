// SPDX-License-Identifier: Apache-2.0
// The table of task times that the ranks of a new communicator agree on: the cached one of this
// machine's topology, else measured now and kept, else the built-in figures. One thread at a time.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/base/settings.h"
#include "core/base/status.h"
#include "core/comm/start/bootstrap.h"
#include "core/comm/start/introduction.h"
#include "core/comm/start/learned_choices.h"
#include "core/cost/table.h"
#include "core/engine/context.h"

namespace weir::comm {

class MachineExchange;

struct AgreedCosts {
  cost::Table table;
  // The time on the wire of a card of each host, per byte, where hosts differ (host_wires.h);
  // empty: they do not.
  std::vector<double> wire_of_host;
  // On rank 0, the directory of the cache where the table may be; empty: it is not cached.
  std::string cached_in;
  cost::LearnedTimes learned{};  // of earlier runs; rank 0's
  // With WEIR_LEARN, a number that rank 0 has drawn: PlannerOptions::learn_seed. Otherwise 0.
  uint64_t learn_seed = 0;
  // On rank 0, where it keeps what this run measures; no value: nowhere.
  std::optional<LearnedPlace> learned_in{};
};

// Collective, after every rank has mapped the segment; also a barrier. Where no memory is shared,
// the table's shared-memory links get the figures of messages within a host, and its network the
// figures of messages between two. If the probe fails, no rank gets a table and every rank gets the
// reason: the communicator cannot be used. `transport_error`: the string that receives the
// transport's texts. `machines`: what ranks tell of their machines goes along, in the same gathers;
// nullptr: nothing does.
Result<AgreedCosts> agree_on_costs(Bootstrap& bootstrap, engine::Context& context,
                                   const Settings& settings, const std::vector<Introduction>& all,
                                   uint64_t deadline_ns, const std::string& transport_error,
                                   MachineExchange* machines = nullptr);

}  // namespace weir::comm
