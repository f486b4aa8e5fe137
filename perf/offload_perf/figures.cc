// SPDX-License-Identifier: Apache-2.0
#include "perf/offload_perf/figures.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "output/output_file.h"
#include "perf/harness/chart.h"

namespace weir::perf {
namespace {

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double rate(uint64_t bytes, double seconds) {
  return seconds > 0 ? static_cast<double>(bytes) / seconds : 0;
}

nlohmann::json step_json(const weir_step_report_t& r) {
  return {{"step", r.step},
          {"committed", r.committed != 0},
          {"skipped", r.skipped != 0},
          {"seconds", r.seconds},
          {"parameters_per_second", rate(r.parameter_count, r.seconds)},
          {"read_bytes", r.read_bytes},
          {"written_bytes", r.written_bytes},
          {"read_gbs", rate(r.read_bytes, r.seconds) * 1e-9},
          {"write_gbs", rate(r.written_bytes, r.seconds) * 1e-9},
          {"compute_hidden", r.compute_hidden},
          {"compute_seconds", r.compute_seconds},
          {"disk_wait_seconds", r.disk_wait_seconds},
          {"norm", r.norm}};
}

}  // namespace

double RoundFigures::seconds() const {
  double sum = 0;
  for (const weir_step_report_t& r : steps) sum += r.seconds;
  return sum;
}

uint64_t RoundFigures::read_bytes() const {
  uint64_t sum = 0;
  for (const weir_step_report_t& r : steps) sum += r.read_bytes;
  return sum;
}

uint64_t RoundFigures::written_bytes() const {
  uint64_t sum = 0;
  for (const weir_step_report_t& r : steps) sum += r.written_bytes;
  return sum;
}

double RoundFigures::parameters_per_s() const {
  uint64_t sum = 0;
  for (const weir_step_report_t& r : steps) sum += r.parameter_count;
  return rate(sum, seconds());
}

double RoundFigures::bytes_per_s() const { return rate(read_bytes() + written_bytes(), seconds()); }

std::optional<double> RoundFigures::ratio() const {
  if (!probe.has_value() || probe->bytes_per_s() <= 0 || bytes_per_s() <= 0) return std::nullopt;
  return bytes_per_s() / probe->bytes_per_s();
}

Figures::Figures(const OffloadOptions& options)
    : options_(options), shows_progress_(isatty(STDERR_FILENO) != 0) {}

void Figures::set_place(const std::string& description, uint64_t memory_bytes) {
  description_ = description;
  memory_bytes_ = memory_bytes;
}

void Figures::print_header() const {
  fmt::print("# offload_perf: {} parameters, {}, state {}, gradient {}, output {}{}, norm {}\n",
             options_.parameter_count, name_of(options_.method), name_of(options_.format),
             options_.gradient_type->name,
             options_.output_type == nullptr ? "none" : options_.output_type->name,
             options_.stochastic ? " (stochastic)" : "", name_of(options_.norm));
  fmt::print("# {} on {}, {}\n", start_time_, machine_.processor, machine_.kernel);
  fmt::print("# durable every {} step{}, {} steps a round; the optimizer holds {:.1f} MiB\n",
             options_.durable_every, options_.durable_every == 1 ? "" : "s", options_.step_count,
             static_cast<double>(memory_bytes_) / (1 << 20));
  std::string line;
  for (const char c : description_ + '\n') {
    if (c != '\n') {
      line += c;
    } else if (!line.empty()) {
      fmt::print("# {}\n", line);
      line.clear();
    }
  }
  fmt::print("{:>6} {:>6} {:>9} {:>9} {:>10} {:>8} {:>9} {:>10}\n", "round", "step", "Mparam/s",
             "read GB/s", "write GB/s", "hidden", "disk wait", "committed");
  std::fflush(stdout);
}

void Figures::add_step(int round, const weir_step_report_t& r) {
  if (round > 0) open_.push_back(r);
  fmt::print("{:>6} {:>6} {:>9.1f} {:>9.3f} {:>10.3f} {:>6.1f} % {:>7.3f} s {:>10}\n",
             round > 0 ? fmt::to_string(round) : "warmup", r.step,
             rate(r.parameter_count, r.seconds) * 1e-6, rate(r.read_bytes, r.seconds) * 1e-9,
             rate(r.written_bytes, r.seconds) * 1e-9, r.compute_hidden * 100, r.disk_wait_seconds,
             r.skipped != 0     ? "skipped"
             : r.committed != 0 ? "yes"
                                : "no");
  std::fflush(stdout);
}

void Figures::end_round(const std::optional<MixRates>& probe) {
  rounds_.push_back({std::move(open_), probe});
  open_.clear();
  const RoundFigures& round = rounds_.back();
  fmt::print("# round {}: {:.1f} Mparam/s, {:.3f} GB/s", rounds_.size(),
             round.parameters_per_s() * 1e-6, round.bytes_per_s() * 1e-9);
  if (const auto ratio = round.ratio())
    fmt::print("; probe {:.3f} GB/s (read {:.3f}, write {:.3f}), ratio {:.3f}",
               probe->bytes_per_s() * 1e-9, probe->read_bytes_per_s * 1e-9,
               probe->write_bytes_per_s * 1e-9, *ratio);
  fmt::print("\n");
  std::fflush(stdout);
}

const RoundFigures& Figures::best() const {
  return *std::max_element(rounds_.begin(), rounds_.end(),
                           [](const RoundFigures& a, const RoundFigures& b) {
                             return a.parameters_per_s() < b.parameters_per_s();
                           });
}

double Figures::median_parameters_per_s() const {
  std::vector<double> rates;
  for (const RoundFigures& round : rounds_) rates.push_back(round.parameters_per_s());
  return median(std::move(rates));
}

std::optional<double> Figures::median_ratio() const {
  std::vector<double> ratios;
  for (const RoundFigures& round : rounds_)
    if (const auto ratio = round.ratio()) ratios.push_back(*ratio);
  if (ratios.empty()) return std::nullopt;
  return median(std::move(ratios));
}

void Figures::print_footer() const {
  fmt::print("# best {:.1f} Mparam/s, median {:.1f}", best().parameters_per_s() * 1e-6,
             median_parameters_per_s() * 1e-6);
  if (const auto ratio = median_ratio()) fmt::print("; median ratio to the probe {:.3f}", *ratio);
  fmt::print("\n");
  if (check_.has_value())
    fmt::print("# parameters are {} those of the same steps in memory\n",
               *check_ ? "bit for bit" : "NOT");
  std::fflush(stdout);
}

void Figures::progress(const std::string& text) {
  if (!shows_progress_) return;
  std::string line = text;
  if (line.size() < progress_length_) line.append(progress_length_ - line.size(), ' ');
  progress_length_ = text.size();
  fmt::print(stderr, "\r{}{}", line, text.empty() ? "\r" : "");
  std::fflush(stderr);
}

std::string Figures::json() const {
  nlohmann::json rounds = nlohmann::json::array();
  for (const RoundFigures& round : rounds_) {
    nlohmann::json steps = nlohmann::json::array();
    for (const weir_step_report_t& r : round.steps) steps.push_back(step_json(r));
    nlohmann::json j = {{"steps", steps},
                        {"seconds", round.seconds()},
                        {"parameters_per_second", round.parameters_per_s()},
                        {"gbs", round.bytes_per_s() * 1e-9}};
    if (round.probe.has_value())
      j["probe"] = {{"read_gbs", round.probe->read_bytes_per_s * 1e-9},
                    {"write_gbs", round.probe->write_bytes_per_s * 1e-9},
                    {"gbs", round.probe->bytes_per_s() * 1e-9}};
    const auto ratio = round.ratio();
    j["ratio"] = ratio.has_value() ? nlohmann::json(*ratio) : nlohmann::json();
    rounds.push_back(j);
  }
  const auto ratio = median_ratio();
  const nlohmann::json all = {
      {"program", "offload_perf"},
      {"date", start_time_},
      {"command", options_.command_line},
      {"machine", {{"processor", machine_.processor}, {"kernel", machine_.kernel}}},
      {"parameters", options_.parameter_count},
      {"method", name_of(options_.method)},
      {"format", name_of(options_.format)},
      {"gradient", options_.gradient_type->name},
      {"output", options_.output_type == nullptr ? nlohmann::json()
                                                 : nlohmann::json(options_.output_type->name)},
      {"norm", name_of(options_.norm)},
      {"directories", options_.directories.size()},
      {"memory_budget_bytes", options_.memory_bytes},
      {"memory_bytes", memory_bytes_},
      {"chunk_bytes", options_.chunk_bytes},
      {"threads", options_.thread_count},
      {"durable_every", options_.durable_every},
      {"description", description_},
      {"rounds", rounds},
      {"parameters_per_second_best", best().parameters_per_s()},
      {"parameters_per_second_median", median_parameters_per_s()},
      {"ratio_median", ratio.has_value() ? nlohmann::json(*ratio) : nlohmann::json()},
      {"check", check_.has_value() ? nlohmann::json(*check_) : nlohmann::json()}};
  return all.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string Figures::svg() const {
  Chart chart;
  chart.title = "offload_perf";
  chart.subtitle = fmt::format("{} M parameters, {}, {}, durable every {}; {}, {}",
                               options_.parameter_count >> 20, name_of(options_.method),
                               name_of(options_.format), options_.durable_every, machine_.processor,
                               start_time_.substr(0, 10));
  chart.x_label = "step";
  chart.y_label = options_.directories.empty() ? "parameters, billions a second" : "GB/s";
  chart.x_scale = ChartScale::kLinear;
  ChartSeries read{.label = "read", .colour = 0}, write{.label = "write", .colour = 1},
      both{.label = "read and write", .colour = 2},
      probe{.label = "probe, both", .colour = 6, .dashed = true},
      parameters{.label = "parameters", .colour = 2};
  const auto add = [](ChartSeries& series, uint64_t step, double value) {
    series.points.push_back({static_cast<double>(step), value,
                             fmt::format("step {}: {} {:.3f}", step, series.label, value)});
  };
  for (const RoundFigures& round : rounds_) {
    for (const weir_step_report_t& r : round.steps) {
      if (options_.directories.empty()) {
        add(parameters, r.step, rate(r.parameter_count, r.seconds) * 1e-9);
        continue;
      }
      add(read, r.step, rate(r.read_bytes, r.seconds) * 1e-9);
      add(write, r.step, rate(r.written_bytes, r.seconds) * 1e-9);
      add(both, r.step, rate(r.read_bytes + r.written_bytes, r.seconds) * 1e-9);
      if (round.probe.has_value()) add(probe, r.step, round.probe->bytes_per_s() * 1e-9);
    }
  }
  chart.series = {read, write, both, probe, parameters};
  return chart_svg(chart);
}

std::string Figures::write_files() const {
  if (!options_.json_file.empty()) {
    std::string problem = output::write_file(options_.json_file, json());
    if (!problem.empty()) return problem;
  }
  return options_.plot_file.empty() ? std::string() : output::write_file(options_.plot_file, svg());
}

}  // namespace weir::perf
