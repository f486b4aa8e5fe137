// SPDX-License-Identifier: Apache-2.0
#include "offload/io/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <limits>
#include <set>

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
  std::string text = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  const auto out = std::back_inserter(text);
  const char* comma = "\n";
  for (const uint32_t row : rows) {
    fmt::format_to(out,
                   "{}{{\"ph\":\"M\",\"pid\":1,\"tid\":{},\"name\":\"thread_name\",\"args\":"
                   "{{\"name\":\"{} {}\"}}}}",
                   comma, row, name_of(static_cast<TraceKind>(row / kRowsPerKind)),
                   row % kRowsPerKind);
    comma = ",\n";
  }
  for (const TraceEvent& event : trace.events) {
    fmt::format_to(out,
                   "{}{{\"ph\":\"X\",\"pid\":1,\"tid\":{},\"name\":\"{} {}\",\"cat\":\"{}\","
                   "\"ts\":{:.3f},\"dur\":{:.3f},\"args\":{{\"item\":{},\"bytes\":{}}}}}",
                   comma, row_of(event), name_of(event.kind), event.item,
                   event.kind == TraceKind::kCompute ? "compute" : "disk",
                   static_cast<double>(event.begin_ns - begin_ns) / 1e3,
                   static_cast<double>(event.end_ns - event.begin_ns) / 1e3, event.item,
                   event.bytes);
    comma = ",\n";
  }
  fmt::format_to(out, "\n],\"otherData\":{{\"dropped_events\":{}}}}}\n", trace.dropped_count);
  return text;
}

Status write_chrome_trace(const std::string& path, const Trace& trace) {
  const std::string text = chrome_trace_json(trace);
  std::FILE* file = std::fopen(path.c_str(), "we");
  if (file == nullptr) return system_error("write the trace '" + path + "'");
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const Status failed = written ? Status() : system_error("write the trace '" + path + "'");
  if (std::fclose(file) != 0 && failed.ok()) return system_error("write the trace '" + path + "'");
  return failed;
}

}  // namespace weir::offload
