// SPDX-License-Identifier: Apache-2.0
// Results of a run and their output: the table on stdout, JSON, CSV. Columns, lines and JSON keys
// are those of nccl-tests 2.19, so that programs that read its output read this one. Only rank 0
// has a report. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "perf/harness/machine.h"
#include "perf/harness/options.h"

namespace weir::perf {

// Of single iterations, microseconds; -I.
struct IterationStats {
  double min_us = 0;
  double max_us = 0;
  double mean_us = 0;
  double p50_us = 0;
  double p95_us = 0;
  double p99_us = 0;
  double deviation_us = 0;

  double variation_percent() const { return mean_us > 0 ? 100 * deviation_us / mean_us : 0; }
};
IterationStats iteration_stats(std::vector<double> times_us);

// Every iteration of one line; -I. Of the ranks together the slowest counts.
struct IterationTimes {
  IterationStats stats;                               // without those that -K skips
  std::vector<double> times_us;                       // of all ranks
  std::vector<std::vector<double>> process_times_us;  // of each process; only for JSON
};

struct Measurement {
  double time_us = 0;  // per operation, over ranks as -a says
  double time_us_min = 0;
  double time_us_max = 0;
  double cpu_time_us = 0;  // the processor time of the calling thread; with -C
  double algorithm_gbs = 0;
  double bus_gbs = 0;
  std::optional<uint64_t> wrong;  // nothing: not checked
  int64_t iterations = 0;
  std::optional<IterationTimes> each;
};

struct Row {
  size_t bytes = 0;
  size_t count = 0;
  const ElementType* type = nullptr;
  Reduction reduction = Reduction::kNone;
  int root = -1;
  size_t slot_count = 0;
  Measurement out_of_place;
  Measurement in_place;
};

struct RankInfo {
  int rank = 0;
  int group = 0;
  int local_rank = 0;  // among the ranks of its host
  int process = 0;
  int pid = 0;
  int cpu = -1;  // pinned to; -1: not pinned
  std::string host;
};

struct RunInfo {
  std::string program;
  int rank_count = 0;
  int process_count = 0;
  std::string launch;  // "--ranks", "threads", "Open MPI", …
  size_t cache_bytes = 0;
  size_t bytes_max = 0;  // below -e where memory is short
  std::vector<RankInfo> ranks;
  Machine machine;
};

// How much the resident memory of a process grew, the largest over all; -M.
struct MemoryUse {
  double start_bytes = 0;    // by the communicator
  double buffer_bytes = 0;   // by the buffers
  double running_bytes = 0;  // by the operations
};

class Report {
 public:
  Report(const Options& options, RunInfo info);

  void print_header() const;
  // Adds the row and prints its line.
  void add(const Row& row);
  void set_memory(const MemoryUse& memory) { memory_ = memory; }
  void print_footer() const;

  // Shows the present activity on stderr when that is a terminal; "" clears it.
  void progress(const std::string& text);

  uint64_t wrong_total() const { return wrong_total_; }
  const std::vector<Row>& rows() const { return rows_; }
  const RunInfo& info() const { return info_; }
  double average_bus_gbs() const;
  // False if the average is more than a tenth below what NCCL_TESTS_MIN_BW asks for.
  bool bandwidth_suffices() const;

  // Writes the files that the options name. Returns "", or which file could not be written and why.
  std::string write_files() const;
  std::string json() const;
  std::string csv() const;

 private:
  const Options& options_;
  RunInfo info_;
  std::string start_time_;
  std::vector<Row> rows_;
  uint64_t wrong_total_ = 0;
  std::optional<MemoryUse> memory_;
  bool shows_progress_;
  size_t progress_length_ = 0;
};

}  // namespace weir::perf
