// SPDX-License-Identifier: Apache-2.0
#include "core/cost/router.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "core/algo/imported.h"
#include "core/algo/nodes.h"
#include "core/cost/chunk_bytes.h"
#include "core/cost/prediction.h"
#include "core/cost/prediction_memo.h"
#include "core/cost/run_ahead.h"
#include "core/cost/task_costs.h"
#include "core/cost/text.h"
#include "core/graph/forest.h"

namespace weir::cost {

namespace {

constexpr uint64_t kTreeRoundsMin = 4;

bool reduces(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kReduce ||
         collective == Collective::kReduceScatter;
}

}  // namespace

CallShape shape_of(const Request& request) {
  const algo::Problem& problem = request.work.problem;
  return {.collective = problem.collective,
          .lengths = problem.lengths,
          .type = request.type,
          .in_place = problem.in_place && !is_rooted(problem.collective),
          .in_windows = problem.inputs_mapped,
          .bytes = request.work.bytes};
}

const char* why_excluded(const algo::Algorithm& algorithm, const Request& request) {
  const algo::Problem& problem = request.work.problem;
  if (algorithm.needs_mapped && !problem.mapped) return "needs mapped staging memory";
  if (algorithm.needs_user_windows && !problem.inputs_mapped && !problem.outputs_mapped) {
    return kNeedsUserWindows;
  }
  if (algorithm.lengths < problem.lengths) {
    return algorithm.lengths == algo::BlockLengths::kEqual
               ? "takes blocks of equal length only"
               : "needs to know the lengths of all blocks";
  }
  if (algorithm.uses_forest && problem.forest == nullptr) {
    return "has no trees here: they were not offered at the start, where WEIR_EXPLAIN=1 says why";
  }
  if (algorithm.uses_rings && problem.rings == nullptr) {
    return "has no rings here that are better than the order of ranks";
  }
  if (!algorithm.supports(problem)) {
    if (algorithm.groups == &algo::Problem::cache_of_rank) {
      return "needs ranks in two or more groups by last-level cache, one of them of several ranks";
    }
    if (algorithm.groups == &algo::Problem::numa_of_rank) {
      return "needs ranks in two or more groups by NUMA node, one of them of several ranks";
    }
    if (algorithm.lengths != algo::BlockLengths::kEqual &&
        problem.lengths == algo::BlockLengths::kEqual) {
      return "is only for blocks of different lengths";
    }
    if (problem.leaf_count > 0) return "does not suit this number of leaves and ranks";
    if (algorithm.imported == nullptr) return "needs hosts numbered in the order of their ranks";
    return algorithm.imported->program(0).rank_count != problem.rank_count
               ? "was made for another number of ranks"
               : "was made for another root or other memory";
  }
  if (algo::uses_messages(algorithm) &&
      algorithm.shape(problem).lane_count > request.lane_count_max) {
    return "needs more lanes than the transport has";
  }
  if (request.deterministic && reduces(problem.collective) && !algorithm.rank_order) {
    return "does not fold in rank order (deterministic mode)";
  }
  return nullptr;
}

uint32_t tree_lanes(const algo::Problem& problem, uint64_t bytes, uint64_t slice_bytes) {
  if (problem.forest == nullptr || problem.rank_count < 2) return 0;
  uint32_t parts = 0;
  for (const graph::Tree& tree : problem.forest->trees) parts += tree.count;
  const uint64_t slices =
      ChunkBytes(problem.collective, problem.rank_count, bytes, parts, slice_bytes).slice_count();
  const uint32_t lanes = std::max(1u, problem.lanes_max);
  uint32_t used = lanes;
  while (used > 1 && slices >= kTreeRoundsMin * (lanes / (used / 2))) used /= 2;
  return used;
}

Workload work_of(const algo::Algorithm& algorithm, const Request& request, const Cut& cut) {
  Workload work = request.work;
  if (!algo::uses_messages(algorithm)) return work;
  if (cut.slice_bytes != 0) {
    work.slicing.slice_bytes = cut.slice_bytes;
    work.problem.tree_lanes_max = cut.tree_lanes;
  }
  const uint32_t lanes = std::max(1u, algorithm.shape(work.problem).lane_count);
  work.slicing.in_flight =
      std::min(work.slicing.in_flight, std::max(1u, request.lane_count_max / lanes));
  return work;
}

std::vector<Cut> cuts_of(const algo::Algorithm& algorithm, const Request& request) {
  if (request.slices.empty() || !algo::uses_messages(algorithm)) return {Cut()};
  const algo::Problem& problem = request.work.problem;
  const uint32_t chunks = algorithm.shape(problem).chunk_count;
  std::vector<Cut> cuts;
  uint64_t count_before = 0;
  for (const uint64_t slice_bytes : request.slices) {
    const uint64_t count =
        ChunkBytes(problem.collective, problem.rank_count, request.work.bytes, chunks, slice_bytes)
            .slice_count();
    if (count == count_before) continue;
    count_before = count;
    const uint32_t lanes =
        algorithm.uses_forest ? tree_lanes(problem, request.work.bytes, slice_bytes) : 0;
    cuts.push_back({slice_bytes, lanes});
    if (lanes > 1) cuts.push_back({slice_bytes, 1});
  }
  return cuts;
}

namespace {

std::string names_of(const std::vector<Candidate>& candidates) {
  std::string names;
  for (const Candidate& candidate : candidates) {
    names += (names.empty() ? "" : ", ") + std::string(candidate.algorithm->name);
  }
  return names;
}

Candidate* find(std::vector<Candidate>& candidates, std::string_view name) {
  for (Candidate& candidate : candidates) {
    if (name == candidate.algorithm->name) return &candidate;
  }
  return nullptr;
}

void settle(Decision& decision, const Candidate& candidate, Decision::By by, std::string reason) {
  decision.algorithm = candidate.algorithm;
  decision.predicted_ns = candidate.predicted_ns;
  decision.slice_bytes = candidate.cut.slice_bytes;
  decision.tree_lanes = candidate.cut.tree_lanes;
  decision.by = by;
  decision.reason = std::move(reason);
}

void note_learned(const Request& request, Candidate* candidate) {
  if (request.learned == nullptr || candidate->excluded != nullptr) return;
  for (const AlgorithmTime& time : *request.learned) {
    if (time.algorithm != candidate->algorithm->name || time.count < kLearnedCountMin) continue;
    candidate->learned_count = time.count;
    candidate->learned_ns = time.middle_ns;
  }
}

// The candidate that was measured to be faster than `best`, which is predicted to be the fastest;
// nullptr: there is none.
const Candidate* measured_faster(const Decision& decision, const Candidate& best) {
  if (best.learned_count == 0) return nullptr;
  const Candidate* least = &best;
  for (const Candidate& candidate : decision.candidates) {
    if (candidate.learned_count > 0 && candidate.learned_ns < least->learned_ns) {
      least = &candidate;
    }
  }
  return least->learned_ns * kLearnedGainMin < best.learned_ns ? least : nullptr;
}

Status force(const Request& request, Decision& decision) {
  const algo::Problem& problem = request.work.problem;
  const char* collective = algo::name_of(problem.collective, problem.lengths);
  const Candidate* candidate = find(decision.candidates, request.forced);
  if (candidate == nullptr) {
    return invalid_argument(
        fmt::format("WEIR_ALGORITHM: '{}' is not an algorithm of {} here; these are: {}",
                    request.forced, collective, names_of(decision.candidates)));
  }
  if (candidate->excluded != nullptr) {
    return Status(Code::kUnsupported,
                  fmt::format("WEIR_ALGORITHM: {}={} cannot be used on {} ranks: it {}", collective,
                              request.forced, problem.rank_count, candidate->excluded));
  }
  settle(decision, *candidate, Decision::By::kForced, "forced by WEIR_ALGORITHM");
  return {};
}

// The reason why the rule cannot be followed; empty when it was followed.
std::string follow(const Rule& rule, const std::string& file, Decision& decision) {
  const std::string where = fmt::format("{}:{}", file, rule.line);
  const Candidate* candidate = find(decision.candidates, rule.algorithm->name);
  if (candidate == nullptr || candidate->excluded != nullptr) {
    return fmt::format("the rule of {} is ignored: '{}' {}", where, rule.algorithm->name,
                       candidate == nullptr ? "is not available here" : candidate->excluded);
  }
  settle(decision, *candidate, Decision::By::kRule, "rule of " + where);
  if (rule.slice_bytes != 0) {
    decision.slice_bytes = rule.slice_bytes;
    decision.tree_lanes = 0;
  }
  return "";
}

// Figures of a probe differ by more than this from one start to the next.
constexpr double kAboutTheSame = 1.1;

// Where all buffers lie in windows the ranks have agreed on that before they choose. That takes a
// signal, which is the first one of a program over windows. Whether it comes before the program:
bool agrees_before(const algo::Algorithm& algorithm, const Request& request) {
  const algo::Problem& problem = request.work.problem;
  return request.agreed && problem.mapped && problem.inputs_mapped && problem.rank_count > 1 &&
         !algorithm.needs_user_windows;
}

double agreement_ns(const algo::Algorithm& algorithm, const Request& request, const Workload& work,
                    const Table& table) {
  if (!agrees_before(algorithm, request)) return 0;
  const TaskCosts costs(work, table);
  return static_cast<double>(costs.signal(0, work.problem.rank_count - 1)) / 1000;
}

// Of a call, with that of an agreement.
uint32_t signals_of(const Candidate& candidate, const Request& request) {
  const algo::Algorithm& algorithm = *candidate.algorithm;
  return algorithm.shape(request.work.problem).signal_count +
         (agrees_before(algorithm, request) ? 1 : 0);
}

// Of the candidates over mapped memory that take about as long as `best`, one with the fewest
// signals; `best` if there is none.
const Candidate* fewest_signals(const std::vector<Candidate>& candidates, const Candidate& best,
                                const Request& request) {
  const Candidate* found = algo::uses_messages(*best.algorithm) ? nullptr : &best;
  for (const Candidate& candidate : candidates) {
    if (candidate.excluded != nullptr || algo::uses_messages(*candidate.algorithm) ||
        candidate.predicted_ns > kAboutTheSame * best.predicted_ns) {
      continue;
    }
    if (found == nullptr || signals_of(candidate, request) < signals_of(*found, request)) {
      found = &candidate;
    }
  }
  return found == nullptr ? &best : found;
}

}  // namespace

std::vector<const algo::Algorithm*> candidates_for(
    std::span<const algo::Algorithm* const> algorithms, const algo::Problem& problem) {
  std::vector<const algo::Algorithm*> candidates;
  for (const algo::Algorithm* algorithm : algorithms) {
    if (algorithm->collective != problem.collective || algorithm->lengths < problem.lengths ||
        !algorithm->supports(problem)) {
      continue;
    }
    if (algorithm->of_single_ranks != nullptr && algo::are_single_ranks(problem)) continue;
    // The same program as by_cache.
    if (algorithm->groups == &algo::Problem::numa_of_rank &&
        std::ranges::equal(problem.numa_of_rank, problem.cache_of_rank)) {
      continue;
    }
    if (algo::uses_messages(*algorithm) ||
        (algorithm->needs_user_windows ? problem.inputs_mapped : problem.mapped)) {
      candidates.push_back(algorithm);
    }
  }
  return candidates;
}

namespace {

// Of the least time: a long program over messages that cannot take less than this is not followed,
// since it could hardly be better.
constexpr double kHardlyBetter = 0.98;

// Predicts what is not excluded. The one with the least expected time is predicted first, and
// others only as long as they may be near the best. What is predicted may depend on bounds, and not
// on what the process has kept: all ranks must choose alike.
class Predictor {
 public:
  Predictor(const Request& request, const Table& table)
      : request_(request), table_(table), nodes_(request.work.problem) {}

  // Returns how many operations were followed.
  uint64_t predict_all(std::vector<Candidate>* candidates) {
    for (Candidate& candidate : *candidates) {
      if (candidate.excluded == nullptr) prepare(&candidate);
    }
    std::erase_if(asked_, [](const Asked& asked) { return asked.candidate->excluded != nullptr; });
    std::stable_sort(asked_.begin(), asked_.end(),
                     [](const Asked& a, const Asked& b) { return a.expected_ns < b.expected_ns; });
    double least_ns = std::numeric_limits<double>::infinity();
    for (Asked& asked : asked_) {
      if (asked.is_long && !request_.explores && algo::uses_messages(*asked.candidate->algorithm) &&
          asked.predicted_ns > kHardlyBetter * least_ns) {
        asked.at_least = true;
        continue;
      }
      finish(&asked, least_ns * factor_max(*asked.candidate->algorithm));
      least_ns = std::min(least_ns, asked.predicted_ns);
    }
    tell();
    return operations_;
  }

 private:
  struct Asked {
    Candidate* candidate = nullptr;
    Cut cut;
    double predicted_ns = 0;  // at first a lower bound
    bool at_least = false;
    PredictionMemo::Key key;                 // of a prediction that is to be kept
    std::unique_ptr<Prediction> prediction;  // nullptr: it is known
    double agreement_ns = 0;                 // not in the prediction
    double known_ns = 0;                     // without a prediction
    double expected_ns = 0;
    bool is_long = false;
  };

  // Of the least time: those that take longer are not predicted to their end.
  double factor_max(const algo::Algorithm& algorithm) const {
    if (request_.explores) return kExploredFactorMax;
    return algo::uses_messages(algorithm) ? 1 : kAboutTheSame;
  }

  void prepare(Candidate* candidate) {
    for (const Cut& cut : cuts_of(*candidate->algorithm, request_)) {
      if (candidate->excluded == nullptr) prepare(candidate, cut);
    }
  }

  void prepare(Candidate* candidate, const Cut& cut) {
    const algo::Algorithm& algorithm = *candidate->algorithm;
    Asked asked;
    asked.candidate = candidate;
    asked.cut = cut;
    asked.agreement_ns = agreement_ns(algorithm, request_, request_.work, table_);
    if (const auto ahead = run_ahead_ns(algorithm, request_.work, table_, &operations_)) {
      asked.predicted_ns = asked.known_ns = asked.expected_ns = *ahead;
    } else {
      Workload work = work_of(algorithm, request_, cut);
      asked.key = PredictionMemo::key_of(algorithm, work, table_);
      const auto kept = asked.key ? PredictionMemo::of_process().find(*asked.key) : std::nullopt;
      work.problem.nodes = &nodes_;
      if (!kept) asked.prediction = std::make_unique<Prediction>(algorithm, work, table_);
      if (asked.prediction != nullptr && asked.prediction->has_no_way()) {
        candidate->excluded = "sends between devices that the links join only through others";
        return;
      }
      asked.predicted_ns =
          asked.agreement_ns + (kept ? kept->bound_ns : asked.prediction->bound_ns());
      asked.expected_ns =
          asked.agreement_ns + (kept ? kept->expected_ns : asked.prediction->expected_ns());
      asked.is_long = kept ? kept->is_long : asked.prediction->is_long();
      if (kept) asked.known_ns = asked.agreement_ns + kept->ns;
    }
    asked_.push_back(std::move(asked));
  }

  void finish(Asked* asked, double ns_max) {
    if (asked->prediction == nullptr) {
      asked->predicted_ns = asked->known_ns;
      return;
    }
    // Rounding must not leave a prediction that another rank, which knows it, finds at the limit.
    constexpr double kAboveRounding = 1 + 1e-12;
    const double limit_ns =
        asked->agreement_ns == 0 ? ns_max : (ns_max - asked->agreement_ns) * kAboveRounding;
    const Predicted made = asked->prediction->made(limit_ns);
    const double ns = made.ns + asked->agreement_ns;
    operations_ += made.operations;
    // One that was left at the limit takes longer: it must not tie with what set the limit, or
    // ranks that have predicted them in another order would choose otherwise.
    asked->predicted_ns = made.at_least ? std::max(ns, std::nextafter(ns_max, 2 * ns_max)) : ns;
    asked->at_least = made.at_least;
    if (asked->key && !made.at_least) {
      const Prediction& prediction = *asked->prediction;
      PredictionMemo::of_process().keep(
          *asked->key,
          {made.ns, prediction.bound_ns(), prediction.expected_ns(), prediction.is_long()});
    }
    asked->prediction = nullptr;
  }

  // The candidates, of the slices with which each takes the least time.
  void tell() {
    for (const Asked& asked : asked_) {
      Candidate& candidate = *asked.candidate;
      const bool is_first = candidate.predicted_ns == 0;
      const bool is_better = asked.at_least == candidate.at_least
                                 ? asked.predicted_ns < candidate.predicted_ns
                                 : candidate.at_least;
      if (!is_first && !is_better) continue;
      candidate.predicted_ns = asked.predicted_ns;
      candidate.at_least = asked.at_least;
      candidate.cut = asked.cut;
    }
  }

  const Request& request_;
  const Table& table_;
  algo::Nodes nodes_;
  std::vector<Asked> asked_;
  uint64_t operations_ = 0;
};

Result<Decision> decide(const Request& request, std::span<const algo::Algorithm* const> candidates,
                        const Table& table, const Rules* rules) {
  const algo::Problem& problem = request.work.problem;
  Decision decision;
  for (const algo::Algorithm* algorithm :
       candidates.empty() ? algo::all_algorithms() : candidates) {
    if (algorithm->collective != problem.collective) continue;
    Candidate candidate;
    candidate.algorithm = algorithm;
    candidate.excluded = why_excluded(*algorithm, request);
    note_learned(request, &candidate);
    decision.candidates.push_back(candidate);
  }
  decision.operations = Predictor(request, table).predict_all(&decision.candidates);
  if (!request.forced.empty()) {
    WEIR_RETURN_IF_ERROR(force(request, decision));
    return decision;
  }
  std::string passed_over;
  if (request.preferred != nullptr) {
    const Candidate* candidate = find(decision.candidates, request.preferred->name);
    if (candidate != nullptr && candidate->excluded == nullptr) {
      settle(decision, *candidate, Decision::By::kPreferred, "preferred by the program");
      return decision;
    }
    passed_over =
        fmt::format("'{}', which the program prefers, is ignored: it {}", request.preferred->name,
                    candidate == nullptr ? "is not available here" : candidate->excluded);
  }
  const Rule* rule = rules == nullptr
                         ? nullptr
                         : rules->find(problem.collective, request.work.bytes, problem.rank_count);
  if (rule != nullptr) {
    const std::string ignored = follow(*rule, rules->file, decision);
    if (ignored.empty()) return decision;
    passed_over += (passed_over.empty() ? "" : "; ") + ignored;
  }
  const Candidate* best = nullptr;
  uint32_t usable_count = 0;
  for (const Candidate& candidate : decision.candidates) {
    if (candidate.excluded != nullptr) continue;
    ++usable_count;
    if (candidate.at_least) continue;
    if (best == nullptr || candidate.predicted_ns < best->predicted_ns) best = &candidate;
  }
  if (best == nullptr) {
    return Status(
        Code::kUnsupported,
        fmt::format("no algorithm of {} can be used on {} ranks{}",
                    algo::name_of(problem.collective, problem.lengths), problem.rank_count,
                    request.deterministic ? " in deterministic mode" : ""));
  }
  const Candidate* simplest = fewest_signals(decision.candidates, *best, request);
  if (const Candidate* faster = measured_faster(decision, *simplest)) {
    settle(decision, *faster, Decision::By::kMeasured,
           fmt::format("measured faster: {} against {} of {}, which is predicted to be the best "
                       "({} and {} calls of earlier runs)",
                       text_of_ns(faster->learned_ns), text_of_ns(simplest->learned_ns),
                       simplest->algorithm->name, faster->learned_count, simplest->learned_count));
  } else {
    settle(decision, *simplest, Decision::By::kPrediction,
           usable_count == 1  ? "the only one that can be used"
           : simplest == best ? "least predicted time"
                              : "fewer signals than others with about the same predicted time");
  }
  if (!passed_over.empty()) decision.reason += "; " + passed_over;
  return decision;
}

}  // namespace

Result<Decision> choose(const Request& request, std::span<const algo::Algorithm* const> candidates,
                        const Table& table, const Rules* rules) {
  Result<Decision> decided = decide(request, candidates, table, rules);
  if (!decided.ok()) return decided;
  // What was chosen for another reason than its predicted time may be far from the best.
  for (Candidate& candidate : decided.value().candidates) {
    if (candidate.algorithm != decided.value().algorithm || !candidate.at_least) continue;
    const Workload work = work_of(*candidate.algorithm, request, candidate.cut);
    candidate.predicted_ns = agreement_ns(*candidate.algorithm, request, work, table) +
                             predict(*candidate.algorithm, work, table);
    candidate.at_least = false;
    decided.value().predicted_ns = candidate.predicted_ns;
  }
  return decided;
}

std::vector<const algo::Algorithm*> worth_exploring(const Decision& decision) {
  if (decision.by != Decision::By::kPrediction && decision.by != Decision::By::kMeasured) return {};
  const auto chosen =
      std::find_if(decision.candidates.begin(), decision.candidates.end(),
                   [&](const Candidate& one) { return one.algorithm == decision.algorithm; });
  // Those that are predicted to be far from the best were not predicted to their end.
  double limit_ns = std::numeric_limits<double>::infinity();
  for (const Candidate& candidate : decision.candidates) {
    if (candidate.excluded != nullptr) continue;
    limit_ns = std::min(limit_ns, kExploredFactorMax * candidate.predicted_ns);
  }
  struct Expected {
    double factor;
    const algo::Algorithm* algorithm;
  };
  std::vector<Expected> all;
  for (const Candidate& candidate : decision.candidates) {
    if (candidate.excluded != nullptr || &candidate == &*chosen) continue;
    const bool known = candidate.learned_count > 0 && chosen->learned_count > 0;
    if (!known && candidate.predicted_ns > limit_ns) continue;
    const double factor = known ? candidate.learned_ns / chosen->learned_ns
                                : candidate.predicted_ns / chosen->predicted_ns;
    if (factor <= kExploredFactorMax) all.push_back({factor, candidate.algorithm});
  }
  if (all.empty()) return {};
  std::stable_sort(all.begin(), all.end(),
                   [](const Expected& a, const Expected& b) { return a.factor < b.factor; });
  std::vector<const algo::Algorithm*> algorithms = {decision.algorithm};
  for (const Expected& one : all) {
    if (algorithms.size() < kExploredMax) algorithms.push_back(one.algorithm);
  }
  return algorithms;
}

}  // namespace weir::cost
