// SPDX-License-Identifier: Apache-2.0
// Planner: turns a call into a bound plan and keeps it. The choice of algorithm, protocol and
// slicing is made here, once per distinct call; a warm call finds its plan in a few nanoseconds.
// Used under the communicator's lock.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/algo/algorithm.h"
#include "core/base/status.h"
#include "core/cost/decision_log.h"
#include "core/cost/router.h"
#include "core/cost/rules.h"
#include "core/cost/table.h"
#include "core/engine/call.h"
#include "core/engine/context.h"
#include "core/engine/lane_plan.h"
#include "core/engine/mapped_plan.h"

namespace weir::engine {

enum class Protocol : uint8_t { kLine, kSlots, kWindows, kLanes };
const char* name_of(Protocol protocol);

struct Plan {
  Protocol protocol = Protocol::kLanes;
  const algo::Algorithm* algorithm = nullptr;
  uint32_t fingerprint = 0;
  uint64_t what = 0;                   // pack_what
  uint64_t decision = 0;               // its record in the log
  std::unique_ptr<MappedPlan> mapped;  // line, slots, windows
  std::unique_ptr<LanePlan> lanes;
};

// What distinguishes calls that need different plans.
struct PlanKey {
  uint64_t what = 0;  // pack_what
  uint64_t count = 0;
  bool in_place = false;
  bool windows = false;
  bool operator==(const PlanKey&) const = default;
};

// What the planner may choose from.
struct PlannerOptions {
  bool deterministic = false;
  bool shared_cores = false;                               // more ranks than cores
  uint64_t slice_bytes = 0;                                // 0: by size
  std::vector<std::pair<Collective, std::string>> forced;  // WEIR_ALGORITHM
  std::vector<uint32_t> node_of_rank;                      // empty: one node
  cost::Table table;                                       // measured, the same on all ranks
  cost::Rules rules;                                       // WEIR_TUNING_FILE
  bool explain = false;                                    // print each first-time decision
  uint32_t core_count = 0;  // that the ranks of this machine may use; 0: enough
};

class Planner {
 public:
  Planner(const Context& context, PlannerOptions options);

  // The plan for `call`; `windows`: every rank's buffers lie in user windows. v-variants are bound
  // anew each time. The pointer lives until the next call of plan_for with another key, at least.
  Result<const Plan*> plan_for(const Call& call, bool windows);

  // Fast look at the latest plan; nullptr when it is for something else.
  const Plan* latest(const Call& call) const {
    const PlanKey key = key_of(call, false);
    return latest_ != nullptr && latest_key_ == key && call.block_counts == nullptr ? latest_
                                                                                    : nullptr;
  }

  // Every decision, with predicted and measured times.
  const cost::DecisionLog& decisions() const { return decisions_; }
  bool explains() const { return options_.explain; }
  // The operation of `plan` took so long on this rank; printed the first time, where asked for.
  void measured(const Plan& plan, double ns);
  // Prints, where asked for, what every decision came to that was used more than once.
  void explain_totals() const;

 private:
  static PlanKey key_of(const Call& call, bool windows) {
    return {pack_what(call), call.count, call.in_place, windows};
  }
  Result<std::unique_ptr<Plan>> make(const Call& call, bool windows);
  // Asks the router and records its answer.
  Result<cost::Decision> choose(const Call& call, const algo::Problem& problem, uint64_t* record);

  struct Entry {
    PlanKey key;
    std::unique_ptr<Plan> plan;
  };
  static constexpr size_t kEntries = 256;

  const Context& context_;
  PlannerOptions options_;
  std::vector<Entry> entries_;
  cost::DecisionLog decisions_;
  std::unique_ptr<Plan> uneven_;  // of the latest v-variant
  PlanKey latest_key_;
  const Plan* latest_ = nullptr;
};

// Parses WEIR_ALGORITHM ("all_reduce=ring,broadcast=binomial").
Result<std::vector<std::pair<Collective, std::string>>> parse_forced_algorithms(
    const std::string& text);

}  // namespace weir::engine
