// SPDX-License-Identifier: Apache-2.0
#include "core/cost/decision_log.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "core/cost/text.h"

namespace weir::cost {

namespace {

std::string text_of_call(const DecisionRecord& record) {
  return describe(record.shape, record.rank_count);
}

}  // namespace

const MeasuredTimes* DecisionRecord::explored_of(const algo::Algorithm* algorithm) const {
  const auto found = std::find_if(explored.begin(), explored.end(), [&](const ExploredTimes& one) {
    return one.algorithm == algorithm;
  });
  return found == explored.end() ? nullptr : &found->times;
}

uint64_t DecisionLog::add(const Request& request, const Decision& decision) {
  const uint64_t id = dropped_count_ + records_.size() + 1;
  records_.push_back({.id = id,
                      .shape = shape_of(request),
                      .call_key = request.call_key,
                      .rank_count = request.work.problem.rank_count,
                      .decision = decision,
                      .measured = {},
                      .explored = {}});
  if (records_.size() > records_max_) {
    records_.pop_front();
    ++dropped_count_;
  }
  return id;
}

uint64_t DecisionLog::find_same(const Request& request, const Decision& decision) const {
  const auto same =
      std::find_if(records_.rbegin(), records_.rend(), [&](const DecisionRecord& record) {
        return record.call_key == request.call_key && record.shape == shape_of(request) &&
               record.decision.algorithm == decision.algorithm &&
               record.decision.slice_bytes == decision.slice_bytes &&
               record.decision.explored == decision.explored;
      });
  return same == records_.rend() ? 0 : same->id;
}

void DecisionLog::measured(uint64_t id, double ns, const algo::Algorithm* explored) {
  if (id <= dropped_count_ || id > dropped_count_ + records_.size()) return;
  DecisionRecord& record = records_[id - dropped_count_ - 1];
  if (explored == nullptr || explored == record.decision.algorithm) record.measured.add(ns);
  if (explored == nullptr) return;
  for (ExploredTimes& one : record.explored) {
    if (one.algorithm == explored) return one.times.add(ns);
  }
  record.explored.push_back({explored, {}});
  record.explored.back().times.add(ns);
}

const DecisionRecord* DecisionLog::find(uint64_t id) const {
  if (id <= dropped_count_ || id > dropped_count_ + records_.size()) return nullptr;
  return &records_[id - dropped_count_ - 1];
}

std::optional<Disagreement> disagreement(const DecisionLog& log) {
  constexpr uint64_t kCallsOfDecisionMin = 5;
  constexpr uint64_t kCallsMin = 50;
  constexpr size_t kDecisionsMin = 3;
  constexpr double kFactorMax = 3;
  std::vector<double> ratios;
  uint64_t call_count = 0;
  for (const DecisionRecord& record : log.records()) {
    const double predicted_ns = record.decision.predicted_ns;
    if (record.measured.count < kCallsOfDecisionMin || !(predicted_ns > 0)) continue;
    ratios.push_back(record.measured.least_ns / predicted_ns);
    call_count += record.measured.count;
  }
  if (ratios.size() < kDecisionsMin || call_count < kCallsMin) return std::nullopt;
  const auto middle = ratios.begin() + static_cast<std::ptrdiff_t>(ratios.size() / 2);
  std::nth_element(ratios.begin(), middle, ratios.end());
  if (*middle <= kFactorMax && *middle >= 1 / kFactorMax) return std::nullopt;
  return Disagreement{*middle, ratios.size(), call_count};
}

void RanksTimes::add(uint64_t count, double least, double sum, double middle) {
  if (count == 0) return;
  least_ns = call_count == 0 ? least : std::min(least_ns, least);
  sum_ns += sum;
  call_count += count;
  latest_ns = std::max(latest_ns, middle);
  middle_ns += (middle - middle_ns) / static_cast<double>(++rank_count);
}

uint64_t times_key(const DecisionRecord& record, const algo::Algorithm* explored) {
  const std::string_view name = explored == nullptr ? "" : explored->name;
  return XXH3_64bits_withSeed(name.data(), name.size(), record.call_key);
}

std::string explain(const DecisionRecord& record) {
  const Decision& decision = record.decision;
  std::string text =
      fmt::format("{}: {}, {}\n", text_of_call(record), decision.algorithm->name, decision.reason);
  if (decision.slice_bytes != 0) {
    text += fmt::format("  slices of {}\n", text_of_bytes(decision.slice_bytes));
  }
  for (const Candidate& candidate : decision.candidates) {
    const bool chosen = candidate.algorithm == decision.algorithm;
    std::string value = candidate.excluded != nullptr ? candidate.excluded : "";
    if (candidate.excluded == nullptr) {
      value = (candidate.at_least ? "at least " : "") + text_of_ns(candidate.predicted_ns);
      if (candidate.learned_count > 0) {
        value += fmt::format("; earlier runs took {} ({} calls)", text_of_ns(candidate.learned_ns),
                             candidate.learned_count);
      }
    }
    text += fmt::format("  {} {:<28} {}\n", chosen ? '>' : ' ', candidate.algorithm->name, value);
  }
  if (!decision.explored.empty()) {
    std::string names;
    for (const algo::Algorithm* algorithm : decision.explored) {
      names += (names.empty() ? "" : ", ") + std::string(algorithm->name);
    }
    text += fmt::format("  explored in turn: {}\n", names);
  }
  if (record.measured.count > 0) text += "  " + explain_measured(record) + "\n";
  return text;
}

std::string explain_measured(const DecisionRecord& record) {
  if (record.measured.count == 0) return text_of_call(record) + ": not measured yet";
  return fmt::format("{}: {} predicted {}, measured {} the first time", text_of_call(record),
                     record.decision.algorithm->name, text_of_ns(record.decision.predicted_ns),
                     text_of_ns(record.measured.first_ns));
}

std::string explain_total(const DecisionRecord& record, const ExploredTimes* explored,
                          const RanksTimes* all) {
  const algo::Algorithm* algorithm =
      explored != nullptr ? explored->algorithm : record.decision.algorithm;
  const MeasuredTimes& own = explored != nullptr ? explored->times : record.measured;
  double predicted_ns = record.decision.predicted_ns;
  for (const Candidate& candidate : record.decision.candidates) {
    if (candidate.algorithm == algorithm) predicted_ns = candidate.predicted_ns;
  }
  std::string text = fmt::format(
      "{}: {}{} predicted {}, measured {} at first, {} at best, {} on average of {}",
      text_of_call(record), algorithm->name, explored != nullptr ? ", in its turns," : "",
      text_of_ns(predicted_ns), text_of_ns(own.first_ns), text_of_ns(own.least_ns),
      text_of_ns(own.average_ns()), own.count);
  if (all != nullptr && record.rank_count > 1) {
    text += fmt::format("; {} of {} ranks: {} at best, {} on average of {}", all->rank_count,
                        record.rank_count, text_of_ns(all->least_ns), text_of_ns(all->average_ns()),
                        all->call_count);
  }
  return text;
}

}  // namespace weir::cost
