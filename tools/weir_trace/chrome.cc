// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/engine/call.h"
#include "weir_trace/report.h"

namespace weir::trace {

using comm::Record;
using Json = nlohmann::json;

namespace {

constexpr uint64_t kShortNs = 1000;  // shown for what ended at a time that nobody took

// Where each of the rank's collectives is drawn: [begin, end) in wall-clock time, begin 0: not at
// all. What was done at once has no times of its own; it lies between its neighbours.
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
    // Evenly between what is known before and after, a microsecond each at most.
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

double microseconds(uint64_t ns, uint64_t origin_ns) {
  return ns >= origin_ns ? static_cast<double>(ns - origin_ns) * 1e-3
                         : -static_cast<double>(origin_ns - ns) * 1e-3;
}

Json event(const std::string& name, const char* category, size_t process, uint64_t thread,
           uint64_t begin_ns, uint64_t end_ns, uint64_t origin_ns) {
  const uint64_t length_ns = end_ns > begin_ns ? end_ns - begin_ns : 1;
  return {{"name", name},
          {"cat", category},
          {"ph", "X"},
          {"pid", process},
          {"tid", thread},
          {"ts", microseconds(begin_ns, origin_ns)},
          {"dur", static_cast<double>(length_ns) * 1e-3}};
}

Json named(const char* what, size_t process, uint64_t thread, const std::string& name) {
  return {{"name", what},  {"ph", "M"}, {"pid", process},
          {"tid", thread}, {"ts", 0},   {"args", {{"name", name}}}};
}

void add_record(Json* events, const Group& group, size_t process, const Record& record,
                uint64_t origin_ns, uint64_t until_ns) {
  const uint64_t thread = record.rank;
  events->push_back(named("thread_name", process, thread, fmt::format("rank {}", record.rank)));
  const std::vector<Span> spans = spans_of(record, until_ns);
  for (size_t i = 0; i < spans.size(); ++i) {
    const comm::RecordedOperation& operation = record.operations[i];
    if (spans[i].begin_ns == 0) continue;
    const bool done = operation.sequence <= record.completed;
    const std::string call = describe({operation.what, operation.count});
    Json one = event(call.substr(0, call.find('(')), done ? "collective" : "unfinished", process,
                     thread, spans[i].begin_ns, spans[i].end_ns, origin_ns);
    one["args"] = {{"operation", operation.sequence}, {"call", call}, {"completed", done}};
    if (spans[i].guessed) one["args"]["time"] = "between its neighbours; it did not have to wait";
    if (!done) one["args"]["now"] = activity_of(group, record, until_ns);
    events->push_back(std::move(one));
  }
  if (record.messages.empty()) return;
  const uint64_t messages = uint64_t{group.rank_count()} + record.rank;
  events->push_back(
      named("thread_name", process, messages, fmt::format("rank {}, messages", record.rank)));
  for (const comm::RecordedMessage& message : record.messages) {
    if (message.begin_ns == 0) continue;
    Json one =
        event(name_of_kind(message.kind), message.done ? "message" : "unfinished", process,
              messages, message.begin_ns, message.done ? message.end_ns : until_ns, origin_ns);
    one["args"] = {{"number", message.number},
                   {"peer", message.peer},
                   {units_of(message.kind), message.bytes},
                   {"completed", message.done}};
    events->push_back(std::move(one));
  }
}

}  // namespace

std::string chrome_of(const Report& report) {
  // Times from the first one on: a trace in nanoseconds since 1970 is beyond what viewers resolve.
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
  Json events = Json::array();
  for (size_t i = 0; i < report.groups.size(); ++i) {
    const Group& group = report.groups[i];
    const bool lives =
        std::any_of(group.records.begin(), group.records.end(),
                    [](const Record& record) { return record.life == comm::Life::kAlive; });
    const uint64_t until_ns = lives ? report.now_ns : group.latest_ns();
    events.push_back(named("process_name", i, 0, fmt::format("communicator '{}'", group.name())));
    for (const Record& record : group.records) {
      add_record(&events, group, i, record, origin_ns, until_ns);
    }
    const Verdict& verdict = report.verdicts[i];
    if (verdict.finding == Finding::kNothing) continue;
    events.push_back({{"name", fmt::format("verdict: {}", verdict.text)},
                      {"ph", "i"},
                      {"s", "p"},
                      {"pid", i},
                      {"tid", verdict.ranks.empty() ? 0 : verdict.ranks[0]},
                      {"ts", microseconds(until_ns, origin_ns)}});
  }
  const Json trace = {{"traceEvents", std::move(events)}, {"displayTimeUnit", "ns"}};
  return trace.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace weir::trace
