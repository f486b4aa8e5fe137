// SPDX-License-Identifier: Apache-2.0
// The command line of the perf tools: nccl-tests' flags with nccl-tests' meaning where they make
// sense on a CPU, and a few additional ones. flags.cc has the table of the flags.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "perf/harness/element.h"
#include "perf/harness/operation.h"
#include "perf/harness/split.h"

namespace weir::perf {

enum class Pin : uint8_t { kAuto, kOn, kOff };
enum class Registration : uint8_t {
  kNone = 0,
  kRegister = 1,
  kSymmetric = 2,
  kArena = 3,        // at another offset on each rank
  kBesideArena = 4,  // ordinary, on a communicator that has an arena
};
enum class Average : uint8_t { kRankZero = 0, kMean = 1, kMin = 2, kMax = 3 };
// -z. kRequests: up to eight operations in flight. All others call and wait; kBarrier also waits
// for the other ranks, kBarrierOutside does so between iterations and does not time it.
enum class Blocking : uint8_t { kRequests = 0, kBarrier = 1, kCalls = 2, kBarrierOutside = 3 };

inline constexpr int64_t kAutoIterationsMin = 20;  // -n auto
inline constexpr int kRanksPerProcessMax = 1024;

struct Options {
  int thread_count = 1;      // -t
  int ranks_per_thread = 1;  // -g; each is a thread, since a thread can wait for one rank only
  bool ranks_given = false;  // -t or -g
  int process_count = 0;     // --ranks; 0: a launcher's, or the default
  size_t bytes_min = 32u << 20;
  size_t bytes_max = 32u << 20;
  size_t step_bytes = 1u << 20;
  double step_factor = 0;  // above 1; else step_bytes counts
  int64_t iterations = 0;  // 0: at least kAutoIterationsMin, and as many as fill a fixed time
  int aggregate = 1;
  int warmup = 1;
  int cycles = 1;  // 0: for ever
  int checks = 1;
  std::vector<Reduction> ops = {Reduction::kSum};
  std::vector<const ElementType*> types = {find_element_type("float")};
  int root = 0;  // -1: all
  Blocking blocking = Blocking::kCalls;
  int64_t timeout_s = 0;  // 0: the library's default
  bool report_cpu_time = false;
  bool timestamps = false;
  bool per_iteration = false;
  int64_t per_iteration_skip = 0;
  bool report_memory = false;
  bool parallel_init = false;  // only reported: it is always so
  Average average = Average::kMean;
  Registration registration = Registration::kNone;
  size_t unaligned_elements = 0;
  Pin pin = Pin::kAuto;
  bool fixed_buffers = false;
  size_t cache_bytes = 0;     // 0: as the machine reports
  double bus_gbs_wanted = 0;  // NCCL_TESTS_MIN_BW; 0: any
  Split split;                // NCCL_TESTS_SPLIT, NCCL_TESTS_SPLIT_MASK
  std::string json_file;
  std::string csv_file;
  std::string plot_file;
  std::vector<std::string> notes;  // options that were accepted but have no effect; printed once
  std::vector<std::string> arguments;
  int corrupt_rank = -1;  // test hook: this rank damages one received element before each check

  int ranks_per_process() const { return thread_count * ranks_per_thread; }
};

// "8", "64K", "32M", "1G", "1.5M"; powers of 1024. False if the text has another form or the number
// overflows.
bool parse_bytes(const std::string& text, size_t* bytes);
std::string format_bytes(size_t bytes);  // "64K" if it is a whole number of a unit, else "100"

enum class ParseResult : uint8_t { kRun, kExitOk, kExitUsage };
// Prints help to stdout and errors to stderr. Also reads the variables NCCL_TESTS_*.
ParseResult parse_options(int argc, char** argv, const Operation& operation, Options* options);

// The sizes of the sweep, ascending.
std::vector<size_t> sweep_sizes(const Options& options);

}  // namespace weir::perf
