// SPDX-License-Identifier: Apache-2.0
#include "core/cost/router.h"

#include <fmt/format.h>

namespace weir::cost {

namespace {

bool reduces(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kReduce ||
         collective == Collective::kReduceScatter;
}

// nullptr when it can be used.
const char* why_excluded(const algo::Algorithm& algorithm, const Request& request) {
  const algo::Problem& problem = request.work.problem;
  if (algorithm.needs_mapped && !problem.mapped) return "needs mapped staging memory";
  if (algorithm.needs_user_windows && !problem.inputs_mapped && !problem.outputs_mapped) {
    return "needs user windows";
  }
  if (algorithm.lengths < problem.lengths) {
    return algorithm.lengths == algo::BlockLengths::kEqual
               ? "takes blocks of equal length only"
               : "needs to know the lengths of all blocks";
  }
  if (algorithm.uses_forest && problem.forest == nullptr) {
    return "has no trees here: links are alike, or not known";
  }
  if (!algorithm.supports(problem)) {
    return algorithm.imported != nullptr ? "was made for other ranks, another root or other memory"
                                         : "does not support this problem";
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
  decision.by = by;
  decision.reason = std::move(reason);
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
  decision.slice_bytes = rule.slice_bytes;
  settle(decision, *candidate, Decision::By::kRule, "rule of " + where);
  return "";
}

}  // namespace

std::vector<const algo::Algorithm*> candidates_for(
    std::span<const algo::Algorithm* const> algorithms, const algo::Problem& problem) {
  std::vector<const algo::Algorithm*> mapped;
  std::vector<const algo::Algorithm*> messages;
  for (const algo::Algorithm* algorithm : algorithms) {
    if (algorithm->collective != problem.collective || algorithm->lengths < problem.lengths ||
        problem.rank_count < algorithm->worthwhile_from_ranks || !algorithm->supports(problem)) {
      continue;
    }
    if (algo::uses_messages(*algorithm)) {
      messages.push_back(algorithm);
    } else if (algorithm->needs_user_windows ? problem.inputs_mapped : problem.mapped) {
      mapped.push_back(algorithm);
    }
  }
  return mapped.empty() ? messages : mapped;
}

Result<Decision> choose(const Request& request, std::span<const algo::Algorithm* const> candidates,
                        const Table& table, const Rules* rules) {
  const algo::Problem& problem = request.work.problem;
  Decision decision;
  for (const algo::Algorithm* algorithm :
       candidates.empty() ? algo::all_algorithms() : candidates) {
    if (algorithm->collective != problem.collective) continue;
    Candidate candidate{algorithm, 0, why_excluded(*algorithm, request)};
    if (candidate.excluded == nullptr) {
      candidate.predicted_ns = predict(*algorithm, request.work, table);
    }
    decision.candidates.push_back(candidate);
  }
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
    if (best == nullptr || candidate.predicted_ns < best->predicted_ns) best = &candidate;
  }
  if (best == nullptr) {
    return Status(
        Code::kUnsupported,
        fmt::format("no algorithm of {} can be used on {} ranks{}",
                    algo::name_of(problem.collective, problem.lengths), problem.rank_count,
                    request.deterministic ? " in deterministic mode" : ""));
  }
  settle(decision, *best, Decision::By::kPrediction,
         usable_count == 1 ? "the only one that can be used" : "least predicted time");
  if (!passed_over.empty()) decision.reason += "; " + passed_over;
  return decision;
}

}  // namespace weir::cost
