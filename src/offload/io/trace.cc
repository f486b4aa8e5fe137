// SPDX-License-Identifier: Apache-2.0
#include "offload/io/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <set>

#include "output/chrome_trace.h"
#include "output/output_file.h"

namespace weir::offload {
namespace {

constexpr uint32_t kRowsPerKind = 1000;

const char* name_of(TraceKind kind) {
  switch (kind) {
    case TraceKind::kRead:
      return "read";
    case TraceKind::kCompute:
      return "compute";
    case TraceKind::kWrite:
      return "write";
  }
  return "";
}

uint32_t row_of(const TraceEvent& event) {
  return static_cast<uint32_t>(event.kind) * kRowsPerKind + event.lane;
}

}  // namespace

std::string chrome_trace_json(const Trace& trace) {
  uint64_t begin_ns = std::numeric_limits<uint64_t>::max();
  std::set<uint32_t> rows;
  for (const TraceEvent& event : trace.events) {
    begin_ns = std::min(begin_ns, event.begin_ns);
    rows.insert(row_of(event));
  }
  output::ChromeTrace chrome;
  chrome.about("dropped_events", trace.dropped_count);
  for (const uint32_t row : rows) {
    chrome.name_row({1, row},
                    fmt::format("{} {}", name_of(static_cast<TraceKind>(row / kRowsPerKind)),
                                row % kRowsPerKind));
  }
  for (const TraceEvent& event : trace.events) {
    const output::TraceArgument arguments[] = {{"item", event.item}, {"bytes", event.bytes}};
    chrome.span({1, row_of(event)}, fmt::format("{} {}", name_of(event.kind), event.item),
                event.kind == TraceKind::kCompute ? "compute" : "disk",
                static_cast<int64_t>(event.begin_ns - begin_ns), event.end_ns - event.begin_ns,
                arguments);
  }
  return chrome.finish();
}

Status write_chrome_trace(const std::string& path, const Trace& trace) {
  const std::string wrong = output::write_file(path, chrome_trace_json(trace));
  return wrong.empty() ? Status() : Status(Code::kSystem, "the trace: " + wrong);
}

}  // namespace weir::offload
