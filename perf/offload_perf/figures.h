// SPDX-License-Identifier: Apache-2.0
// The figures of a run and their output: the table on stdout, JSON, a picture. Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <weir/offload.h>

#include "perf/harness/machine.h"
#include "perf/offload_perf/mix_probe.h"
#include "perf/offload_perf/offload_options.h"

namespace weir::perf {

struct RoundFigures {
  std::vector<weir_step_report_t> steps;
  std::optional<MixRates> probe;  // mean of the probes before and after

  double seconds() const;
  uint64_t read_bytes() const;
  uint64_t written_bytes() const;
  double parameters_per_s() const;
  double bytes_per_s() const;  // both directions
  // The ratio of the steps' bytes per second to the probe's; nothing for state in memory.
  std::optional<double> ratio() const;
};

class Figures {
 public:
  explicit Figures(const OffloadOptions& options);

  // The optimizer's description of itself.
  void set_place(const std::string& description, uint64_t memory_bytes);
  void print_header() const;
  // Prints the round's line; rounds count from 1, 0 is the warm-up and not kept.
  void add_step(int round, const weir_step_report_t& report);
  void end_round(const std::optional<MixRates>& probe);
  void set_check(bool right) { check_ = right; }
  void print_footer() const;

  // Shows the present activity on stderr when that is a terminal; "" clears it.
  void progress(const std::string& text);

  // Writes the files that the options name. Returns "", or which file could not be written.
  std::string write_files() const;
  std::string json() const;
  std::string svg() const;

 private:
  const RoundFigures& best() const;
  double median_parameters_per_s() const;
  std::optional<double> median_ratio() const;

  const OffloadOptions& options_;
  Machine machine_ = describe_machine();
  std::string start_time_ = timestamp();
  std::string description_;
  uint64_t memory_bytes_ = 0;
  std::vector<weir_step_report_t> open_;  // of the round that has not ended
  std::vector<RoundFigures> rounds_;
  std::optional<bool> check_;
  bool shows_progress_;
  size_t progress_length_ = 0;
};

}  // namespace weir::perf
