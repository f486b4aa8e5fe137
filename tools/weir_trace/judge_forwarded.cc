// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "core/base/rank_list.h"
#include "weir_trace/judge.h"

namespace weir::trace {

using comm::Life;
using comm::Record;

namespace {

// How long ago the rank made the call, up to now or the group's latest update; 0: unknown. A call
// that is no longer in the ring is older than any bound.
uint64_t age_ns(const Group& group, const Record& record, uint64_t sequence, uint64_t now_ns) {
  const comm::RecordedOperation* operation = record.find(sequence);
  if (operation == nullptr) return UINT64_MAX;
  const bool lives = record.life == Life::kAlive || record.life == Life::kStopped;
  const uint64_t until_ns = lives ? now_ns : group.latest_ns();
  if (operation->begin_ns == 0 || until_ns < operation->begin_ns) return 0;
  return until_ns - operation->begin_ns;
}

std::string text_of_age(uint64_t ns) {
  return ns == UINT64_MAX ? std::string("long") : text_of_duration(ns);
}

std::string latest_of(const Record& record) {
  if (called(record) == 0) return "it made no call";
  const auto call = call_of(record, called(record));
  return fmt::format("its latest is operation {}{}", called(record),
                     call ? ", " + describe(*call) : std::string());
}

// The ranks that did not make a call that others made.
std::optional<Verdict> judge_late(const Group& group, const JudgeOptions& options) {
  uint64_t first = UINT64_MAX;  // the first operation that a rank did not call
  for (const Record& record : group.records) first = std::min(first, called(record) + 1);
  std::vector<Rank> late;
  std::vector<Rank> callers;
  uint64_t age = 0;
  for (const Record& record : group.records) {
    if (called(record) < first) {
      late.push_back(record.rank);
    } else {
      callers.push_back(record.rank);
      age = std::max(age, age_ns(group, record, first, options.now_ns));
    }
  }
  if (callers.empty()) return std::nullopt;
  Verdict verdict;
  verdict.sequence = first;
  const auto call = call_of(*group.find(callers[0]), first);
  const std::string held =
      fmt::format("{} called operation {}{} {} ago", describe_ranks(callers), first,
                  call ? ", " + describe(*call) + "," : std::string(), text_of_age(age));
  std::vector<Rank> dead;
  std::vector<Rank> stopped;
  for (const Rank rank : late) {
    const Record& record = *group.find(rank);
    if (died(group, record)) dead.push_back(rank);
    if (record.life == Life::kStopped) stopped.push_back(rank);
  }
  if (!dead.empty()) {
    verdict.finding = Finding::kDied;
    verdict.ranks = dead;
    verdict.text = fmt::format("{} died before operation {} ({}); {}", describe_ranks(dead), first,
                               latest_of(*group.find(dead[0])), held);
    return verdict;
  }
  if (age < options.stuck_after_ns) return std::nullopt;
  if (!stopped.empty()) {
    verdict.finding = Finding::kStopped;
    verdict.ranks = stopped;
    verdict.text = fmt::format(
        "{} stopped before operation {} (the process is stopped by a signal or a debugger); {}",
        describe_ranks(stopped), first, held);
    return verdict;
  }
  verdict.finding = Finding::kNeverCalled;
  verdict.ranks = late;
  verdict.text = fmt::format("{} never called operation {} ({}); {}", describe_ranks(late), first,
                             latest_of(*group.find(late[0])), held);
  return verdict;
}

// All ranks made the same calls, and some have not returned from the latest.
std::optional<Verdict> judge_inside(const Group& group, const JudgeOptions& options) {
  std::vector<Rank> inside;
  for (const Record& record : group.records) {
    if (called(record) == record.completed || record.life == Life::kDead) continue;
    const uint64_t age = age_ns(group, record, called(record), options.now_ns);
    if (age >= options.stuck_after_ns && age != UINT64_MAX) inside.push_back(record.rank);
  }
  if (inside.empty()) return std::nullopt;
  const Record& first = *group.find(inside[0]);
  const auto call = call_of(first, called(first));
  Verdict verdict;
  verdict.finding = Finding::kStuckInside;
  verdict.sequence = called(first);
  verdict.text = fmt::format(
      "{} did not come back from the real NCCL's call of operation {}{} or the group around it",
      describe_ranks(inside), called(first), call ? ", " + describe(*call) : std::string());
  if (inside.size() < group.rank_count()) {
    verdict.ranks = inside;
  } else {
    verdict.text += ", and every rank called it";
  }
  return verdict;
}

}  // namespace

std::optional<Verdict> judge_forwarded(const Group& group, const JudgeOptions& options) {
  if (auto late = judge_late(group, options)) return late;
  return judge_inside(group, options);
}

}  // namespace weir::trace
