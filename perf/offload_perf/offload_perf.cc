// SPDX-License-Identifier: Apache-2.0
// offload_perf: the speed of an optimizer whose state is on drives, compared with the bandwidth of
// the same drives for the same mix of reads and writes. A round is a few steps between two probes;
// its ratio compares the steps' bytes per second, everything included (the check for overflow,
// sync, commit), with the mean of the two.
#include <fmt/format.h>

#include <cstdio>
#include <exception>

#include "output/run_tool.h"
#include "perf/harness/run.h"
#include "perf/offload_perf/figures.h"
#include "perf/offload_perf/mix_probe.h"
#include "perf/offload_perf/scratch.h"
#include "perf/offload_perf/trial.h"

namespace weir::perf {
namespace {

constexpr uint64_t kProbeFileBytesMax = uint64_t{4} << 30;

MixRates mean(const MixRates& a, const MixRates& b) {
  return {(a.read_bytes_per_s + b.read_bytes_per_s) / 2,
          (a.write_bytes_per_s + b.write_bytes_per_s) / 2};
}

double read_share_of(const std::vector<weir_step_report_t>& steps) {
  const RoundFigures round{steps, std::nullopt};
  const auto read = static_cast<double>(round.read_bytes());
  const double all = read + static_cast<double>(round.written_bytes());
  return all > 0 ? read / all : 0.5;
}

class Run {
 public:
  Run(const OffloadOptions& options, const Scratch& scratch)
      : options_(options), scratch_(scratch), figures_(options) {}

  Status measure();
  // Called after measure.
  Result<bool> check();
  void finish_table() { figures_.print_footer(); }
  std::string write_files() const { return figures_.write_files(); }

 private:
  Status prepare();
  Result<std::vector<weir_step_report_t>> round(int number);
  bool probes() const { return probe_ != nullptr; }

  const OffloadOptions& options_;
  const Scratch& scratch_;
  Figures figures_;
  std::unique_ptr<MixProbe> probe_;
  std::unique_ptr<Trial> trial_;
};

Status Run::prepare() {
  figures_.progress("making the optimizer …");
  auto trial = Trial::create(options_, scratch_.directories());
  if (!trial.ok()) return trial.status();
  trial_ = trial.take();
  const auto memory_bytes = trial_->memory_bytes();
  if (!memory_bytes.ok()) return memory_bytes.status();
  std::string description = trial_->describe();
  if (!scratch_.directories().empty() && options_.probe_ms > 0) {
    auto probe = MixProbe::create(scratch_.directories(), kProbeFileBytesMax);
    if (!probe.ok()) return probe.status();
    probe_ = probe.take();
    description += "\nprobe: " + probe_->describe();
  }
  figures_.progress("");
  figures_.set_place(description, memory_bytes.value());
  figures_.print_header();
  return Status();
}

Result<std::vector<weir_step_report_t>> Run::round(int number) {
  std::vector<weir_step_report_t> steps;
  for (int i = 0; i < options_.step_count; ++i) {
    figures_.progress(fmt::format("round {} of {}, step {} of {}", number, options_.round_count,
                                  i + 1, options_.step_count));
    weir_step_report_t report;
    WEIR_RETURN_IF_ERROR(trial_->step(&report));
    figures_.progress("");
    figures_.add_step(number, report);
    steps.push_back(report);
  }
  return steps;
}

Status Run::measure() {
  WEIR_RETURN_IF_ERROR(prepare());
  std::vector<weir_step_report_t> last;
  for (int i = 0; i < options_.warmup_round_count; ++i) {
    auto steps = round(0);
    if (!steps.ok()) return steps.status();
    last = steps.take();
  }
  std::optional<MixRates> before;
  for (int number = 1; number <= options_.round_count; ++number) {
    // The first probe has no round from which to take the mix and uses half and half.
    if (probes() && !before.has_value()) {
      figures_.progress("probe …");
      const auto rates = probe_->run(read_share_of(last), options_.probe_ms);
      if (!rates.ok()) return rates.status();
      before = rates.value();
      figures_.progress("");
    }
    auto steps = round(number);
    if (!steps.ok()) return steps.status();
    last = steps.take();
    std::optional<MixRates> around;
    if (probes()) {
      figures_.progress("probe …");
      const auto rates = probe_->run(read_share_of(last), options_.probe_ms);
      if (!rates.ok()) return rates.status();
      around = mean(*before, rates.value());
      before = rates.value();
      figures_.progress("");
    }
    figures_.end_round(around);
  }
  return Status();
}

Result<bool> Run::check() {
  figures_.progress("the same steps in memory …");
  auto in_memory = Trial::create(options_, {});
  if (!in_memory.ok()) return in_memory.status();
  const int steps = options_.step_count * (options_.round_count + options_.warmup_round_count);
  for (int i = 0; i < steps; ++i) {
    weir_step_report_t report;
    WEIR_RETURN_IF_ERROR(in_memory.value()->step(&report));
  }
  auto same = trial_->has_parameters_of(*in_memory.value());
  figures_.progress("");
  if (same.ok()) figures_.set_check(same.value());
  return same;
}

int fail(const std::string& text) {
  fmt::print(stderr, "offload_perf: {}\n", text);
  return kExitError;
}

int run(const OffloadOptions& options) {
  Scratch scratch;
  std::string problem = scratch.create(options.directories);
  if (!problem.empty()) return fail(problem);
  int exit_status = kExitOk;
  {
    Run run(options, scratch);
    const Status status = run.measure();
    if (!status.ok()) return fail(status.text());
    if (options.check) {
      const auto same = run.check();
      if (!same.ok()) return fail(same.status().text());
      if (!same.value()) exit_status = kExitWrong;
    }
    run.finish_table();
    problem = run.write_files();
    if (!problem.empty()) return fail(problem);
  }
  problem = scratch.remove();
  return problem.empty() ? exit_status : fail(problem);
}

}  // namespace
}  // namespace weir::perf

namespace {

int run_arguments(int argc, char** argv) {
  weir::perf::OffloadOptions options;
  switch (weir::perf::parse_offload_options(argc, argv, &options)) {
    case weir::perf::ParseResult::kExitOk:
      return weir::perf::kExitOk;
    case weir::perf::ParseResult::kExitUsage:
      return weir::perf::kExitUsage;
    case weir::perf::ParseResult::kRun:
      break;
  }
  try {
    return weir::perf::run(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "offload_perf: {}\n", error.what());
    return weir::perf::kExitError;
  }
}

}  // namespace

int main(int argc, char** argv) {
  return weir::output::run_tool("offload_perf", run_arguments, argc, argv);
}
