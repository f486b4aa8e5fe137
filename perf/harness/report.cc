// SPDX-License-Identifier: Apache-2.0
#include "perf/harness/report.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string_view>

#include "output/output_file.h"
#include "perf/harness/plot.h"

namespace weir::perf {
namespace {

constexpr int kJsonVersion = 3;  // of nccl-tests' format

// With two decimals, or fewer if the column is too narrow. Never with an exponent, which many
// parsers do not expect; a number that is still too long makes its line longer.
std::string fit(double value, size_t width) {
  for (const int decimals : {2, 1}) {
    std::string text = fmt::format("{:{}.{}f}", value, width, decimals);
    if (text.size() <= width) return text;
  }
  return fmt::format("{:{}.0f}", value, width);
}

// Six digits, without an exponent.
std::string plain(double value) {
  return value == 0 || (value >= 1e-4 && value < 1e6) ? fmt::format("{:.6g}", value)
                                                      : fmt::format("{:.6f}", value);
}

std::string amount(double bytes) {
  const char* units[] = {"B", "KB", "MB", "GB"};
  size_t unit = 0;
  for (; unit < 3 && bytes >= 1024; ++unit) bytes /= 1024;
  return fmt::format("{:.{}f} {}", bytes, bytes < 10 ? 2 : bytes < 100 ? 1 : 0, units[unit]);
}

std::string measurement_columns(const Measurement& m, const Options& options) {
  std::string line = fmt::format("  {}  {}  {}  {:>6}",
                                 fit(options.report_cpu_time ? m.cpu_time_us : m.time_us, 7),
                                 fit(m.algorithm_gbs, 6), fit(m.bus_gbs, 6),
                                 m.wrong.has_value() ? fmt::to_string(*m.wrong) : "N/A");
  if (m.each.has_value()) {
    const IterationStats& s = m.each->stats;
    line += fmt::format("  {}  {}  {}  {}", fit(s.min_us, 7), fit(s.max_us, 7), fit(s.p99_us, 7),
                        fit(s.variation_percent(), 7));
  }
  return line;
}

using Json = nlohmann::ordered_json;

// nccl-tests writes truth values as texts.
const char* truth(bool value) { return value ? "true" : "false"; }

Json measurement_json(const Measurement& m, const Options& options) {
  Json j;
  if (options.report_cpu_time) j["cpu_time"] = m.cpu_time_us;
  j["time"] = m.time_us;
  j["alg_bw"] = m.algorithm_gbs;
  j["bus_bw"] = m.bus_gbs;
  j["nwrong"] = m.wrong.has_value() ? Json(*m.wrong) : Json();
  j["time_min"] = m.time_us_min;
  j["time_max"] = m.time_us_max;
  j["iterations"] = m.iterations;
  return j;
}

Json iterations_json(const IterationTimes& each, int64_t skipped) {
  const IterationStats& s = each.stats;
  Json j = {{"skipped_iterations", skipped},
            {"min_us", s.min_us},
            {"max_us", s.max_us},
            {"avg_us", s.mean_us},
            {"p50_us", s.p50_us},
            {"p95_us", s.p95_us},
            {"p99_us", s.p99_us},
            {"stdev_us", s.deviation_us},
            {"cv_pct", s.variation_percent()},
            {"times_us", each.times_us}};
  if (each.process_times_us.size() > 1) j["per_process_max_times_us"] = each.process_times_us;
  return j;
}

// The variables that can change what is measured, and no others: a file of results is passed on.
std::vector<std::string> environment() {
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (!text.starts_with("WEIR_") && !text.starts_with("NCCL_")) continue;
    if (!text.starts_with("WEIR_SECRET")) entries.emplace_back(text);
  }
  return entries;
}

const char* average_name(Average average) {
  switch (average) {
    case Average::kRankZero:
      return "rank 0";
    case Average::kMean:
      return "average";
    case Average::kMin:
      return "minimum";
    case Average::kMax:
      return "maximum";
  }
  return "?";
}

const char* blocking_name(Blocking blocking) {
  switch (blocking) {
    case Blocking::kRequests:
      return "requests, up to 8 in flight";
    case Blocking::kBarrier:
      return "blocking, a barrier after each";
    case Blocking::kCalls:
      return "blocking";
    case Blocking::kBarrierOutside:
      return "blocking, a barrier after each iteration that is not timed";
  }
  return "?";
}

const char* registration_name(Registration registration) {
  switch (registration) {
    case Registration::kNone:
      return "ordinary";
    case Registration::kRegister:
      return "registered";
    case Registration::kSymmetric:
      return "symmetric";
    case Registration::kArena:
      return "arena";
    case Registration::kBesideArena:
      return "ordinary, beside an arena";
  }
  return "?";
}

// Where a GPU would be named.
std::string cpu_text(const RankInfo& rank) {
  return rank.cpu < 0 ? "not pinned" : fmt::format("cpu {}", rank.cpu);
}

}  // namespace

IterationStats iteration_stats(std::vector<double> times_us) {
  IterationStats stats;
  if (times_us.empty()) return stats;
  std::sort(times_us.begin(), times_us.end());
  const size_t n = times_us.size();
  const auto percentile = [&](size_t percent) {
    return times_us[std::min(n - 1, (n * percent + 99) / 100 - 1)];
  };
  stats.min_us = times_us.front();
  stats.max_us = times_us.back();
  stats.p50_us = percentile(50);
  stats.p95_us = percentile(95);
  stats.p99_us = percentile(99);
  double sum = 0;
  for (const double t : times_us) sum += t;
  stats.mean_us = sum / static_cast<double>(n);
  double squares = 0;
  for (const double t : times_us) squares += (t - stats.mean_us) * (t - stats.mean_us);
  stats.deviation_us = std::sqrt(squares / static_cast<double>(n));
  return stats;
}

Report::Report(const Options& options, RunInfo info)
    : options_(options),
      info_(std::move(info)),
      start_time_(timestamp()),
      shows_progress_(isatty(STDERR_FILENO) != 0) {}

void Report::print_header() const {
  const Options& o = options_;
  const RunInfo& run = info_;
  const std::string step = o.step_factor > 1 ? fmt::format("{}(factor)", o.step_factor)
                                             : fmt::format("{}(bytes)", o.step_bytes);
  if (!o.json_file.empty()) fmt::print("# Writing JSON output to {}\n", o.json_file);
  fmt::print("# {} Weir {}.{}.{}\n", run.program, weir_version() / 10000,
             weir_version() / 100 % 100, weir_version() % 100);
  fmt::print("# Collective test starting: {}\n", run.program);
  fmt::print(
      "# nThread {} nGpus {} minBytes {} maxBytes {} step: {} warmup iters: {} iters: {} agg "
      "iters: {} validation: {} graph: 0 unalign: {}\n",
      o.thread_count, o.ranks_per_thread, o.bytes_min, run.bytes_max, step, o.warmup,
      o.iterations == 0 ? fmt::format("{}+", kAutoIterationsMin) : fmt::to_string(o.iterations),
      o.aggregate, o.checks, o.unaligned_elements);
  fmt::print("# nRanks {} processes {} started by {}\n", run.rank_count, run.process_count,
             run.launch);
  fmt::print("# time: {} over ranks; calls: {}; buffers: {}, {}\n", average_name(o.average),
             blocking_name(o.blocking), registration_name(o.registration),
             o.fixed_buffers ? std::string("fixed")
                             : fmt::format("rotating over twice the last-level cache of {}",
                                           format_bytes(run.cache_bytes)));
  fmt::print("#\n# Using devices\n");
  for (const RankInfo& rank : run.ranks) {
    fmt::print("#  Rank {:>2} Group {:>2} Pid {:>6} on {:>10} device {:>2} [{}] {}\n", rank.rank,
               rank.group, rank.pid, rank.host, rank.local_rank, cpu_text(rank),
               run.machine.processor);
  }
  for (const std::string& note : o.notes) fmt::print("# note: {}\n", note);
  if (run.bytes_max < o.bytes_max) {
    fmt::print("#\n# Reducing maxBytes to {} due to memory limitation\n", run.bytes_max);
  }

  using Words = std::array<const char*, 8>;
  const auto columns = [&o](const Words& words) {
    constexpr std::array<int, 8> kWidths = {7, 6, 6, 6, 7, 7, 7, 7};
    std::string text;
    for (size_t i = 0; i < (o.per_iteration ? 8u : 4u); ++i) {
      text += fmt::format("  {:>{}}", words[i], kWidths[i]);
    }
    return text;
  };
  const std::string names = columns({o.report_cpu_time ? "cputime" : "time", "algbw", "busbw",
                                     "#wrong", "i_min", "i_max", "i_p99", "i_cv%"});
  const std::string units =
      columns({"(us)", "(GB/s)", "(GB/s)", "", "(us)", "(us)", "(us)", "(%)"});
  const auto line = [](const char* size, const char* count, const char* type, const char* redop,
                       const char* root, const std::string& rest) {
    fmt::print("# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}{}\n", size, count, type, redop, root, rest);
  };
  const char* more = o.per_iteration ? " (+ per-iteration)" : "";
  fmt::print("#\n");
  line("", "", "", "", "",
       fmt::format("{0:^{2}}{1:^{2}}", fmt::format("out-of-place{}", more),
                   fmt::format("in-place{}", more), names.size()));
  line("size", "count", "type", "redop", "root",
       names + names + (o.timestamps ? fmt::format("  {:>19}", "timestamp") : ""));
  line("(B)", "(elements)", "", "", "",
       units + units + (o.timestamps ? "  %Y-%m-%d %H:%M:%S" : ""));
  std::fflush(stdout);
}

void Report::add(const Row& row) {
  progress("");
  rows_.push_back(row);
  for (const Measurement* m : {&row.out_of_place, &row.in_place}) {
    wrong_total_ += m->wrong.value_or(0);
  }
  fmt::print(
      "{:>12}  {:>12}  {:>8}  {:>6}  {:>6}{}{}{}\n", row.bytes, row.count, row.type->name,
      reduction_name(row.reduction), row.root, measurement_columns(row.out_of_place, options_),
      measurement_columns(row.in_place, options_), options_.timestamps ? "  " + timestamp() : "");
  std::fflush(stdout);
}

double Report::average_bus_gbs() const {
  double sum = 0;
  for (const Row& row : rows_) sum += row.out_of_place.bus_gbs + row.in_place.bus_gbs;
  return rows_.empty() ? 0 : sum / (2 * static_cast<double>(rows_.size()));
}

bool Report::bandwidth_suffices() const {
  return average_bus_gbs() >= 0.9 * options_.bus_gbs_wanted;
}

void Report::print_footer() const {
  const char* verdict = "";
  if (options_.bus_gbs_wanted > 0) verdict = bandwidth_suffices() ? " OK" : " FAILED";
  fmt::print("# Out of bounds values : {} {}\n", wrong_total_, wrong_total_ == 0 ? "OK" : "FAILED");
  fmt::print("# Avg bus bandwidth    : {}{}\n#\n", plain(average_bus_gbs()), verdict);
  fmt::print("# Collective test concluded: {}\n", info_.program);
  if (memory_.has_value()) {
    const MemoryUse& m = *memory_;
    fmt::print(
        "# Host memory usage    : Initialization {} | User-Allocated {} | Collective {} | Total "
        "{}\n",
        amount(m.start_bytes), amount(m.buffer_bytes), amount(m.running_bytes),
        amount(m.start_bytes + m.buffer_bytes + m.running_bytes));
  }
  fmt::print("#\n");
  std::fflush(stdout);
}

void Report::progress(const std::string& text) {
  if (!shows_progress_ || (text.empty() && progress_length_ == 0)) return;
  fmt::print(stderr, "\r{:<{}}", text, progress_length_);
  if (text.empty()) fmt::print(stderr, "\r");
  progress_length_ = text.size();
  std::fflush(stderr);
}

std::string Report::json() const {
  const Options& o = options_;
  const Machine& machine = info_.machine;
  Json j;
  j["version"] = kJsonVersion;
  j["start_time"] = start_time_;
  j["args"] = o.arguments;
  j["env"] = environment();
  j["nccl_version"] = 0;  // no NCCL takes part
  j["weir_version"] = weir_version();
  j["program"] = info_.program;
  j["machine"] = {{"host", machine.host},
                  {"processor", machine.processor},
                  {"kernel", machine.kernel},
                  {"cpus", machine.cpus},
                  {"last_level_cache_bytes", machine.last_level_cache_bytes}};
  Json& config = j["config"];
  config["nthreads"] = o.thread_count;
  config["ngpus"] = o.ranks_per_thread;
  config["minimum_bytes"] = o.bytes_min;
  config["maximum_bytes"] = info_.bytes_max;
  if (o.step_factor > 1) {
    config["step_factor"] = o.step_factor;
  } else {
    config["step_bytes"] = o.step_bytes;
  }
  config["warmup_iters"] = o.warmup;
  config["iterations"] = o.iterations > 0 ? o.iterations : kAutoIterationsMin;
  config["aggregated_iterations"] = o.aggregate;
  config["validation"] = o.checks;
  config["graph"] = 0;
  config["blocking_collectives"] = truth(o.blocking != Blocking::kRequests);
  config["per_iter_timing"] = truth(o.per_iteration);
  config["per_iter_skip"] = o.per_iteration_skip;
  config["parallel_init"] = truth(o.parallel_init);
  config["devices"] = Json::array();
  for (const RankInfo& rank : info_.ranks) {
    config["devices"].push_back({{"rank", rank.rank},
                                 {"group", rank.group},
                                 {"pid", rank.pid},
                                 {"hostname", rank.host},
                                 {"device", rank.local_rank},
                                 {"device_hex", cpu_text(rank)},
                                 {"device_info", machine.processor},
                                 {"process", rank.process}});
  }
  config["rank_count"] = info_.rank_count;
  config["process_count"] = info_.process_count;
  config["launch"] = info_.launch;
  config["iterations_auto"] = o.iterations == 0;
  config["blocking"] = static_cast<int>(o.blocking);
  config["average"] = average_name(o.average);
  config["buffers"] = registration_name(o.registration);
  config["fixed_buffers"] = o.fixed_buffers;
  config["unaligned_elements"] = o.unaligned_elements;
  config["cache_bytes"] = info_.cache_bytes;

  j["results"] = Json::array();
  for (const Row& row : rows_) {
    Json r = {{"size", row.bytes},
              {"count", row.count},
              {"type", row.type->name},
              {"redop", reduction_name(row.reduction)},
              {"root", fmt::format("{:>6}", row.root)},
              {"out_of_place", measurement_json(row.out_of_place, o)}};
    if (row.out_of_place.each.has_value()) {
      r["out_of_place_per_iter"] = iterations_json(*row.out_of_place.each, o.per_iteration_skip);
    }
    r["in_place"] = measurement_json(row.in_place, o);
    if (row.in_place.each.has_value()) {
      r["in_place_per_iter"] = iterations_json(*row.in_place.each, o.per_iteration_skip);
    }
    r["actual_iterations"] = row.out_of_place.iterations;
    r["experiment_name"] = "";
    r["buffer_sets"] = row.slot_count;
    j["results"].push_back(std::move(r));
  }
  j["out_of_bounds"] = {{"count", wrong_total_}, {"okay", truth(wrong_total_ == 0)}};
  j["average_bus_bandwidth"] = {
      {"bandwidth", average_bus_gbs()},
      {"okay", o.bus_gbs_wanted > 0 ? truth(bandwidth_suffices()) : "unchecked"}};
  j["errors"] = Json::array();
  j["end_time"] = timestamp();
  return j.dump(1) + "\n";
}

std::string Report::csv() const {
  std::string text =
      "size_bytes,count,type,redop,root,oop_time_us,oop_algbw_gbs,oop_busbw_gbs,oop_wrong,"
      "ip_time_us,ip_algbw_gbs,ip_busbw_gbs,ip_wrong\n";
  for (const Row& row : rows_) {
    text += fmt::format("{},{},{},{},{}", row.bytes, row.count, row.type->name,
                        reduction_name(row.reduction), row.root);
    for (const Measurement* m : {&row.out_of_place, &row.in_place}) {
      text += fmt::format(",{:.6g},{:.6g},{:.6g},", m->time_us, m->algorithm_gbs, m->bus_gbs);
      if (m->wrong.has_value()) text += fmt::to_string(*m->wrong);
    }
    text += '\n';
  }
  return text;
}

std::string Report::write_files() const {
  if (!options_.json_file.empty()) {
    if (std::string e = output::write_file(options_.json_file, json()); !e.empty()) return e;
  }
  if (!options_.csv_file.empty()) {
    if (std::string e = output::write_file(options_.csv_file, csv()); !e.empty()) return e;
  }
  if (!options_.plot_file.empty()) {
    if (std::string e = output::write_file(options_.plot_file, plot_svg(*this)); !e.empty())
      return e;
  }
  return {};
}

}  // namespace weir::perf
