// SPDX-License-Identifier: Apache-2.0
#include "weir_trace/judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "core/base/rank_list.h"
#include "core/base/status.h"
#include "core/engine/call.h"

namespace weir::trace {

using comm::Life;
using comm::Record;
using comm::RecordedWait;
using comm::RecordKind;

namespace {

bool is_collective(const RecordedWait& wait) {
  return wait.kind == RecordKind::kCollective || wait.kind == RecordKind::kQueued;
}

// For a process of which it is unknown whether it lives: it stopped updating its record while it
// waited, and the others went on doing so.
bool fell_silent(const Group& group, const Record& record, const JudgeOptions& options) {
  if (record.life != Life::kUnknown || failed(record)) return false;
  return record.latest_ns + options.stuck_after_ns < group.latest_ns() &&
         record.wait.kind != RecordKind::kNothing;
}

// "a message of 8 bytes from rank 1"
std::string message_of(const RecordedWait& wait) {
  const std::string peers = describe_ranks(wait.awaited);
  switch (wait.kind) {
    case RecordKind::kSend:
      return fmt::format("a message of {} bytes to {}", wait.count, peers);
    case RecordKind::kRecv:
      return fmt::format("a message of {} bytes from {}", wait.count, peers);
    case RecordKind::kTagSend:
      return fmt::format("{} to receive a message of {} bytes with a tag", peers, wait.count);
    case RecordKind::kTagRecv:
      return fmt::format("a message of up to {} bytes with a tag from {}", wait.count, peers);
    case RecordKind::kPutSignal:
    case RecordKind::kSignal:
      return fmt::format("{} to take a put of {} bytes and its signal", peers, wait.count);
    case RecordKind::kWaitSignal:
      return fmt::format("signals of {} ({} asked for in all)", peers, wait.count);
    case RecordKind::kPut:
      return fmt::format("{} to take a put of {} bytes", peers, wait.count);
    case RecordKind::kGet:
      return fmt::format("{} bytes that it gets from {}", wait.count, peers);
    case RecordKind::kFetchAdd:
    case RecordKind::kCompareSwap:
      return fmt::format("{} to change a word", peers);
    case RecordKind::kFlush:
      return fmt::format("{} to do what was put there", peers);
    case RecordKind::kRetire:
      return fmt::format("{} to end its use of a window", peers);
    case RecordKind::kWaitWord:
      return fmt::format("a signal of {} (a word is to reach {})", peers, wait.count);
    default:
      return fmt::format("an operation of {} bytes with {}", wait.count, peers);
  }
}

// What the rank is doing other than the operation that the others wait for.
std::string whereabouts(const Group& group, const Record& record, uint64_t sequence) {
  const RecordedWait& wait = record.wait;
  const bool elsewhere =
      wait.kind != RecordKind::kNothing && !(is_collective(wait) && wait.sequence >= sequence);
  if (elsewhere && !wait.awaited.empty() && !is_collective(wait)) {
    return fmt::format("it waits for {}", message_of(wait));
  }
  if (record.begun() > record.completed) {
    return fmt::format("operation {} has begun there, has not completed, and no {} waits for it",
                       record.begun(), group.on_streams() ? "stream" : "thread");
  }
  return record.completed == 0
             ? std::string("it has completed no collective")
             : fmt::format("its latest is operation {}, which is completed", record.completed);
}

// "3 ranks called X, rank 2 called Y", and how the two differ.
std::string difference(const Called& ours, const Called& theirs) {
  const auto collective = [](const Called& call) { return call.what & 0xff; };
  const auto type = [](const Called& call) { return call.what >> 8 & 0xff; };
  const auto root = [](const Called& call) { return engine::root_of(call.what); };
  const auto leaves = [](const Called& call) { return engine::leaf_count_of(call.what); };
  if (collective(ours) != collective(theirs)) return "another operation";
  std::vector<std::string> parts;
  if (ours.count != theirs.count) parts.push_back("another count");
  if (type(ours) != type(theirs)) parts.push_back("another type");
  if (root(ours) != root(theirs)) parts.push_back("another root");
  if (leaves(ours) != leaves(theirs)) parts.push_back("another number of leaves");
  if ((ours.what & 0xffff0000u) != (theirs.what & 0xffff0000u)) {
    parts.push_back("another reduction");
  }
  return parts.empty() ? "another call" : fmt::format("{}", fmt::join(parts, " and "));
}

// The first number under which two ranks called different collectives.
std::optional<Verdict> find_mismatch(const Group& group) {
  std::set<uint64_t> numbers;
  for (const Record& record : group.records) {
    for (const auto& operation : record.operations) numbers.insert(operation.sequence);
    if (record.wait.kind == RecordKind::kQueued) numbers.insert(record.wait.sequence);
  }
  for (const uint64_t number : numbers) {
    std::vector<std::pair<Called, std::vector<Rank>>> sides;  // in the order of their first ranks
    for (const Record& record : group.records) {
      const std::optional<Called> call = call_of(record, number);
      if (!call) continue;
      const auto side = std::find_if(sides.begin(), sides.end(),
                                     [&](const auto& other) { return other.first == *call; });
      if (side == sides.end()) {
        sides.push_back({*call, {record.rank}});
      } else {
        side->second.push_back(record.rank);
      }
    }
    if (sides.size() < 2) continue;
    // The majority is right; between equal sides, the one with the lowest rank.
    const auto right = std::max_element(
        sides.begin(), sides.end(),
        [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
    Verdict verdict;
    verdict.finding = Finding::kCalledOtherwise;
    verdict.sequence = number;
    std::string text;
    for (auto side = sides.begin(); side != sides.end(); ++side) {
      if (side == right) continue;
      verdict.ranks.insert(verdict.ranks.end(), side->second.begin(), side->second.end());
      text += fmt::format("{} called {} as operation {}, ", describe_ranks(side->second),
                          describe(side->first), number);
    }
    std::sort(verdict.ranks.begin(), verdict.ranks.end());
    const bool two_sides = sides.size() == 2;
    const auto& wrong = sides[right == sides.begin() ? 1 : 0];
    text +=
        fmt::format("where {} called {}", describe_ranks(right->second), describe(right->first));
    if (two_sides) text += fmt::format(": {}", difference(right->first, wrong.first));
    // A missing or extra call shows in the call that follows.
    const Record* one = group.find(wrong.second.front());
    const Record* other = group.find(right->second.front());
    const auto after_wrong = call_of(*one, number + 1);
    const auto after_right = call_of(*other, number + 1);
    if (two_sides && after_right && *after_right == wrong.first) {
      text += fmt::format(". That is operation {} of {}: it seems that {} skipped {}", number + 1,
                          describe_ranks(right->second), describe_ranks(wrong.second),
                          describe(right->first));
    } else if (two_sides && after_wrong && *after_wrong == right->first) {
      text += fmt::format(". {} called that one later: it seems that {} made an extra call",
                          wrong.second.size() == 1 ? "It" : "They",
                          wrong.second.size() == 1 ? "it" : "they");
    }
    if (right->second.size() == wrong.second.size() && two_sides) {
      text += ". As many ranks are on each side, so either may be the one that is wrong";
    }
    verdict.text = text;
    return verdict;
  }
  return std::nullopt;
}

Verdict verdict_of(Finding finding, std::vector<Rank> ranks, uint64_t sequence, std::string text) {
  return {finding, std::move(ranks), sequence, std::move(text)};
}

std::vector<Rank> waiters_of(const Group& group, uint64_t sequence) {
  std::vector<Rank> ranks;
  for (const Record& record : group.records) {
    if (is_collective(record.wait) && record.wait.sequence == sequence) {
      ranks.push_back(record.rank);
    }
  }
  return ranks;
}

std::string step_of(const RecordedWait& wait) {
  if (wait.step_count == 0) return {};
  std::string text = fmt::format("step {} of {}", wait.step + 1, wait.step_count);
  if (wait.slice_count > 1) {
    text += fmt::format(", slice {} of {}", std::min(wait.slice + 1, wait.slice_count),
                        wait.slice_count);
  }
  return text;
}

// Judges an operation in which a rank waits: which ranks hold it up.
Verdict judge_operation(const Group& group, uint64_t sequence, const JudgeOptions& options) {
  const std::vector<Rank> waiters = waiters_of(group, sequence);
  std::string what = fmt::format("operation {}", sequence);
  for (const Rank rank : waiters) {
    const Record& record = *group.find(rank);
    what += fmt::format(", {}", describe({record.wait.what, record.wait.count}));
    break;
  }
  const std::string held = fmt::format("{} {} in {}", describe_ranks(waiters),
                                       waiters.size() == 1 ? "waits" : "wait", what);

  // A dead or stopped rank cannot do its part, whatever else holds.
  std::vector<Rank> dead;
  std::vector<Rank> stopped;
  std::vector<Rank> late;
  for (const Record& record : group.records) {
    if (record.completed >= sequence) continue;
    if (died(group, record)) dead.push_back(record.rank);
    const bool silent = fell_silent(group, record, options);
    if (record.life == Life::kStopped || silent) stopped.push_back(record.rank);
    if (called(record) < sequence) late.push_back(record.rank);
  }
  const auto where = [&](Rank rank) {
    const Record& record = *group.find(rank);
    if (called(record) < sequence) {
      return record.begun() == record.completed
                 ? fmt::format("after operation {} and before it called operation {}",
                               record.completed, sequence)
                 : fmt::format("in operation {}", record.begun());
    }
    const std::string step = is_collective(record.wait) ? step_of(record.wait) : std::string();
    return fmt::format("inside operation {}{}{}", sequence, step.empty() ? "" : ", ", step);
  };
  if (!dead.empty()) {
    return verdict_of(Finding::kDied, dead, sequence,
                      fmt::format("{} died {}; {}", describe_ranks(dead), where(dead[0]), held));
  }
  if (!stopped.empty()) {
    return verdict_of(
        Finding::kStopped, stopped, sequence,
        fmt::format("{} stopped {} ({}); {}", describe_ranks(stopped), where(stopped[0]),
                    group.find(stopped[0])->life == Life::kStopped
                        ? "the process is stopped by a signal or a debugger"
                        : "it reported nothing while the others waited",
                    held));
  }
  if (!late.empty()) {
    return verdict_of(
        Finding::kNeverCalled, late, sequence,
        fmt::format("{} never called operation {} ({}); {}", describe_ranks(late), sequence,
                    whereabouts(group, *group.find(late[0]), sequence), held));
  }
  // All have called it. A rank that others wait for and that does not wait itself holds it up.
  std::set<Rank> idle;
  std::set<Rank> silent;
  for (const Rank rank : waiters) {
    for (const Rank awaited : group.find(rank)->wait.awaited) {
      const Record* record = group.find(awaited);
      if (record == nullptr) {
        silent.insert(awaited);
      } else if (record->completed < sequence && record->wait.kind == RecordKind::kNothing) {
        idle.insert(awaited);
      }
    }
  }
  if (!idle.empty()) {
    const std::vector<Rank> ranks(idle.begin(), idle.end());
    return verdict_of(
        Finding::kStuckInside, ranks, sequence,
        group.on_streams()
            ? fmt::format("{} enqueued operation {}, and the stream there has not come to it, or "
                          "waits for no rank; {}",
                          describe_ranks(ranks), sequence, held)
            : fmt::format("{} began operation {} and went no further: no thread waits for it "
                          "there; {}",
                          describe_ranks(ranks), sequence, held));
  }
  if (!silent.empty()) {
    const std::vector<Rank> ranks(silent.begin(), silent.end());
    return verdict_of(
        Finding::kNeverCalled, ranks, sequence,
        fmt::format("{} left no record here (another host?); {}", describe_ranks(ranks), held));
  }
  std::string text = fmt::format("every rank began {} and waits for another", what);
  for (const Rank rank : waiters) {
    const RecordedWait& wait = group.find(rank)->wait;
    if (wait.awaited.empty()) continue;
    text += fmt::format("; rank {} for {}", rank, describe_ranks(wait.awaited));
    const std::string step = step_of(wait);
    if (!step.empty()) text += fmt::format(" ({})", step);
    if (text.size() > 600) {
      text += "; …";
      break;
    }
  }
  return verdict_of(Finding::kStuckInside, {}, sequence, text);
}

// Judges messages without an answer: follows the waits to a rank that does not wait.
Verdict judge_messages(const Group& group, const std::vector<Rank>& waiters) {
  std::set<Rank> ends;
  for (const Rank rank : waiters) {
    for (const Rank awaited : group.find(rank)->wait.awaited) {
      const Record* record = group.find(awaited);
      const bool waits = record != nullptr && record->wait.kind != RecordKind::kNothing;
      const bool gone =
          record != nullptr && (died(group, *record) || record->life == Life::kStopped);
      if (!waits || gone) ends.insert(awaited);
    }
  }
  const RecordedWait& wait = group.find(waiters[0])->wait;
  const std::string held = fmt::format("rank {} waits for {}", waiters[0], message_of(wait));
  if (ends.empty()) {
    return verdict_of(Finding::kStuckInside, {}, 0,
                      fmt::format("ranks wait for messages of each other: {}", held));
  }
  const std::vector<Rank> ranks(ends.begin(), ends.end());
  const Record* record = group.find(ranks[0]);
  if (record != nullptr && died(group, *record)) {
    return verdict_of(Finding::kDied, ranks, 0,
                      fmt::format("{} died; {}", describe_ranks(ranks), held));
  }
  if (record != nullptr && record->life == Life::kStopped) {
    return verdict_of(
        Finding::kStopped, ranks, 0,
        fmt::format("{} is stopped by a signal or a debugger; {}", describe_ranks(ranks), held));
  }
  return verdict_of(
      Finding::kNeverCalled, ranks, 0,
      fmt::format("{} {}; {}", describe_ranks(ranks),
                  record == nullptr ? "left no record here" : "does not wait for anything here",
                  held));
}

Verdict judge_failure(const Group& group) {
  const Record* first = nullptr;
  for (const Record& record : group.records) {
    if (!failed(record)) continue;
    if (first == nullptr || record.latest_ns < first->latest_ns) first = &record;
  }
  std::vector<Rank> dead;
  for (const Record& record : group.records) {
    if (died(group, record)) dead.push_back(record.rank);
  }
  const std::string why = first == nullptr ? std::string()
                          : !first->why.empty()
                              ? fmt::format("rank {}: {}", first->rank, first->why)
                          : first->code == uint32_t{static_cast<uint8_t>(Code::kAborted)}
                              ? fmt::format("rank {} aborted the communicator", first->rank)
                              : fmt::format("rank {} failed", first->rank);
  if (!dead.empty()) {
    const Record& record = *group.find(dead[0]);
    return verdict_of(Finding::kDied, dead, record.completed,
                      fmt::format("{} died {} operation {}; {}", describe_ranks(dead),
                                  record.begun() > record.completed ? "in" : "after",
                                  record.begun(), why.empty() ? "no rank waits for it" : why));
  }
  if (first == nullptr) return {};
  return verdict_of(Finding::kFailed, {}, 0, why);
}

}  // namespace

const char* name_of(Finding finding) {
  switch (finding) {
    case Finding::kNothing:
      return "nothing wrong";
    case Finding::kCalledOtherwise:
      return "called otherwise";
    case Finding::kNeverCalled:
      return "never called";
    case Finding::kDied:
      return "died";
    case Finding::kStopped:
      return "stopped";
    case Finding::kStuckInside:
      return "stuck inside";
    case Finding::kFailed:
      return "failed";
  }
  return "?";
}

uint64_t waited_ns(const Group& group, const Record& record, uint64_t now_ns) {
  if (record.wait.kind == RecordKind::kNothing || record.wait.since_ns == 0) return 0;
  const bool lives = record.life == Life::kAlive || record.life == Life::kStopped;
  uint64_t until_ns = now_ns;
  // A dead rank waited until its record was last updated; otherwise the group's latest update
  // counts.
  if (record.life == Life::kDead || failed(record)) until_ns = record.latest_ns;
  if (record.life == Life::kUnknown) until_ns = group.latest_ns();
  if (lives && failed(record)) until_ns = record.latest_ns;
  return until_ns > record.wait.since_ns ? until_ns - record.wait.since_ns : 0;
}

Verdict judge(const Group& group, const JudgeOptions& options) {
  if (const std::optional<Verdict> mismatch = find_mismatch(group)) return *mismatch;
  if (group.forwarded()) {
    if (const std::optional<Verdict> verdict = judge_forwarded(group, options)) return *verdict;
  }
  bool any_failed = false;
  std::vector<Rank> long_waits;
  std::vector<Rank> messages;
  std::optional<uint64_t> sequence;
  for (const Record& record : group.records) {
    any_failed = any_failed || failed(record);
    const bool is_long = waited_ns(group, record, options.now_ns) >= options.stuck_after_ns;
    if (!is_long && !(failed(record) && record.wait.kind != RecordKind::kNothing)) continue;
    long_waits.push_back(record.rank);
    if (is_collective(record.wait)) {
      sequence = std::min(sequence.value_or(UINT64_MAX), record.wait.sequence);
    } else {
      messages.push_back(record.rank);
    }
  }
  if (sequence) return judge_operation(group, *sequence, options);
  if (!messages.empty()) return judge_messages(group, messages);
  const bool any_died = std::any_of(group.records.begin(), group.records.end(),
                                    [&](const Record& record) { return died(group, record); });
  if (any_failed || any_died) return judge_failure(group);

  Verdict verdict;
  if (group.forwarded()) {
    verdict.text =
        "every rank made the same calls, as far as they are kept; what a device does "
        "with them is not seen here";
    return verdict;
  }
  const bool all_dead =
      std::all_of(group.records.begin(), group.records.end(),
                  [](const Record& record) { return record.life == Life::kDead; });
  verdict.text =
      fmt::format("no rank has waited longer than {}{}", text_of_duration(options.stuck_after_ns),
                  all_dead ? "; every process has ended" : "");
  return verdict;
}

std::vector<Verdict> judge_all(const std::vector<Group>& groups, const JudgeOptions& options) {
  std::vector<Verdict> verdicts;
  for (const Group& group : groups) verdicts.push_back(judge(group, options));
  for (size_t i = 0; i < groups.size(); ++i) {
    for (const Rank rank : verdicts[i].ranks) {
      const Record* record = groups[i].find(rank);
      if (record == nullptr) continue;
      for (size_t other = 0; other < groups.size(); ++other) {
        if (other == i || verdicts[other].finding == Finding::kNothing) continue;
        for (const Record& there : groups[other].records) {
          if (!same_process(*record, there) || there.wait.kind == RecordKind::kNothing) continue;
          verdicts[i].text += fmt::format(
              ". The process of rank {} waits in communicator '{}' as "
              "rank {}",
              rank, groups[other].name(), there.rank);
        }
      }
    }
  }
  return verdicts;
}

int first_cause(const std::vector<Group>& groups, const std::vector<Verdict>& verdicts) {
  int any = -1;
  for (size_t i = 0; i < groups.size(); ++i) {
    if (verdicts[i].finding == Finding::kNothing) continue;
    if (any < 0) any = static_cast<int>(i);
    bool held_up = false;
    for (const Rank rank : verdicts[i].ranks) {
      const Record* record = groups[i].find(rank);
      for (size_t other = 0; record != nullptr && other < groups.size(); ++other) {
        if (other == i || verdicts[other].finding == Finding::kNothing) continue;
        for (const Record& there : groups[other].records) {
          held_up =
              held_up || (same_process(*record, there) && there.wait.kind != RecordKind::kNothing);
        }
      }
    }
    if (!held_up) return static_cast<int>(i);
  }
  return any;
}

}  // namespace weir::trace
