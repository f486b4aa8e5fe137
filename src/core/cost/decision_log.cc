// SPDX-License-Identifier: Apache-2.0
#include "core/cost/decision_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace weir::cost {

namespace {

std::string text_of_bytes(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  double value = static_cast<double>(bytes);
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.4g} {}", value, kUnits[unit]);
}

std::string text_of_ns(double ns) {
  if (ns < 1e3) return fmt::format("{:.0f} ns", ns);
  if (ns < 1e6) return fmt::format("{:.2f} us", ns / 1e3);
  if (ns < 1e9) return fmt::format("{:.2f} ms", ns / 1e6);
  return fmt::format("{:.2f} s", ns / 1e9);
}

std::string text_of_call(const DecisionRecord& record) {
  if (record.collective == Collective::kBarrier) {
    return fmt::format("barrier of {} ranks", record.rank_count);
  }
  return fmt::format(
      "{} of {}{} {} on {} ranks{}", algo::name_of(record.collective, record.lengths),
      record.lengths == algo::BlockLengths::kEqual ? "" : "up to ", text_of_bytes(record.bytes),
      name_of(record.type), record.rank_count, record.in_place ? ", in place" : "");
}

}  // namespace

uint64_t DecisionLog::add(const Request& request, const Decision& decision) {
  const uint64_t id = dropped_count_ + records_.size() + 1;
  records_.push_back({.id = id,
                      .collective = request.work.problem.collective,
                      .lengths = request.work.problem.lengths,
                      .rank_count = request.work.problem.rank_count,
                      .in_place = request.work.problem.in_place,
                      .bytes = request.work.bytes,
                      .type = request.type,
                      .decision = decision});
  if (records_.size() > records_max_) {
    records_.pop_front();
    ++dropped_count_;
  }
  return id;
}

void DecisionLog::measured(uint64_t id, double ns) {
  if (id <= dropped_count_ || id > dropped_count_ + records_.size()) return;
  DecisionRecord& record = records_[id - dropped_count_ - 1];
  if (record.measured_count == 0) {
    record.measured_first_ns = record.measured_least_ns = ns;
  }
  ++record.measured_count;
  record.measured_sum_ns += ns;
  record.measured_least_ns = std::min(record.measured_least_ns, ns);
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
    if (record.measured_count < kCallsOfDecisionMin || !(predicted_ns > 0)) continue;
    ratios.push_back(record.measured_least_ns / predicted_ns);
    call_count += record.measured_count;
  }
  if (ratios.size() < kDecisionsMin || call_count < kCallsMin) return std::nullopt;
  const auto middle = ratios.begin() + static_cast<std::ptrdiff_t>(ratios.size() / 2);
  std::nth_element(ratios.begin(), middle, ratios.end());
  if (*middle <= kFactorMax && *middle >= 1 / kFactorMax) return std::nullopt;
  return Disagreement{*middle, ratios.size(), call_count};
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
    text += fmt::format(
        "  {} {:<28} {}\n", chosen ? '>' : ' ', candidate.algorithm->name,
        candidate.excluded != nullptr ? candidate.excluded : text_of_ns(candidate.predicted_ns));
  }
  if (record.measured_count > 0) text += "  " + explain_measured(record) + "\n";
  return text;
}

std::string explain_measured(const DecisionRecord& record) {
  if (record.measured_count == 0) return text_of_call(record) + ": not measured yet";
  if (record.measured_count == 1) {
    return fmt::format("{}: {} predicted {}, measured {} the first time", text_of_call(record),
                       record.decision.algorithm->name, text_of_ns(record.decision.predicted_ns),
                       text_of_ns(record.measured_first_ns));
  }
  return fmt::format(
      "{}: {} predicted {}, measured {} at first, {} at best, {} on average of {}",
      text_of_call(record), record.decision.algorithm->name,
      text_of_ns(record.decision.predicted_ns), text_of_ns(record.measured_first_ns),
      text_of_ns(record.measured_least_ns),
      text_of_ns(record.measured_sum_ns / static_cast<double>(record.measured_count)),
      record.measured_count);
}

}  // namespace weir::cost
