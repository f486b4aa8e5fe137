// SPDX-License-Identifier: Apache-2.0
#include "perf/harness/report.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "perf/harness/plot.h"

namespace weir::perf {
namespace {

// As many decimals as fit `width` with two spare blanks, as in nccl-tests.
std::string fit(double value, int width) {
  int digits = 1;
  for (double limit = 10; value >= limit && digits < width; limit *= 10) ++digits;
  const int decimals = std::clamp(width - 2 - digits, 0, 2);
  return fmt::format("{:>{}.{}f}", value, width, decimals);
}

std::string measurement_columns(const std::optional<Measurement>& m, bool per_iteration) {
  std::string line;
  if (m.has_value()) {
    line =
        fmt::format("  {}  {}  {}  {:>6}", fit(m->time_us, 7), fit(m->algorithm_gbs, 6),
                    fit(m->bus_gbs, 6), m->wrong.has_value() ? fmt::to_string(*m->wrong) : "N/A");
  } else {
    line = fmt::format("  {:>7}  {:>6}  {:>6}  {:>6}", "N/A", "N/A", "N/A", "N/A");
  }
  if (!per_iteration) return line;
  if (!m.has_value() || !m->stats.has_value()) {
    return line + fmt::format("  {:>7}  {:>7}  {:>7}  {:>5}", "N/A", "N/A", "N/A", "N/A");
  }
  const IterationStats& s = *m->stats;
  const double variation = s.mean_us > 0 ? 100 * s.deviation_us / s.mean_us : 0;
  return line + fmt::format("  {}  {}  {}  {}", fit(s.min_us, 7), fit(s.max_us, 7),
                            fit(s.p99_us, 7), fit(variation, 5));
}

nlohmann::json measurement_json(const std::optional<Measurement>& m, bool cpu_time) {
  if (!m.has_value()) return nullptr;
  nlohmann::json j;
  j[cpu_time ? "cpu_time" : "time"] = m->time_us;
  j["time_min"] = m->time_us_min;
  j["time_max"] = m->time_us_max;
  j["alg_bw"] = m->algorithm_gbs;
  j["bus_bw"] = m->bus_gbs;
  j["nwrong"] = m->wrong.has_value() ? nlohmann::json(*m->wrong) : nlohmann::json();
  j["iterations"] = m->iterations;
  if (m->stats.has_value()) {
    const IterationStats& s = *m->stats;
    j["per_iter"] = {{"min_us", s.min_us},        {"max_us", s.max_us}, {"avg_us", s.mean_us},
                     {"p50_us", s.p50_us},        {"p95_us", s.p95_us}, {"p99_us", s.p99_us},
                     {"stdev_us", s.deviation_us}};
  }
  return j;
}

// Writes a new file next to it and renames it: a reader never sees half a file.
std::string write_file(const std::string& path, const std::string& text) {
  const std::string unfinished = path + ".part";
  {
    std::ofstream file(unfinished, std::ios::trunc);
    file << text;
    file.flush();
    if (!file) {
      return fmt::format("cannot write {}: check that the folder exists and is writable", path);
    }
  }
  if (std::rename(unfinished.c_str(), path.c_str()) != 0) {
    return fmt::format("cannot rename {} to {}", unfinished, path);
  }
  return {};
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

const char* registration_name(Registration registration) {
  switch (registration) {
    case Registration::kNone:
      return "ordinary";
    case Registration::kRegister:
      return "registered";
    case Registration::kSymmetric:
      return "symmetric";
  }
  return "?";
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
  const std::string step = o.step_factor > 1 ? fmt::format("{}(factor)", o.step_factor)
                                             : fmt::format("{}(bytes)", o.step_bytes);
  fmt::print("# {} Weir {}.{}.{}\n", info_.program, weir_version() / 10000,
             weir_version() / 100 % 100, weir_version() % 100);
  fmt::print(
      "# nThread {} nRanks {} minBytes {} maxBytes {} step: {} warmup iters: {} iters: {} agg "
      "iters: "
      "{} validation: {} graph: 0\n",
      o.thread_count, info_.rank_count, o.bytes_min, o.bytes_max, step, o.warmup,
      o.iterations == 0 ? "auto" : fmt::to_string(o.iterations), o.aggregate, o.checks);
  fmt::print("# time: {} over ranks{}; buffers: {}, {}{}\n", average_name(o.average),
             o.report_cpu_time ? ", processor time" : "", registration_name(o.registration),
             o.fixed_buffers ? std::string("fixed")
                             : fmt::format("rotating over twice the last-level cache of {}",
                                           format_bytes(info_.cache_bytes)),
             o.unaligned ? ", unaligned" : "");
  fmt::print("#\n# Using devices\n");
  for (const RankInfo& rank : info_.ranks) {
    fmt::print("#  Rank {:>2} Group  0 Pid {:>6} on {:>10} {} {}\n", rank.rank, rank.pid, rank.host,
               rank.cpu < 0 ? "not pinned" : fmt::format("cpu {:>2}", rank.cpu),
               info_.machine.processor);
  }
  for (const std::string& note : o.notes) fmt::print("# note: {}\n", note);

  const int extra = o.per_iteration ? 35 : 0;
  const std::string more = o.per_iteration ? "      min      max      p99     cv" : "";
  const std::string units = o.per_iteration ? "     (us)     (us)     (us)    (%)" : "";
  fmt::print("#\n#{:61} {:^34}{:{}}{:^34}\n", "", "out-of-place", "", extra, "in-place");
  fmt::print(
      "#{:>11}  {:>12}  {:>8}  {:>6}  {:>6}  {:>7}  {:>6}  {:>6}  {:>6}{}  {:>7}  {:>6}  {:>6}  "
      "{:>6}{}\n",
      "size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong", more, "time",
      "algbw", "busbw", "#wrong", more);
  fmt::print(
      "#{:>11}  {:>12}  {:>8}  {:>6}  {:>6}  {:>7}  {:>6}  {:>6}  {:>6}{}  {:>7}  {:>6}  {:>6}  "
      "{:>6}{}\n",
      "(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", units, "(us)", "(GB/s)",
      "(GB/s)", "", units);
  std::fflush(stdout);
}

void Report::add(const Row& row) {
  progress("");
  rows_.push_back(row);
  for (const auto* m : {&row.out_of_place, &row.in_place}) {
    if (m->has_value() && (*m)->wrong.has_value()) wrong_total_ += *(*m)->wrong;
  }
  fmt::print("{:>12}  {:>12}  {:>8}  {:>6}  {:>6}{}{}{}\n", row.bytes, row.count, row.type->name,
             reduction_name(row.reduction), row.root,
             measurement_columns(row.out_of_place, options_.per_iteration),
             measurement_columns(row.in_place, options_.per_iteration),
             options_.timestamps ? "  " + timestamp() : "");
  std::fflush(stdout);
}

double Report::average_bus_gbs() const {
  double sum = 0;
  int count = 0;
  for (const Row& row : rows_) {
    for (const auto* m : {&row.out_of_place, &row.in_place}) {
      if (!m->has_value()) continue;
      sum += (*m)->bus_gbs;
      ++count;
    }
  }
  return count == 0 ? 0 : sum / count;
}

void Report::print_footer() const {
  fmt::print("# Out of bounds values : {} {}\n", wrong_total_, wrong_total_ == 0 ? "OK" : "FAILED");
  fmt::print("# Avg bus bandwidth    : {:g}\n#\n", average_bus_gbs());
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
  nlohmann::json j;
  j["version"] = 1;
  j["program"] = info_.program;
  j["weir_version"] = weir_version();
  j["start_time"] = start_time_;
  j["end_time"] = timestamp();
  j["args"] = o.command_line;
  const Machine& machine = info_.machine;
  j["machine"] = {{"host", machine.host},
                  {"processor", machine.processor},
                  {"kernel", machine.kernel},
                  {"cpus", machine.cpus},
                  {"last_level_cache_bytes", machine.last_level_cache_bytes}};
  j["config"] = {{"rank_count", info_.rank_count},
                 {"process_count", info_.process_count},
                 {"nthreads", o.thread_count},
                 {"launch", info_.launch},
                 {"minbytes", o.bytes_min},
                 {"maxbytes", o.bytes_max},
                 {"stepbytes", o.step_bytes},
                 {"stepfactor", o.step_factor},
                 {"iters", o.iterations},
                 {"agg_iters", o.aggregate},
                 {"warmup_iters", o.warmup},
                 {"check", o.checks},
                 {"blocking", o.blocking},
                 {"average", average_name(o.average)},
                 {"buffers", registration_name(o.registration)},
                 {"fixed_buffers", o.fixed_buffers},
                 {"unaligned", o.unaligned},
                 {"cache_bytes", info_.cache_bytes}};
  for (const RankInfo& rank : info_.ranks) {
    j["ranks"].push_back({{"rank", rank.rank},
                          {"process", rank.process},
                          {"pid", rank.pid},
                          {"host", rank.host},
                          {"cpu", rank.cpu < 0 ? nlohmann::json() : nlohmann::json(rank.cpu)}});
  }
  j["results"] = nlohmann::json::array();
  for (const Row& row : rows_) {
    j["results"].push_back({{"size", row.bytes},
                            {"count", row.count},
                            {"type", row.type->name},
                            {"redop", reduction_name(row.reduction)},
                            {"root", row.root},
                            {"buffer_sets", row.slot_count},
                            {"out_of_place", measurement_json(row.out_of_place, o.report_cpu_time)},
                            {"in_place", measurement_json(row.in_place, o.report_cpu_time)}});
  }
  j["out_of_bounds"] = {{"count", wrong_total_}, {"okay", wrong_total_ == 0}};
  j["average_bus_bandwidth"] = average_bus_gbs();
  return j.dump(1) + "\n";
}

std::string Report::csv() const {
  std::string text =
      "size_bytes,count,type,redop,root,oop_time_us,oop_algbw_gbs,oop_busbw_gbs,oop_wrong,"
      "ip_time_us,ip_algbw_gbs,ip_busbw_gbs,ip_wrong\n";
  for (const Row& row : rows_) {
    text += fmt::format("{},{},{},{},{}", row.bytes, row.count, row.type->name,
                        reduction_name(row.reduction), row.root);
    for (const auto* m : {&row.out_of_place, &row.in_place}) {
      if (!m->has_value()) {
        text += ",,,,";
        continue;
      }
      text +=
          fmt::format(",{:.6g},{:.6g},{:.6g},", (*m)->time_us, (*m)->algorithm_gbs, (*m)->bus_gbs);
      if ((*m)->wrong.has_value()) text += fmt::to_string(*(*m)->wrong);
    }
    text += '\n';
  }
  return text;
}

std::string Report::write_files() const {
  if (!options_.json_file.empty()) {
    if (std::string e = write_file(options_.json_file, json()); !e.empty()) return e;
  }
  if (!options_.csv_file.empty()) {
    if (std::string e = write_file(options_.csv_file, csv()); !e.empty()) return e;
  }
  if (!options_.plot_file.empty()) {
    if (std::string e = write_file(options_.plot_file, plot_svg(*this)); !e.empty()) return e;
  }
  return {};
}

}  // namespace weir::perf
