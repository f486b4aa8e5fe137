// SPDX-License-Identifier: Apache-2.0
#include "core/comm/health/health_texts.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/base/clock.h"
#include "core/base/rank_list.h"
#include "core/comm/device/device_side.h"
#include "core/comm/requests/request_text.h"

namespace weir::comm {

namespace {

constexpr uint64_t kCallPatienceNs = 20'000'000;
constexpr uint64_t kOtherCallPatienceNs = 500'000'000;
constexpr const char* kRule =
    "every rank must call the same collectives in the same order, with the same count, type, "
    "operation and root";

// The meeting with which the first collective on device memory begins (device/device_side.h).
std::string describe_meeting() {
  engine::Call call;
  call.collective = Collective::kAllGather;
  call.count = sizeof(MeetingRecord);
  return engine::describe(call);
}

// The first of the calls before `sequence` in which ranks that share memory called something else
// than others; 0: none that is still known.
uint64_t earlier_difference(const engine::Context& context, uint64_t sequence,
                            std::map<std::string, std::vector<Rank>>* calls) {
  if (!context.mapped()) return 0;
  const uint64_t oldest =
      sequence > engine::kDescriptorCount ? sequence - engine::kDescriptorCount : 0;
  for (uint64_t earlier = oldest + 1; earlier < sequence; ++earlier) {
    calls->clear();
    for (Rank p = 0; p < context.rank_count; ++p) {
      const engine::DescriptorLine& line =
          context.control(p).descriptor[earlier % engine::kDescriptorCount];
      if (line.sequence.load(std::memory_order_acquire) != earlier) continue;
      (*calls)[engine::describe(line.what.load(), line.count.load())].push_back(p);
    }
    if (calls->size() > 1) return earlier;
  }
  return 0;
}

std::string list_calls(const std::map<std::string, std::vector<Rank>>& calls, const char* behind) {
  std::string text;
  for (const auto& [what, of_ranks] : calls) {
    std::vector<Rank> ranks = of_ranks;
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    text += fmt::format(" {} called {}{};", describe_ranks(ranks), what, behind);
  }
  return text;
}

}  // namespace

Status HealthTexts::mismatch(const Request& request) const {
  const engine::Context& context = state_.context;
  const uint64_t sequence = request.started ? request.sequence : context.sequence + 1;
  // A peer publishes what it called right after its first data, or fails before and reports both
  // calls: give it a moment to get there.
  const bool may_be_same = request.call.block_counts != nullptr;  // which are not published
  const uint64_t until = now_ns() + (may_be_same ? kCallPatienceNs : kOtherCallPatienceNs);
  std::map<std::string, std::vector<Rank>> calls;
  for (;;) {
    calls.clear();
    calls[engine::describe(request.call)].push_back(context.rank);
    for (Rank p = 0; p < context.rank_count; ++p) {
      if (p == context.rank) continue;
      const HealthReport* other = reports_.report_of(p);
      if (other != nullptr && other->sequence == sequence) {
        calls[engine::describe(other->what, other->count)].push_back(p);
      }
      if (!context.mapped()) continue;
      const engine::DescriptorLine& line =
          context.control(p).descriptor[sequence % engine::kDescriptorCount];
      if (line.sequence.load(std::memory_order_acquire) != sequence) continue;
      calls[engine::describe(line.what.load(), line.count.load())].push_back(p);
    }
    const engine::LaneRun::Header& met = operations_.other_header();
    if (met.flag != 0) {
      std::string what = engine::describe(met.what, met.count);
      const uint64_t of = met.flag >> 32;
      if (of != (sequence & 0xffffffffu)) what += fmt::format(" (its operation {})", of);
      calls[what].push_back(operations_.other_rank());
    }
    if (!may_be_same) {
      std::map<std::string, std::vector<Rank>> before;
      if (const uint64_t earlier = earlier_difference(context, sequence, &before)) {
        return Status(
            Code::kMismatch,
            fmt::format("ranks of '{}' made different calls as operation {}:{} none of them had to "
                        "wait for another, so it was found in operation {}, {}; {}",
                        state_.name, earlier, list_calls(before, ""), sequence,
                        engine::describe(request.call), kRule));
      }
    }
    if (calls.size() > 1 || now_ns() > until) break;
    for (Rank p = 0; p < context.rank_count; ++p) {
      std::vector<Rank> blamed;
      if (p == context.rank) continue;
      Status told = reports_.failure_of(p, &blamed);
      if (told.code() == Code::kMismatch && !told.text().empty()) return told;
    }
    reports_.look_at_board(now_ns(), 0);
    cpu_relax();
  }
  const char* difference = "";
  if (calls.size() == 1) {
    difference = may_be_same
                     ? ", with different block counts"
                     : ", but an earlier call, in which no rank waits for another, differed";
  }
  std::string text = fmt::format("ranks of '{}' made different calls as operation {}:{} {}",
                                 state_.name, sequence, list_calls(calls, difference), kRule);
  if (request.repeats || calls.count(describe_meeting()) != 0) {
    text += fmt::format(
        ", on the same kind of memory: the first collective on device memory begins with {}",
        describe_meeting());
  }
  return Status(Code::kMismatch, text);
}

Status HealthTexts::timeout(const Request& request, int64_t timeout_ms,
                            const std::vector<Rank>& ranks) const {
  std::string whom = operations_.is_with_device(request)
                         ? "the other ranks, none of which has reported a failure"
                     : operations_.waits_for_stream(request)
                         ? "the CUDA stream, which has not reached the operation"
                         : "no rank in particular";
  if (!ranks.empty()) {
    whom = describe_ranks(ranks);
    if (reports_.on_board()) whom += silence_of(ranks);
    if (request.kind == RequestKind::kCollective && state_.context.mapped()) {
      whom = absence_of(request, ranks);
    }
  }
  whom += operations_.other_end_of(request);
  if (!request.is_of_device_side()) whom += operations_.calls_on_devices();
  return Status(
      Code::kTimeout,
      fmt::format("{} did not finish within {} ms on rank {}: waiting for {}. {}",
                  describe(request, state_), timeout_ms, state_.rank(), whom, kAtDeadline));
}

// Which of the ranks have not called the operation, where they share memory.
std::string HealthTexts::absence_of(const Request& request, const std::vector<Rank>& ranks) const {
  const engine::Context& context = state_.context;
  const uint64_t sequence = request.started ? request.sequence : context.sequence + 1;
  std::vector<Rank> absent;
  for (const Rank p : ranks) {
    if (p == context.rank) continue;
    const auto& line = context.control(p).descriptor[sequence % engine::kDescriptorCount];
    if (line.sequence.load(std::memory_order_acquire) != sequence) absent.push_back(p);
  }
  if (absent.empty()) {
    return fmt::format("{}, which began the operation and {} not finished it",
                       describe_ranks(ranks), ranks.size() == 1 ? "has" : "have");
  }
  const std::string text =
      fmt::format("{}, which {} not called operation {}", describe_ranks(absent),
                  absent.size() == 1 ? "has" : "have", sequence);
  uint64_t latest = 0;
  const engine::DescriptorLine* latest_line = nullptr;
  for (const engine::DescriptorLine& line : context.control(absent[0]).descriptor) {
    const uint64_t seen = line.sequence.load(std::memory_order_acquire);
    if (seen > latest && seen < sequence) {
      latest = seen;
      latest_line = &line;
    }
  }
  if (latest_line == nullptr) return text + " or any operation before it";
  return text + fmt::format(" (the latest call of rank {} is operation {}, {})", absent[0], latest,
                            engine::describe(latest_line->what.load(), latest_line->count.load()));
}

std::string HealthTexts::calls_elsewhere(const std::vector<Rank>& ranks) const {
  const engine::Context& context = state_.context;
  const uint64_t next = context.sequence + 1;
  if (reports_.on_board()) reports_.look_at_board(now_ns(), 0);
  std::string text;
  const auto add = [&](Rank rank, uint64_t what, uint64_t count) {
    text += fmt::format("; rank {} called {} on memory of the host", rank,
                        engine::describe(what, count));
  };
  for (const Rank p : ranks) {
    if (p == context.rank) continue;
    if (context.mapped()) {
      const auto& line = context.control(p).descriptor[next % engine::kDescriptorCount];
      if (line.sequence.load(std::memory_order_acquire) == next) {
        add(p, line.what.load(), line.count.load());
        continue;
      }
    } else if (const HealthReport* report = reports_.report_of(p);
               report != nullptr && report->sequence >= next) {
      add(p, report->what, report->count);
      continue;
    }
    // A report on the board stays behind a wait that has ended.
    const bool is_old =
        reports_.on_board() && now_ns() - reports_.heard_ns(p) > 3 * reports_.show_interval_ns();
    std::vector<Rank> awaited;
    if (!is_old) reports_.collect_awaited_by(p, &awaited);
    if (std::find(awaited.begin(), awaited.end(), context.rank) == awaited.end()) continue;
    text += fmt::format("; rank {} waits for rank {} in another operation, such as a message", p,
                        context.rank);
  }
  return text;
}

std::string HealthTexts::silence_of(const std::vector<Rank>& ranks) const {
  const uint64_t silent = wait_time_.silent_ns(reports_.heard_ns(ranks[0]), now_ns());
  std::string text;
  if (silent > 3 * reports_.show_interval_ns()) {
    text = fmt::format(", silent for {} ms", silent / 1'000'000);
  }
  const HealthReport* report = reports_.report_of(ranks[0]);
  if (report == nullptr || report->sequence == 0) return text;
  return text + fmt::format(" (the latest call that rank {} reported is operation {}, {})",
                            ranks[0], report->sequence,
                            engine::describe(report->what, report->count));
}

std::string HealthTexts::describe_lost(const std::vector<Rank>& lost) const {
  std::vector<Rank> dead;
  std::vector<Rank> unreached;
  std::vector<Rank> gone;
  for (const Rank p : lost) {
    (reports_.is_gone(p) ? gone : reports_.has_died(p) ? dead : unreached).push_back(p);
  }
  std::vector<std::string> parts;
  if (!dead.empty()) parts.push_back(describe_ranks(dead) + " died");
  if (!unreached.empty()) parts.push_back(describe_ranks(unreached) + " could not be reached");
  if (!gone.empty()) parts.push_back(describe_ranks(gone) + " destroyed the communicator");
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == parts.size() ? " and " : ", ") + parts[i];
  }
  return text;
}

Status HealthTexts::lost(const Request& request, const std::vector<Rank>& lost) const {
  const char* them = lost.size() == 1 ? "it" : "them";
  std::vector<Rank> needed;
  operations_.collect_awaited(request, &needed);
  const bool direct = needed.empty() || std::any_of(lost.begin(), lost.end(), [&](Rank rank) {
                        return std::find(needed.begin(), needed.end(), rank) != needed.end();
                      });
  return Status(
      Code::kPeerLost,
      fmt::format("{} while rank {} waited for {} in {}; exclude {} with "
                  "weir_comm_shrink to go on",
                  describe_lost(lost), state_.rank(), direct ? them : describe_ranks(needed),
                  describe(request, state_), them));
}

}  // namespace weir::comm
