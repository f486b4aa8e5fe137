// SPDX-License-Identifier: Apache-2.0
// adam_perf: parameters per second and GB/s of the optimizer kernels in memory, for sizes, cases,
// thread counts and instruction sets, compared with a streaming loop of the same traffic. Step and
// loop take turns on the same memory, round after round; it prints best and median of the rounds.
// Traffic counts the bytes that the program moves: state twice, gradient once, a parameter copy
// once.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "command_line/command_line.h"
#include "hwy/highway.h"
#include "output/output_file.h"
#include "output/run_tool.h"
#include "perf/adam_perf/contest.h"
#include "perf/harness/chart.h"
#include "perf/harness/machine.h"

namespace {

using weir::DataType;
using weir::offload::Method;
using weir::offload::StateFormat;
using weir::perf::Contest;
using weir::perf::ContestCase;
using weir::perf::ContestResult;

struct NamedCase {
  ContestCase contest;
  const char* meaning;
};

std::vector<NamedCase> all_cases() {
  const DataType f32 = DataType::kFloat32, bf16 = DataType::kBfloat16;
  const StateFormat whole = StateFormat::kFloat32, half = StateFormat::kHalfMaster,
                    bytes = StateFormat::kHalfMaster8;
  return {
      {{"f32", Method::kAdamW, whole, f32, false, false, false, false}, "AdamW, all f32"},
      {{"bf16", Method::kAdamW, whole, bf16, true, false, true, false},
       "bf16 gradient unscaled and clipped, f32 state, bf16 copy"},
      {{"bf16sr", Method::kAdamW, whole, bf16, true, true, true, false},
       "the same, the copy rounded stochastically"},
      {{"idle", Method::kAdamW, whole, f32, false, false, false, true},
       "f32, zero gradient, moments near 1e-40"},
      {{"half", Method::kAdamW, half, bf16, false, false, true, false},
       "half master, bf16 moments"},
      {{"half8", Method::kAdamW, bytes, bf16, false, false, true, false},
       "half master, 8-bit moments"},
      {{"adam", Method::kAdam, whole, f32, false, false, false, false}, "Adam, all f32"},
      {{"sgd", Method::kSgdMomentum, whole, f32, false, false, false, false}, "SGD, all f32"},
      {{"adagrad", Method::kAdagrad, whole, f32, false, false, false, false}, "Adagrad, all f32"},
      {{"lion", Method::kLion, whole, f32, false, false, false, false}, "Lion, all f32"},
  };
}

std::vector<int64_t> instruction_sets(bool all) {
  std::vector<int64_t> sets;
  for (int64_t rest = weir::offload::step_kernel_targets(); rest != 0; rest &= rest - 1) {
    sets.push_back(rest & -rest);  // the best one has Highway's lowest number
    if (!all) break;
  }
  return sets;
}

struct Options {
  std::vector<double> sizes = {1, 16, 64};
  std::vector<uint32_t> threads = {1, 2};
  std::vector<int> cores;
  std::vector<std::string> cases = {"f32", "bf16", "bf16sr", "idle", "half", "half8"};
  uint32_t rounds = 15;
  bool all_sets = false;
  std::string json;
  std::string plot;
};

nlohmann::json measure(const NamedCase& named, double millions, uint32_t threads, int64_t set,
                       const Options& options) {
  const uint32_t rounds = options.rounds;
  const uint64_t elements = std::max<uint64_t>(1, static_cast<uint64_t>(millions * 16)) << 16;
  auto contest = Contest::create(named.contest, elements);
  if (!contest.ok()) throw std::runtime_error(contest.status().text());
  auto pool = weir::offload::WorkerPool::create({.thread_count = threads, .cores = options.cores});
  if (!pool.ok()) throw std::runtime_error(pool.status().text());
  const ContestResult r = contest.value()->run(*pool.value(), rounds);
  const double n = static_cast<double>(elements);
  const auto gbs = [&](double seconds) { return n * r.bytes_per_parameter / seconds * 1e-9; };
  return {
      {"case", named.contest.name},
      {"instruction_set", hwy::TargetName(set)},
      {"threads", threads},
      {"parameters", elements},
      {"bytes_per_parameter", r.bytes_per_parameter},
      {"rounds", rounds},
      {"parameters_per_second_best", n / r.step.best()},
      {"parameters_per_second_median", n / r.step.median()},
      {"gbs_best", gbs(r.step.best())},
      {"gbs_median", gbs(r.step.median())},
      {"loop_gbs_best", gbs(r.loop.best())},
      {"loop_gbs_median", gbs(r.loop.median())},
      {"loop_prefetches", r.loop_prefetches},
      {"ratio_best", r.ratio_of_bests()},
      {"ratio_median", r.median_ratio()},
      {"huge_page_share", contest.value()->huge_page_share()},
  };
}

// Bandwidth over the parameters of a run: one line per case, instruction set and thread count, and
// a dashed one for its streaming loop.
std::string plot_svg(const nlohmann::json& rows) {
  weir::perf::Chart chart;
  chart.title = "adam_perf";
  chart.subtitle = fmt::format(
      "optimizer step (whole) and streaming loop of the same traffic (dashed), best of "
      "the rounds; {}, {}",
      weir::perf::describe_machine().processor, weir::perf::timestamp().substr(0, 10));
  chart.x_label = "parameters";
  chart.y_label = "GB/s";
  bool several_sets = false;
  for (const auto& row : rows) several_sets |= row["instruction_set"] != rows[0]["instruction_set"];
  for (const auto& row : rows) {
    const auto set = row["instruction_set"].get<std::string>();
    const int threads = row["threads"].get<int>();
    const std::string name =
        fmt::format("{}{}, {} thread{}", row["case"].get<std::string>(),
                    several_sets ? " " + set : "", threads, threads == 1 ? "" : "s");
    for (const bool loop : {false, true}) {
      const std::string label = loop ? name + ", loop" : name;
      const auto same = [&](const auto& series) { return series.label == label; };
      auto at = std::find_if(chart.series.begin(), chart.series.end(), same);
      if (at == chart.series.end()) {
        const size_t colour = chart.series.size() / 2;
        at = chart.series.insert(at, {.label = label, .colour = colour, .dashed = loop});
      }
      const auto parameters = row["parameters"].get<double>();
      const auto gbs = row[loop ? "loop_gbs_best" : "gbs_best"].get<double>();
      at->points.push_back(
          {parameters, gbs, fmt::format("{}: {} parameters, {:.2f} GB/s", label, parameters, gbs)});
    }
  }
  for (auto& series : chart.series) {
    std::sort(series.points.begin(), series.points.end(),
              [](const auto& a, const auto& b) { return a.x < b.x; });
  }
  return chart_svg(chart);
}

bool write_file(const std::string& path, const std::string& text) {
  if (path.empty()) return true;
  const std::string wrong = weir::output::write_file(path, text);
  if (!wrong.empty()) fmt::print(stderr, "adam_perf: {}\n", wrong);
  return wrong.empty();
}

int run(const Options& options) {
  std::vector<NamedCase> cases;
  for (const std::string& name : options.cases) {
    for (const NamedCase& known : all_cases()) {
      if (name == known.contest.name || name == "all") cases.push_back(known);
    }
  }
  fmt::print("{:8} {:6} {:>7} {:>9} {:>5} {:>9} {:>9} {:>7} {:>7} {:>7} {:>7}\n", "case", "set",
             "threads", "params", "B/par", "Mpar/s", "median", "GB/s", "loop", "ratio", "median");
  nlohmann::json rows = nlohmann::json::array();
  for (const NamedCase& named : cases) {
    for (const int64_t set : instruction_sets(options.all_sets)) {
      hwy::SetSupportedTargetsForTest(set);
      for (const double millions : options.sizes) {
        for (const uint32_t threads : options.threads) {
          const auto row = measure(named, millions, threads, set, options);
          fmt::print("{:8} {:6} {:7} {:8}K {:5} {:9.1f} {:9.1f} {:7.2f} {:7.2f} {:7.3f} {:7.3f}\n",
                     named.contest.name, hwy::TargetName(set), threads,
                     row["parameters"].get<uint64_t>() >> 10,
                     row["bytes_per_parameter"].get<double>(),
                     row["parameters_per_second_best"].get<double>() * 1e-6,
                     row["parameters_per_second_median"].get<double>() * 1e-6,
                     row["gbs_best"].get<double>(), row["loop_gbs_best"].get<double>(),
                     row["ratio_best"].get<double>(), row["ratio_median"].get<double>());
          std::fflush(stdout);
          rows.push_back(row);
        }
      }
    }
  }
  const std::string json =
      nlohmann::json{{"program", "adam_perf"}, {"results", rows}}.dump(2) + "\n";
  const bool written = write_file(options.json, json) && write_file(options.plot, plot_svg(rows));
  return written ? 0 : 1;
}

int run_arguments(int argc, char** argv) {
  Options options;
  weir::cli::CommandLine app("Optimizer kernels beside a streaming loop of the same traffic.");
  app.add_option("--sizes", options.sizes, "millions (2^20) of parameters")
      .delimiter(',')
      .range(1e-3, 1e6);
  app.add_option("--threads", options.threads, "thread counts").delimiter(',').range(1, 1024);
  app.add_option("--cores", options.cores, "cores that threads run on, one each; none: on any")
      .delimiter(',')
      .not_negative();
  std::string names = "all";
  std::vector<std::string> allowed = {"all"};
  for (const NamedCase& named : all_cases()) {
    allowed.push_back(named.contest.name);
    names += fmt::format("; {}: {}", named.contest.name, named.meaning);
  }
  app.add_option("--cases", options.cases, names).delimiter(',').one_of(allowed);
  app.add_option("--rounds", options.rounds, "rounds").range(1, 10000);
  app.add_flag("--all-instruction-sets", options.all_sets, "not only the best one");
  app.add_option("--json", options.json, "also write the results to this file");
  app.add_option("--plot", options.plot, "and a picture of them, SVG");
  if (const auto status = app.parse(argc, argv)) return *status;
  try {
    return run(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "adam_perf: {}\n", error.what());
    return 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  return weir::output::run_tool("adam_perf", run_arguments, argc, argv);
}
