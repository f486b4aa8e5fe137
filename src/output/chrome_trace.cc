// SPDX-License-Identifier: Apache-2.0
#include "output/chrome_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

namespace weir::output {

namespace {

void append_quoted(std::string_view text, std::string* to) {
  const bool is_plain = std::all_of(text.begin(), text.end(), [](char c) {
    return c >= ' ' && c <= '~' && c != '"' && c != '\\';
  });
  if (is_plain) {
    *to += '"';
    *to += text;
    *to += '"';
    return;
  }
  using Json = nlohmann::json;
  *to += Json(std::string(text)).dump(-1, ' ', false, Json::error_handler_t::replace);
}

void append_value(const TraceValue& value, std::string* to) {
  if (const auto* flag = std::get_if<bool>(&value)) {
    *to += *flag ? "true" : "false";
  } else if (const auto* number = std::get_if<uint64_t>(&value)) {
    *to += fmt::format("{}", *number);
  } else {
    append_quoted(std::get<std::string_view>(value), to);
  }
}

void append_member(std::string_view name, const TraceValue& value, std::string* to) {
  append_quoted(name, to);
  *to += ':';
  append_value(value, to);
}

double microseconds(int64_t ns) { return static_cast<double>(ns) * 1e-3; }

}  // namespace

void ChromeTrace::begin_event(char phase, std::string_view name, TraceRow row) {
  events_ += events_.empty() ? "\n" : ",\n";
  fmt::format_to(std::back_inserter(events_),
                 "{{\"ph\":\"{}\",\"pid\":{},\"tid\":{},\"name\":", phase, row.process, row.thread);
  append_quoted(name, &events_);
}

void ChromeTrace::meta(const char* what, TraceRow row, std::string_view name) {
  begin_event('M', what, row);
  events_ += ",\"args\":{\"name\":";
  append_quoted(name, &events_);
  events_ += "}}";
}

void ChromeTrace::name_process(uint64_t process, std::string_view name) {
  meta("process_name", {process, 0}, name);
}

void ChromeTrace::name_row(TraceRow row, std::string_view name) { meta("thread_name", row, name); }

void ChromeTrace::span(TraceRow row, std::string_view name, std::string_view category,
                       int64_t begin_ns, uint64_t length_ns,
                       std::span<const TraceArgument> arguments) {
  begin_event('X', name, row);
  events_ += ",\"cat\":";
  append_quoted(category, &events_);
  fmt::format_to(std::back_inserter(events_), ",\"ts\":{:.3f},\"dur\":{:.3f}",
                 microseconds(begin_ns), static_cast<double>(length_ns) * 1e-3);
  const char* separator = ",\"args\":{";
  for (const TraceArgument& argument : arguments) {
    events_ += separator;
    append_member(argument.name, argument.value, &events_);
    separator = ",";
  }
  events_ += arguments.empty() ? "}" : "}}";
}

void ChromeTrace::mark(TraceRow row, std::string_view name, int64_t at_ns) {
  begin_event('i', name, row);
  fmt::format_to(std::back_inserter(events_), ",\"s\":\"p\",\"ts\":{:.3f}}}", microseconds(at_ns));
}

void ChromeTrace::about(std::string_view name, const TraceValue& value) {
  if (!about_.empty()) about_ += ',';
  append_member(name, value, &about_);
}

std::string ChromeTrace::finish() const {
  return fmt::format("{{\"displayTimeUnit\":\"ns\",\"otherData\":{{{}}},\"traceEvents\":[{}\n]}}\n",
                     about_, events_);
}

}  // namespace weir::output
