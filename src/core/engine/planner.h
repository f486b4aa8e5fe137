// SPDX-License-Identifier: Apache-2.0
// Planner: turns a call into a bound plan and keeps it. The choice of algorithm, protocol and
// slicing is made here, once per distinct call; a warm call finds its plan in a few nanoseconds.
// Used under the communicator's lock.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/algo/algorithm.h"
#include "core/algo/imported.h"
#include "core/algo/window_told.h"
#include "core/base/status.h"
#include "core/cost/decision_log.h"
#include "core/cost/message_ways.h"
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
  bool told = false;
  bool operator==(const PlanKey&) const = default;
};

// One entry of WEIR_ALGORITHM.
struct ForcedAlgorithm {
  Collective collective = Collective::kAllReduce;
  algo::BlockLengths lengths = algo::BlockLengths::kEqual;
  const algo::Algorithm* algorithm = nullptr;
  bool of_leaves = false;
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
  // Ranks of one host by last-level cache, NUMA node and package, numbered like nodes; empty: all
  // are together.
  std::vector<uint32_t> cache_of_rank;
  std::vector<uint32_t> numa_of_rank;
  std::vector<uint32_t> package_of_rank;
  // By the network card that a rank uses, as cost::RankLayout has them.
  std::vector<uint32_t> card_of_rank;
  uint32_t ranks_per_cache = 0;      // the most; 0: all ranks of a host share one
  std::vector<double> wire_of_node;  // ns per byte of a card, where nodes differ (cost::RankLayout)
  // Trees for this communicator's links; nullptr: links are alike, or not known.
  std::shared_ptr<graph::Forests> forests;
  // The buffers of the calls lie on devices, and messages go from device to device over these
  // links: predicted so, with `table` = cost::device_table(). nullptr: they are in memory of the
  // host. A planner serves one of both.
  std::shared_ptr<const cost::MessageWays> ways;
  // In memory of the host: the links that ranks of one host share (cost::RankLayout). nullptr: none
  // is, or they are not known.
  std::shared_ptr<const cost::MessageWays> memory_ways;
  cost::Table table;         // measured, the same on all ranks
  cost::Rules rules;         // WEIR_TUNING_FILE
  bool explain = false;      // print each first-time decision
  bool times_calls = false;  // measure some calls, for Planner::decisions
  uint32_t core_count = 0;   // that the ranks of this machine may use; 0: enough
  bool learns = false;       // some calls run and measure other algorithms; the same on all ranks
  // Chooses which calls these are, the same on all ranks: another one in each run, so that short
  // runs together measure all of them.
  uint64_t learn_seed = 0;
  cost::LearnedTimes learned;  // of earlier runs, the same on all ranks
  // Called after each measured call, if it explains or learns: with its record, and what has been
  // measured so far of the algorithm that it explored, if it did. May be empty.
  std::function<void(const cost::DecisionRecord&, const cost::ExploredTimes*)> on_measured;

  // WEIR_PROGRAMS: algorithms besides the above.
  std::vector<std::shared_ptr<const algo::Imported>> programs;
};

class Planner {
 public:
  Planner(const Context& context, PlannerOptions options);

  // The plan for `call`; `windows`: every rank's buffers lie in user windows. With Call::told, some
  // may, which is known when the plan runs. The choice for a
  // v-variant is made once per type and order of magnitude; the plan is bound again when its
  // lengths change. The pointer is valid until the next call of plan_for.
  Result<const Plan*> plan_for(const Call& call, bool windows);

  // With `explores(sequence)`: the plan for the call with this number, whose algorithm depends on
  // nothing else than the number and the decision. Everything else as plan_for.
  Result<const Plan*> plan_to_explore(const Call& call, bool windows, uint64_t sequence);
  // Whether the call with this number may run another algorithm than the one chosen, and is
  // measured: about one in kExploredEvery, spread so that no pattern of calls avoids them.
  static constexpr uint64_t kExploredEvery = 8;
  bool explores(uint64_t sequence) const {
    return options_.learns && spread(sequence + options_.learn_seed) % kExploredEvery == 0;
  }
  bool learns() const { return options_.learns; }

  // Makes a set of programs a candidate; `preferred`: it is used wherever it can be. All plans are
  // made again; those of operations under way stay valid.
  void add(std::shared_ptr<const algo::Imported> program, bool preferred);
  // kUnsupported: no call of this communicator could ever run it.
  Status check_runnable(const algo::Imported& program) const;
  // Every algorithm that may be a candidate.
  std::span<const algo::Algorithm* const> algorithms() const { return algorithms_; }

  // The latest plan, without a search; nullptr when it is for another call. It does not count as a
  // use: between two searches only the plan that the first one found is used.
  const Plan* latest(const Call& call) const {
    const PlanKey key = key_of(call, false);
    return latest_ != nullptr && latest_key_ == key && call.block_counts == nullptr ? latest_
                                                                                    : nullptr;
  }

  // The same of an all_to_all_v, whichever the longest block of all ranks.
  const Plan* latest_uneven(const Call& call) const {
    return uneven_ != nullptr && uneven_->what == pack_what(call) &&
                   is_bound_to(call, uneven_lengths_[0])
               ? uneven_.get()
               : nullptr;
  }

  // Whether some algorithm of the collective works in user windows.
  bool uses_windows(Collective collective) const {
    return uses_windows_[static_cast<size_t>(collective)];
  }

  // Whether its calls can be told (Call::told): where there are programs for it, and none from
  // elsewhere is a choice, too.
  bool tells(Collective collective) const {
    return uses_windows(collective) && algo::told::serves(collective) &&
           !has_programs_[static_cast<size_t>(collective)];
  }

  // What the router is asked about a call; refers to this. `windows`: as for plan_for.
  cost::Request request_for(const Call& call, bool windows) const;

  // Every decision, with predicted and measured times.
  const cost::DecisionLog& decisions() const { return decisions_; }
  bool explains() const { return options_.explain; }
  // Whether the call with this number goes by `plan_for` or `plan_to_explore`, even where its plan
  // is the latest.
  bool diverts(uint64_t sequence) const {
    return is_watched_ && (options_.explain || explores(sequence));
  }
  const cost::Table& table() const { return options_.table; }
  // Whether the call with this number is to be measured. Most are not, since a warm call takes less
  // than a microsecond. A prime number: a program repeats its calls in an order of its own.
  static constexpr uint64_t kTimedEvery = 31;
  bool times(uint64_t sequence) const {
    return options_.explain || (options_.times_calls && sequence % kTimedEvery == 0);
  }
  // Records that the operation of `plan` took `ns` on this rank; printed the first time, if
  // requested. `explored`: the plan is from `plan_to_explore`.
  void measured(const Plan& plan, double ns, bool explored = false);
  // Prints, if requested, the times of every decision that was used more than once, and of what was
  // explored; `all`: what the ranks have measured, as far as it is known.
  void explain_totals(const cost::TimesByKey& all) const;

 private:
  static PlanKey key_of(const Call& call, bool windows) {
    return {pack_what(call), call.count, call.in_place, windows, call.told};
  }
  // A decision and the program that results from it.
  struct Choice {
    const algo::Algorithm* algorithm = nullptr;
    uint64_t slice_bytes = 0;  // wanted; 0: by size
    uint64_t record = 0;
    sched::Program program;
    std::vector<const algo::Algorithm*> explored;  // cost::Decision::explored
  };
  struct UnevenChoice {
    PlanKey key;
    Choice choice;
  };
  // The same number for the same sequence number, whose lowest bits are spread evenly.
  static uint64_t spread(uint64_t sequence) {
    uint64_t z = sequence * 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 32) * 0xd6e8feb86659fd93ull;
    return z ^ z >> 32;
  }
  // The plans that calls of an entry explore; made when the first of them does.
  struct Explored {
    std::vector<const algo::Algorithm*> algorithms;
    std::vector<std::unique_ptr<Plan>> plans;  // of each; nullptr: not made yet, or the choice
  };
  struct Entry {
    PlanKey key;
    uint64_t used = 0;  // the value of use_count_ at its latest use; 0: never
    std::unique_ptr<Plan> plan;
    std::unique_ptr<Explored> explored;  // nullptr: nothing is explored
  };
  // That of the key, or the one of its set to use for it: it was not used for the longest time.
  Entry& entry_of(const PlanKey& key);
  Result<const Plan*> plan_for_uneven(const Call& call, bool windows);
  // Whether the latest plan of a v-variant was bound to the lengths of `call`, if those of all
  // ranks are at most `block_count_max`.
  bool is_bound_to(const Call& call, size_t block_count_max) const;
  PlanKey uneven_key_of(const Call& call, bool windows) const;
  UnevenChoice* uneven_choice_of(const PlanKey& key);
  // `bytes`: of the largest buffer of a rank.
  Result<Choice> choose(const Call& call, bool windows, uint64_t bytes);
  algo::Problem problem_of(const Call& call, bool windows, uint64_t bytes) const;
  void compile(const algo::Problem& problem, Choice* choice) const;
  // As chosen, but with another algorithm.
  Choice instead(const Choice& chosen, const algo::Algorithm* algorithm, const Call& call,
                 bool windows) const;
  Result<std::unique_ptr<Plan>> bind(const Choice& choice, const Call& call) const;
  cost::Request request_of(const Call& call, const algo::Problem& problem, uint64_t bytes) const;
  // Asks the router and records its answer.
  Result<cost::Decision> decide(const Call& call, const algo::Problem& problem, uint64_t bytes,
                                uint64_t* record);
  const ForcedAlgorithm* forced_for(const algo::Problem& problem) const;
  const algo::Algorithm* preferred_for(const algo::Problem& problem) const;
  // Adds the algorithms of the collective that were no candidates, with the reason.
  void add_not_offered(const cost::Request& request, cost::Decision* decision) const;
  void note_windows();

  static constexpr size_t kEntries = 256;  // in sets of kWays, which keys share by their hash
  static constexpr size_t kWays = 4;
  static constexpr size_t kUnevenChoicesMax = 16;

  const Context& context_;
  PlannerOptions options_;
  double slowest_wire_;  // of the network cards, ns per byte; 0: there is one host
  std::vector<const algo::Algorithm*> algorithms_;  // options_.algorithms and options_.programs
  std::vector<const algo::Algorithm*> preferred_;   // the latest last
  // One ring, where that in the order of ranks goes between hosts too often; else empty.
  graph::Rings ring_by_host_;
  std::vector<Entry> entries_;
  uint64_t use_count_ = 0;
  cost::DecisionLog decisions_;
  std::array<bool, kCollectiveCount> uses_windows_{};
  std::array<bool, kCollectiveCount> has_programs_{};
  std::vector<UnevenChoice> uneven_choices_;
  size_t next_uneven_choice_ = 0;  // the next to be replaced when there are kUnevenChoicesMax
  // The plan of the latest v-variant, and the lengths to which it was bound.
  std::unique_ptr<Plan> uneven_;
  PlanKey uneven_key_;
  // Of the latter: block_count_max and count, and of each array of lengths, whether there is one,
  // and its values.
  std::vector<size_t> uneven_lengths_;
  std::vector<std::unique_ptr<Plan>> retired_;  // by `add`
  bool is_watched_ = false;                     // it explains or learns
  std::unique_ptr<Plan> uneven_explored_;
  PlanKey latest_key_;
  const Plan* latest_ = nullptr;
};

// Parses WEIR_ALGORITHM ("all_reduce=ring,all_to_all_v=pairwise,all_reduce_leaves=ordered"). An
// algorithm forced for a collective is also used for its v-variant, where it supports blocks of
// different lengths and no other is forced for that variant. `among`: the algorithms that may be
// named; those of folds over leaves always may.
Result<std::vector<ForcedAlgorithm>> parse_forced_algorithms(
    const std::string& text,
    std::span<const algo::Algorithm* const> among = algo::all_algorithms());

}  // namespace weir::engine
