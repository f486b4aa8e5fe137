// SPDX-License-Identifier: Apache-2.0
// A report on the records of communicators in three forms: text for people, JSON for programs, and
// a Chrome trace (chrome://tracing, ui.perfetto.dev) with one track per rank. Functions;
// thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "weir_trace/group.h"
#include "weir_trace/judge.h"

namespace weir::trace {

struct Report {
  uint64_t now_ns = 0;  // wall clock
  std::vector<Group> groups;
  std::vector<Verdict> verdicts;      // of the groups, in their order
  std::vector<std::string> problems;  // files that could not be read, and why
};

// Reads the records at `paths` (files or folders) and judges them. `all`: not only the latest job.
Report make_report(const std::vector<std::string>& paths, const JudgeOptions& options, bool all);

// A table per communicator with each rank's latest completed operation and its present activity,
// without and with the verdicts.
std::string text_of(const Group& group, uint64_t now_ns);
std::string text_of(const Report& report);
std::string json_of(const Report& report);
std::string chrome_of(const Report& report);

// The rank's present activity: "operation 12, all_reduce(float32, sum, count 8), waits 3 s for rank
// 2".
std::string activity_of(const Group& group, const comm::Record& record, uint64_t now_ns);

// "send", "wait for signals", and the unit of its count: "bytes", "signals".
const char* name_of_kind(comm::RecordKind kind);
const char* units_of(comm::RecordKind kind);

uint64_t wall_clock_ns();

}  // namespace weir::trace
