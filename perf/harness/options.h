// SPDX-License-Identifier: Apache-2.0
// The command line of the perf tools: nccl-tests' flags with nccl-tests' meaning where they make
// sense on a CPU, and a few additional ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "perf/harness/element.h"
#include "perf/harness/operation.h"

namespace weir::perf {

enum class Pin : uint8_t { kAuto, kOn, kOff };
enum class Registration : uint8_t { kNone = 0, kRegister = 1, kSymmetric = 2 };
enum class Average : uint8_t { kRankZero = 0, kMean = 1, kMin = 2, kMax = 3 };

struct Options {
  int thread_count = 1;
  bool thread_count_given = false;
  int process_count = 0;  // --ranks; 0: a launcher's, or the default
  size_t bytes_min = 32u << 20;
  size_t bytes_max = 32u << 20;
  size_t step_bytes = 1u << 20;
  double step_factor = 0;  // 0: step_bytes
  int64_t iterations = 0;  // 0: at least 20 and as many as fill kAutoTime
  int aggregate = 1;
  int warmup = 1;
  int cycles = 1;  // 0: for ever
  int checks = 1;
  std::vector<Reduction> ops;
  std::vector<const ElementType*> types;
  int root = 0;  // -1: all
  bool blocking = true;
  int64_t timeout_s = 0;  // 0: the library's default
  bool report_cpu_time = false;
  bool timestamps = false;
  bool per_iteration = false;
  Average average = Average::kMean;
  Registration registration = Registration::kNone;
  bool unaligned = false;
  Pin pin = Pin::kAuto;
  bool fixed_buffers = false;
  size_t cache_bytes = 0;  // 0: as the machine reports
  std::string json_file;
  std::string csv_file;
  std::string plot_file;
  std::vector<std::string> notes;  // options that were accepted but have no effect; printed once
  std::string command_line;
  int corrupt_rank = -1;  // test hook: this rank damages one received element before each check
};

// "8", "64K", "32M", "1G", "1.5M"; powers of 1024. False if the text has another form or the number
// overflows.
bool parse_bytes(const std::string& text, size_t* bytes);
std::string format_bytes(size_t bytes);  // "64K" if it is a whole number of a unit, else "100"

enum class ParseResult : uint8_t { kRun, kExitOk, kExitUsage };
// Prints help to stdout and errors to stderr.
ParseResult parse_options(int argc, char** argv, const Operation& operation, Options* options);

// The sizes of the sweep, ascending.
std::vector<size_t> sweep_sizes(const Options& options);

}  // namespace weir::perf
