// SPDX-License-Identifier: Apache-2.0
// ChromeTrace: writes the JSON object form of the Trace Event Format, which chrome://tracing and
// ui.perfetto.dev read. One thread at a time.
//
//   { "displayTimeUnit": "ns",
//     "otherData": { "dropped_events": 0 },
//     "traceEvents": [
//       { "ph": "M", "name": "thread_name", "pid": 0, "tid": 1, "args": { "name": "rank 1" } },
//       { "ph": "X", "name": "send", "cat": "message", "pid": 0, "tid": 1, "ts": 0.25, "dur": 1.5,
//         "args": { "bytes": 64 } },
//       { "ph": "i", "name": "verdict", "s": "p", "pid": 0, "tid": 1, "ts": 2.0 } ] }
//
// Times in the file are microseconds. Text may hold any bytes: invalid UTF-8 is replaced.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace weir::output {

using TraceValue = std::variant<bool, uint64_t, std::string_view>;
struct TraceArgument {
  std::string_view name;
  TraceValue value;
};

// A row of the viewer is a thread of a process, whatever these represent.
struct TraceRow {
  uint64_t process = 0;
  uint64_t thread = 0;
};

class ChromeTrace {
 public:
  void name_process(uint64_t process, std::string_view name);
  void name_row(TraceRow row, std::string_view name);
  // An event from `begin_ns`, which may be before 0, that lasts `length_ns`.
  void span(TraceRow row, std::string_view name, std::string_view category, int64_t begin_ns,
            uint64_t length_ns, std::span<const TraceArgument> arguments = {});
  // A mark across the whole process.
  void mark(TraceRow row, std::string_view name, int64_t at_ns);
  // Data about the whole trace.
  void about(std::string_view name, const TraceValue& value);

  // The document.
  std::string finish() const;

 private:
  void begin_event(char phase, std::string_view name, TraceRow row);
  void meta(const char* what, TraceRow row, std::string_view name);

  std::string events_;
  std::string about_;
};

}  // namespace weir::output
