// SPDX-License-Identifier: Apache-2.0
// Planner: turns a call into a bound plan and keeps it. The choice of algorithm, protocol and
// slicing is made here, once per distinct call; a warm call finds its plan in a few nanoseconds.
// Used under the communicator's lock.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/algo/algorithm.h"
#include "core/algo/imported.h"
#include "core/base/status.h"
#include "core/cost/decision_log.h"
#include "core/cost/router.h"
#include "core/cost/rules.h"
#include "core/cost/table.h"
#include "core/engine/call.h"
#include "core/engine/context.h"
#include "core/engine/lane_plan.h"
#include "core/engine/mapped_plan.h"
#include "core/graph/forests.h"

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

// The properties of a call that decide which plan it needs.
struct PlanKey {
  uint64_t what = 0;   // pack_what
  uint64_t count = 0;  // of a v-variant: bytes, rounded up to a power of two
  bool in_place = false;
  bool windows = false;
  bool operator==(const PlanKey&) const = default;
};

// One entry of WEIR_ALGORITHM.
struct ForcedAlgorithm {
  Collective collective = Collective::kAllReduce;
  algo::BlockLengths lengths = algo::BlockLengths::kEqual;
  const algo::Algorithm* algorithm = nullptr;
};

// The choices that the planner has.
struct PlannerOptions {
  std::span<const algo::Algorithm* const> algorithms = algo::all_algorithms();
  bool deterministic = false;
  Arithmetic arithmetic = Arithmetic::kIeee;
  bool shared_cores = false;            // more ranks than cores
  uint64_t slice_bytes = 0;             // 0: by size
  std::vector<ForcedAlgorithm> forced;  // WEIR_ALGORITHM
  std::vector<uint32_t> node_of_rank;   // empty: one node
  std::vector<double> wire_of_node;     // ns per byte, where nodes differ (cost::RankLayout)
  // Trees for this communicator's links; nullptr: links are alike, or not known.
  std::shared_ptr<graph::Forests> forests;
  cost::Table table;         // measured, the same on all ranks
  cost::Rules rules;         // WEIR_TUNING_FILE
  bool explain = false;      // print each first-time decision
  bool times_calls = false;  // measure some calls, for Planner::decisions
  uint32_t core_count = 0;   // that the ranks of this machine may use; 0: enough

  // WEIR_PROGRAMS: algorithms besides the above.
  std::vector<std::shared_ptr<const algo::Imported>> programs;
};

class Planner {
 public:
  Planner(const Context& context, PlannerOptions options);

  // The plan for `call`; `windows`: every rank's buffers lie in user windows. The choice for a
  // v-variant is made once per type and order of magnitude; the plan is bound again when its
  // lengths change. The pointer is valid until the next call of plan_for.
  Result<const Plan*> plan_for(const Call& call, bool windows);

  // Makes a set of programs a candidate; `preferred`: it is used wherever it can be. All plans are
  // made again; those of operations under way stay valid.
  void add(std::shared_ptr<const algo::Imported> program, bool preferred);
  // Every algorithm that may be a candidate.
  std::span<const algo::Algorithm* const> algorithms() const { return algorithms_; }

  // The latest plan, without a search; nullptr when it is for another call.
  const Plan* latest(const Call& call) const {
    const PlanKey key = key_of(call, false);
    return latest_ != nullptr && latest_key_ == key && call.block_counts == nullptr ? latest_
                                                                                    : nullptr;
  }

  // Whether some algorithm of the collective works in user windows.
  bool uses_windows(Collective collective) const {
    return uses_windows_[static_cast<size_t>(collective)];
  }

  // Every decision, with predicted and measured times.
  const cost::DecisionLog& decisions() const { return decisions_; }
  bool explains() const { return options_.explain; }
  const cost::Table& table() const { return options_.table; }
  // Whether the call with this number is to be measured. Most are not, since a warm call takes less
  // than a microsecond. A prime number: a program repeats its calls in an order of its own.
  static constexpr uint64_t kTimedEvery = 31;
  bool times(uint64_t sequence) const {
    return options_.explain || (options_.times_calls && sequence % kTimedEvery == 0);
  }
  // Records that the operation of `plan` took `ns` on this rank; printed the first time, if
  // requested.
  void measured(const Plan& plan, double ns);
  // Prints, if requested, the times of every decision that was used more than once.
  void explain_totals() const;

 private:
  static PlanKey key_of(const Call& call, bool windows) {
    return {pack_what(call), call.count, call.in_place, windows};
  }
  // A decision and the program that results from it.
  struct Choice {
    const algo::Algorithm* algorithm = nullptr;
    uint64_t slice_bytes = 0;  // wanted; 0: by size
    uint64_t record = 0;
    sched::Program program;
  };
  struct UnevenChoice {
    PlanKey key;
    Choice choice;
  };
  Result<const Plan*> plan_for_uneven(const Call& call, bool windows);
  // `bytes`: of the largest buffer of a rank.
  Result<Choice> choose(const Call& call, bool windows, uint64_t bytes);
  Result<std::unique_ptr<Plan>> bind(const Choice& choice, const Call& call) const;
  // Asks the router and records its answer.
  Result<cost::Decision> decide(const Call& call, const algo::Problem& problem, uint64_t bytes,
                                uint64_t* record);
  const ForcedAlgorithm* forced_for(const algo::Problem& problem) const;
  const algo::Algorithm* preferred_for(const algo::Problem& problem) const;
  void note_windows();

  struct Entry {
    PlanKey key;
    std::unique_ptr<Plan> plan;
  };
  static constexpr size_t kEntries = 256;
  static constexpr size_t kUnevenChoicesMax = 16;

  const Context& context_;
  PlannerOptions options_;
  std::vector<const algo::Algorithm*> algorithms_;  // options_.algorithms and options_.programs
  std::vector<const algo::Algorithm*> preferred_;   // the latest last
  std::vector<Entry> entries_;
  cost::DecisionLog decisions_;
  std::array<bool, kCollectiveCount> uses_windows_{};
  std::vector<UnevenChoice> uneven_choices_;
  size_t next_uneven_choice_ = 0;  // the next to be replaced when there are kUnevenChoicesMax
  // The plan of the latest v-variant, and the lengths to which it was bound.
  std::unique_ptr<Plan> uneven_;
  PlanKey uneven_key_;
  std::vector<size_t> uneven_lengths_;
  std::vector<size_t> lengths_;                 // of the call at hand
  std::vector<std::unique_ptr<Plan>> retired_;  // by `add`
  PlanKey latest_key_;
  const Plan* latest_ = nullptr;
};

// Parses WEIR_ALGORITHM ("all_reduce=ring,all_to_all_v=pairwise"). An algorithm forced for a
// collective is also used for its v-variant, where it supports blocks of different lengths and no
// other is forced for that variant. `among`: the algorithms that may be named.
Result<std::vector<ForcedAlgorithm>> parse_forced_algorithms(
    const std::string& text,
    std::span<const algo::Algorithm* const> among = algo::all_algorithms());

}  // namespace weir::engine
