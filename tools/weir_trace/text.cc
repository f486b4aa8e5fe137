// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <set>

#include "core/base/rank_list.h"
#include "core/base/status.h"
#include "weir_trace/report.h"

namespace weir::trace {

using comm::Record;
using comm::RecordedMessage;
using comm::RecordKind;
using comm::RecordState;

namespace {

std::string state_of(const Record& record) {
  std::string life = comm::name_of(record.life);
  switch (record.state) {
    case RecordState::kOpen:
      return life;
    case RecordState::kFailed:
      return life + ", failed";
    case RecordState::kAborted:
      return life + ", aborted";
  }
  return life;
}

std::string message_text(RecordKind kind, Rank peer, uint64_t bytes) {
  switch (kind) {
    case RecordKind::kSend:
      return fmt::format("send of {} bytes to rank {}", bytes, peer);
    case RecordKind::kRecv:
      return fmt::format("receive of {} bytes from rank {}", bytes, peer);
    case RecordKind::kPutSignal:
      return fmt::format("put of {} bytes with a signal to rank {}", bytes, peer);
    case RecordKind::kSignal:
      return fmt::format("signal to rank {}", peer);
    case RecordKind::kWaitSignal:
      return fmt::format("wait for {} signal{}, of rank {} the first", bytes, bytes == 1 ? "" : "s",
                         peer);
    case RecordKind::kPut:
      return fmt::format("put of {} bytes to rank {}", bytes, peer);
    case RecordKind::kGet:
      return fmt::format("get of {} bytes from rank {}", bytes, peer);
    case RecordKind::kFetchAdd:
      return fmt::format("fetch and add at rank {}", peer);
    case RecordKind::kCompareSwap:
      return fmt::format("compare and swap at rank {}", peer);
    case RecordKind::kFlush:
      return "flush";
    case RecordKind::kRetire:
      return "retirement of a window";
    case RecordKind::kWaitWord:
      return fmt::format("wait until a word reaches {}", bytes);
    case RecordKind::kTagSend:
      return fmt::format("send of {} bytes with a tag to rank {}", bytes, peer);
    case RecordKind::kTagRecv:
      return fmt::format("receive of up to {} bytes with a tag", bytes);
    default:
      return fmt::format("an operation of {} bytes with rank {}", bytes, peer);
  }
}

std::string wait_text(const Group& group, const Record& record, uint64_t now_ns) {
  const comm::RecordedWait& wait = record.wait;
  std::string text = fmt::format("waits {}", text_of_duration(waited_ns(group, record, now_ns)));
  if (!wait.awaited.empty()) {
    text += " for " + describe_ranks(wait.awaited);
    if (wait.awaited_count > wait.awaited.size() && wait.awaited.size() == comm::kAwaitedRanksMax) {
      text += fmt::format(" and {} more", wait.awaited_count - wait.awaited.size());
    }
  }
  return text;
}

}  // namespace

uint64_t wall_clock_ns() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
}

std::string activity_of(const Group& group, const Record& record, uint64_t now_ns) {
  const comm::RecordedWait& wait = record.wait;
  switch (wait.kind) {
    case RecordKind::kCollective: {
      std::string text =
          fmt::format("operation {}, {}", wait.sequence, describe({wait.what, wait.count}));
      if (!wait.algorithm.empty()) text += fmt::format(", {} by {}", wait.algorithm, wait.protocol);
      if (wait.step_count > 0)
        text += fmt::format(", step {} of {}", wait.step + 1, wait.step_count);
      if (wait.slice_count > 1) {
        text += fmt::format(", slice {} of {}", std::min(wait.slice + 1, wait.slice_count),
                            wait.slice_count);
      }
      return text + ", " + wait_text(group, record, now_ns);
    }
    case RecordKind::kQueued:
      return fmt::format("operation {}, {}, cannot begin, {}", wait.sequence,
                         describe({wait.what, wait.count}), wait_text(group, record, now_ns));
    case RecordKind::kSend:
    case RecordKind::kRecv:
    case RecordKind::kPutSignal:
    case RecordKind::kSignal:
    case RecordKind::kWaitSignal:
    case RecordKind::kPut:
    case RecordKind::kGet:
    case RecordKind::kFetchAdd:
    case RecordKind::kCompareSwap:
    case RecordKind::kFlush:
    case RecordKind::kRetire:
    case RecordKind::kWaitWord:
    case RecordKind::kTagSend:
    case RecordKind::kTagRecv:
      return fmt::format(
          "{}, {}", message_text(wait.kind, wait.awaited.empty() ? 0 : wait.awaited[0], wait.count),
          wait_text(group, record, now_ns));
    case RecordKind::kCapture:
    case RecordKind::kNothing:
      break;
  }
  if (record.begun() > record.completed) {
    const auto call = call_of(record, record.begun());
    return fmt::format("operation {}{} is {}", record.begun(),
                       call ? ", " + describe(*call) + "," : std::string(),
                       group.on_streams() ? "enqueued" : "begun");
  }
  const auto pending = std::find_if(record.messages.begin(), record.messages.end(),
                                    [](const RecordedMessage& message) { return !message.done; });
  if (pending != record.messages.end()) {
    return message_text(pending->kind, pending->peer, pending->bytes) + " is begun";
  }
  if (group.on_streams()) return "nothing is enqueued";
  return group.forwarded() ? "in no call" : "not in Weir";
}

std::string text_of(const Group& group, uint64_t now_ns) {
  std::set<std::string> hosts;
  for (const Record& record : group.records) hosts.insert(record.host);
  const Record& first = group.records.front();
  std::string text = fmt::format(
      "communicator '{}', {} rank{}, transport {}, {}, program {}\n", group.name(),
      group.rank_count(), group.rank_count() == 1 ? "" : "s", first.transport,
      hosts.size() == 1 ? "host " + *hosts.begin() : fmt::format("{} hosts", hosts.size()),
      first.program);
  const auto slowest = std::max_element(
      group.records.begin(), group.records.end(),
      [](const Record& a, const Record& b) { return a.start.total_ns() < b.start.total_ns(); });
  if (slowest->start.total_ns() != 0) {
    text += fmt::format("  started, rank {} as the slowest, in {}\n", slowest->rank,
                        slowest->start.describe());
  }
  struct Row {
    std::string rank, process, state, completed, activity;
  };
  std::vector<Row> rows = {
      {"rank", "process", "state", group.forwarded() ? "called" : "completed", "now"}};
  for (const Record& record : group.records) {
    std::string completed = "none";
    if (record.completed > 0) {
      const auto call = call_of(record, record.completed);
      completed = fmt::format("{}{}", record.completed, call ? " " + describe(*call) : "");
    }
    rows.push_back({fmt::format("{}", record.rank),
                    hosts.size() == 1 ? fmt::format("{}", record.process)
                                      : fmt::format("{}:{}", record.host, record.process),
                    state_of(record), completed, activity_of(group, record, now_ns)});
  }
  size_t widths[4] = {};
  for (const Row& row : rows) {
    widths[0] = std::max(widths[0], row.rank.size());
    widths[1] = std::max(widths[1], row.process.size());
    widths[2] = std::max(widths[2], row.state.size());
    widths[3] = std::max(widths[3], row.completed.size());
  }
  for (const Row& row : rows) {
    text += fmt::format("  {:>{}}  {:<{}}  {:<{}}  {:<{}}  {}\n", row.rank, widths[0], row.process,
                        widths[1], row.state, widths[2], row.completed, widths[3], row.activity);
  }
  const std::vector<Rank> missing = group.missing();
  if (!missing.empty()) {
    text += fmt::format("  {}: no record here\n", describe_ranks(missing));
  }
  return text;
}

std::string text_of(const Report& report) {
  std::string text;
  for (size_t i = 0; i < report.groups.size(); ++i) {
    text += text_of(report.groups[i], report.now_ns);
    text += fmt::format("  verdict: {}: {}\n\n", name_of(report.verdicts[i].finding),
                        report.verdicts[i].text);
  }
  const int cause = first_cause(report.groups, report.verdicts);
  if (report.groups.size() > 1 && cause >= 0) {
    const auto at = static_cast<size_t>(cause);
    text += fmt::format("begin with communicator '{}': {}: {}\n", report.groups[at].name(),
                        name_of(report.verdicts[at].finding), report.verdicts[at].text);
  }
  return text;
}

Report make_report(const std::vector<std::string>& paths, const JudgeOptions& options, bool all) {
  Report report;
  report.now_ns = options.now_ns;
  std::vector<Record> records;
  for (const std::string& path : paths) {
    const Result<std::vector<std::string>> files = comm::list_records(path);
    if (!files.ok()) {
      report.problems.push_back(files.status().text());
      continue;
    }
    for (const std::string& file : files.value()) {
      Result<Record> record = comm::read_record(file);
      if (record.ok()) {
        records.push_back(record.take());
      } else {
        report.problems.push_back(record.status().text());
      }
    }
  }
  report.groups = group_records(std::move(records));
  if (!all) report.groups = latest_job(report.groups);
  report.verdicts = judge_all(report.groups, options);
  return report;
}

}  // namespace weir::trace
