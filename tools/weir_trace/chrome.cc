// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "output/chrome_trace.h"
#include "weir_trace/report.h"

namespace weir::trace {

using comm::Record;

namespace {

constexpr uint64_t kShortNs = 1000;  // shown for an operation without an end time

// Where each of the rank's collectives is drawn: [begin, end) in wall-clock time, begin 0: not at
// all. An operation that completed at once has no times; it is drawn between its neighbours.
struct Span {
  uint64_t begin_ns = 0;
  uint64_t end_ns = 0;
  bool guessed = false;
};

std::vector<Span> spans_of(const Record& record, uint64_t until_ns) {
  const auto& operations = record.operations;
  std::vector<Span> spans(operations.size());
  for (size_t i = 0; i < operations.size(); ++i) {
    spans[i].begin_ns = operations[i].begin_ns;
    spans[i].end_ns = operations[i].end_ns;
  }
  for (size_t i = 0; i < spans.size();) {
    if (spans[i].begin_ns != 0) {
      ++i;
      continue;
    }
    size_t next = i;
    while (next < spans.size() && spans[next].begin_ns == 0) ++next;
    // Spread evenly between the known times before and after, at most a microsecond each.
    uint64_t from = i > 0 ? std::max(spans[i - 1].end_ns, spans[i - 1].begin_ns + 1) : 0;
    const uint64_t to = next < spans.size() ? spans[next].begin_ns : 0;
    const uint64_t count = next - i + 1;
    uint64_t each = kShortNs;
    if (from == 0 && to > count * kShortNs) from = to - (count - 1) * kShortNs;
    if (from != 0 && to > from) each = std::clamp<uint64_t>((to - from) / count, 1, kShortNs);
    for (size_t k = i; from != 0 && k < next; ++k) {
      spans[k] = {from + (k - i) * each, from + (k - i + 1) * each, true};
    }
    i = next;
  }
  for (size_t i = 0; i < spans.size(); ++i) {
    if (spans[i].begin_ns == 0 || spans[i].end_ns != 0) continue;
    const bool done = operations[i].sequence <= record.completed;
    uint64_t end = done ? spans[i].begin_ns + kShortNs : std::max(until_ns, spans[i].begin_ns + 1);
    if (done && i + 1 < spans.size() && spans[i + 1].begin_ns > spans[i].begin_ns) {
      end = std::min(end, spans[i + 1].begin_ns);
    }
    spans[i].end_ns = end;
  }
  return spans;
}

int64_t since(uint64_t ns, uint64_t origin_ns) {
  return static_cast<int64_t>(ns) - static_cast<int64_t>(origin_ns);
}

uint64_t length_of(uint64_t begin_ns, uint64_t end_ns) {
  return end_ns > begin_ns ? end_ns - begin_ns : 1;
}

void add_record(output::ChromeTrace* trace, const Group& group, size_t process,
                const Record& record, uint64_t origin_ns, uint64_t until_ns) {
  const output::TraceRow collectives{process, record.rank};
  trace->name_row(collectives, fmt::format("rank {}", record.rank));
  const std::vector<Span> spans = spans_of(record, until_ns);
  for (size_t i = 0; i < spans.size(); ++i) {
    const comm::RecordedOperation& operation = record.operations[i];
    if (spans[i].begin_ns == 0) continue;
    const bool done = operation.sequence <= record.completed;
    const std::string call = describe({operation.what, operation.count});
    const std::string now = done ? std::string() : activity_of(group, record, until_ns);
    std::vector<output::TraceArgument> arguments = {
        {"operation", operation.sequence}, {"call", std::string_view(call)}, {"completed", done}};
    if (spans[i].guessed) {
      arguments.push_back(
          {"time", std::string_view("between its neighbours; it did not have to wait")});
    }
    if (!done) arguments.push_back({"now", std::string_view(now)});
    trace->span(collectives, call.substr(0, call.find('(')), done ? "collective" : "unfinished",
                since(spans[i].begin_ns, origin_ns), length_of(spans[i].begin_ns, spans[i].end_ns),
                arguments);
  }
  if (record.messages.empty()) return;
  const output::TraceRow messages{process, uint64_t{group.rank_count()} + record.rank};
  trace->name_row(messages, fmt::format("rank {}, messages", record.rank));
  for (const comm::RecordedMessage& message : record.messages) {
    if (message.begin_ns == 0) continue;
    const output::TraceArgument arguments[] = {{"number", message.number},
                                               {"peer", uint64_t{message.peer}},
                                               {units_of(message.kind), message.bytes},
                                               {"completed", message.done}};
    trace->span(messages, name_of_kind(message.kind), message.done ? "message" : "unfinished",
                since(message.begin_ns, origin_ns),
                length_of(message.begin_ns, message.done ? message.end_ns : until_ns), arguments);
  }
}

}  // namespace

std::string chrome_of(const Report& report) {
  // Times count from the first event: viewers do not resolve nanoseconds since 1970.
  uint64_t origin_ns = UINT64_MAX;
  const auto earlier = [&](uint64_t ns) {
    if (ns != 0) origin_ns = std::min(origin_ns, ns);
  };
  for (const Group& group : report.groups) {
    for (const Record& record : group.records) {
      for (const auto& operation : record.operations) earlier(operation.begin_ns);
      for (const auto& message : record.messages) earlier(message.begin_ns);
    }
  }
  if (origin_ns == UINT64_MAX) origin_ns = report.now_ns;
  output::ChromeTrace trace;
  for (size_t i = 0; i < report.groups.size(); ++i) {
    const Group& group = report.groups[i];
    const bool lives =
        std::any_of(group.records.begin(), group.records.end(),
                    [](const Record& record) { return record.life == comm::Life::kAlive; });
    const uint64_t until_ns = lives ? report.now_ns : group.latest_ns();
    trace.name_process(i, fmt::format("communicator '{}'", group.name()));
    for (const Record& record : group.records) {
      add_record(&trace, group, i, record, origin_ns, until_ns);
    }
    const Verdict& verdict = report.verdicts[i];
    if (verdict.finding == Finding::kNothing) continue;
    trace.mark({i, verdict.ranks.empty() ? 0 : verdict.ranks[0]},
               fmt::format("verdict: {}", verdict.text), since(until_ns, origin_ns));
  }
  return trace.finish();
}

}  // namespace weir::trace
