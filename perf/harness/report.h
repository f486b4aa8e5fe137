// SPDX-License-Identifier: Apache-2.0
// Results of a run and their output: the table on stdout (nccl-tests' columns), JSON, CSV. Only
// rank 0 has a report. Not thread-safe.
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
};
IterationStats iteration_stats(std::vector<double> times_us);

struct Measurement {
  double time_us = 0;  // per operation, over ranks as -a says
  double time_us_min = 0;
  double time_us_max = 0;
  double algorithm_gbs = 0;
  double bus_gbs = 0;
  std::optional<uint64_t> wrong;  // nothing: not checked
  int64_t iterations = 0;
  std::optional<IterationStats> stats;
};

struct Row {
  size_t bytes = 0;
  size_t count = 0;
  const ElementType* type = nullptr;
  Reduction reduction = Reduction::kNone;
  int root = -1;
  size_t slot_count = 0;
  std::optional<Measurement> out_of_place;
  std::optional<Measurement> in_place;  // nothing: the operation has none
};

struct RankInfo {
  int rank = 0;
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
  std::vector<RankInfo> ranks;
  Machine machine;
};

class Report {
 public:
  Report(const Options& options, RunInfo info);

  void print_header() const;
  // Adds the row and prints its line.
  void add(const Row& row);
  void print_footer() const;

  // Shows the present activity on stderr when that is a terminal; "" clears it.
  void progress(const std::string& text);

  uint64_t wrong_total() const { return wrong_total_; }
  const std::vector<Row>& rows() const { return rows_; }
  const RunInfo& info() const { return info_; }
  double average_bus_gbs() const;

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
  bool shows_progress_;
  size_t progress_length_ = 0;
};

}  // namespace weir::perf
