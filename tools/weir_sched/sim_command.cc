// SPDX-License-Identifier: Apache-2.0
#include "weir_sched/sim_command.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <charconv>
#include <fstream>
#include <memory>

#include "command_line/command_line.h"
#include "core/base/clock.h"
#include "core/cost/cache.h"
#include "core/sim/measured_network.h"
#include "core/sim/report.h"
#include "weir_sched/commands.h"
#include "weir_sched/problem_options.h"

namespace weir::sched_tool {
namespace {

constexpr uint32_t kTimelineRanks = 64;
constexpr uint64_t kQuietNs = 500'000'000;  // shorter runs show no progress

struct SimOptions {
  ProblemOptions problem;
  uint32_t rank_count = 0;
  std::string bytes = "1M";
  uint32_t node_count = 1;
  std::string slice_bytes = "0";
  uint32_t slices_in_flight = 4;
  std::vector<std::string> slow;
  std::vector<std::string> dead;
  std::string network_file;
  std::string costs_file;
  std::string svg_file;
  bool json = false;
  bool all = false;
};

// "64M" -> 67108864.
Result<uint64_t> parse_bytes(const char* option, const std::string& text) {
  uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  int shift = 0;
  const std::string unit(stop, end);
  if (unit == "K") shift = 10;
  if (unit == "M") shift = 20;
  if (unit == "G") shift = 30;
  if (error != std::errc() || (shift == 0 && !unit.empty()) || value > (~uint64_t{0} >> shift)) {
    return invalid_argument(
        fmt::format("{}: \"{}\" is not a size such as 4096, 64K, 1M or 2G", option, text));
  }
  return value << shift;
}

// "3:1.5" and "3@20": a rank and a figure.
Result<std::pair<Rank, double>> parse_pair(const char* option, const std::string& text,
                                           char separator) {
  const size_t at = text.find(separator);
  Rank rank = 0;
  double figure = 0;
  if (at != std::string::npos) {
    const char* middle = text.data() + at;
    const char* end = text.data() + text.size();
    const auto first = std::from_chars(text.data(), middle, rank);
    const auto second = std::from_chars(middle + 1, end, figure);
    if (first.ec == std::errc() && first.ptr == middle && second.ec == std::errc() &&
        second.ptr == end) {
      return std::pair{rank, figure};
    }
  }
  return invalid_argument(
      fmt::format("{}: \"{}\" is not of the form RANK{}NUMBER", option, text, separator));
}

Status fill(const SimOptions& given, uint64_t bytes, sim::Options* options) {
  for (const std::string& text : given.slow) {
    const auto pair = parse_pair("--slow", text, ':');
    if (!pair.ok()) return pair.status();
    options->slow.push_back({pair.value().first, pair.value().second});
  }
  for (const std::string& text : given.dead) {
    const auto pair = parse_pair("--dead", text, '@');
    if (!pair.ok()) return pair.status();
    options->dead.push_back({pair.value().first, pair.value().second * 1000});
  }
  if (!given.network_file.empty()) {
    const Result<sim::Network> network = sim::load_network(given.network_file);
    if (!network.ok()) return network.status();
    options->network = network.value();
  }
  if (!given.costs_file.empty()) {
    const Result<cost::Table> table = cost::read_table(given.costs_file);
    if (!table.ok()) return table.status();
    options->network = sim::measured_network(table.value(), bytes);
  }
  const Result<uint64_t> slice = parse_bytes("--slice", given.slice_bytes);
  if (!slice.ok()) return slice.status();
  options->slicing = {slice.value(), slice.value() == 0 ? 1 : given.slices_in_flight};
  if (!given.svg_file.empty()) options->timeline_ranks = kTimelineRanks;
  return {};
}

// Ranks in blocks, as even as possible.
std::vector<uint32_t> blocks_of_nodes(Rank rank_count, uint32_t node_count) {
  std::vector<uint32_t> nodes;
  if (node_count <= 1) return nodes;
  for (Rank rank = 0; rank < rank_count; ++rank) {
    nodes.push_back(static_cast<uint32_t>(uint64_t{rank} * node_count / rank_count));
  }
  return nodes;
}

// One line on a terminal, rewritten.
class ProgressLine {
 public:
  explicit ProgressLine(std::string name) : name_(std::move(name)), begin_ns_(now_ns()) {}
  ~ProgressLine() {
    if (shown_) fmt::print(stderr, "\r{:79}\r", "");
  }
  void show(const sim::Progress& progress) {
    if (isatty(STDERR_FILENO) == 0 || now_ns() - begin_ns_ < kQuietNs) return;
    shown_ = true;
    const double percent = progress.steps_total == 0
                               ? 100
                               : 100.0 * static_cast<double>(progress.steps_done) /
                                     static_cast<double>(progress.steps_total);
    fmt::print(stderr, "\r{:<28} {:5.1f} % of the steps, {:.1f} M events, {:.1f} s ", name_,
               percent, static_cast<double>(progress.events) / 1e6, seconds());
    std::fflush(stderr);
  }
  double seconds() const { return static_cast<double>(now_ns() - begin_ns_) * 1e-9; }

 private:
  std::string name_;
  uint64_t begin_ns_;
  bool shown_ = false;
};

struct Outcome {
  sim::Report report;
  double seconds = 0;
};

Result<Outcome> simulate_one(const algo::Algorithm& algorithm, const algo::Problem& problem,
                             uint64_t bytes, sim::Options options) {
  ProgressLine line(algorithm.name);
  options.progress = [&line](const sim::Progress& progress) {
    line.show(progress);
    return true;
  };
  Result<sim::Report> report = sim::simulate(algorithm, problem, bytes, options);
  if (!report.ok()) return report.status();
  return Outcome{report.take(), line.seconds()};
}

std::string resources(double seconds, uint64_t events) {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return fmt::format("  simulated in {:.2f} s, {:.1f} M events/s, {} MiB of memory\n", seconds,
                     seconds > 0 ? static_cast<double>(events) / seconds / 1e6 : 0,
                     usage.ru_maxrss / 1024);
}

void map_as_needed(const algo::Algorithm& algorithm, algo::Problem* problem) {
  problem->mapped = algorithm.needs_mapped || algorithm.needs_user_windows;
  problem->inputs_mapped = problem->outputs_mapped = algorithm.needs_user_windows;
}

Status run_one(const SimOptions& given, algo::Problem problem, uint64_t bytes,
               const sim::Options& options) {
  const Result<const algo::Algorithm*> found = find_algorithm(given.problem);
  if (!found.ok()) return found.status();
  const algo::Algorithm& algorithm = *found.value();
  map_as_needed(algorithm, &problem);
  const Result<Outcome> outcome = simulate_one(algorithm, problem, bytes, options);
  if (!outcome.ok()) return outcome.status();
  const sim::Report& report = outcome.value().report;
  const auto closed_form = sim::expected(algorithm, problem, bytes, options);
  const std::string title = fmt::format(
      "{} {}, {} ranks on {} nodes, {} bytes", algo::name_of(problem.collective, problem.lengths),
      algorithm.name, problem.rank_count, given.node_count, bytes);
  if (given.json) {
    fmt::print("{}", sim::to_json(report, closed_form));
  } else {
    fmt::print("{}\n{}{}", title, sim::to_text(report, closed_form),
               resources(outcome.value().seconds, report.events));
  }
  if (given.svg_file.empty()) return {};
  std::ofstream svg(given.svg_file, std::ios::binary);
  svg << sim::to_svg(report, title);
  svg.close();
  if (!svg) return system_error("cannot write '" + given.svg_file + "'");
  return {};
}

Status run_all(const SimOptions& given, algo::Problem problem, uint64_t bytes,
               const sim::Options& options) {
  fmt::print("{}, {} ranks on {} nodes, {} bytes\n",
             algo::name_of(problem.collective, problem.lengths), problem.rank_count,
             given.node_count, bytes);
  fmt::print("{:<28} {:>14} {:>14} {:>12} {:>16} {:>9}\n", "algorithm", "time", "closed form",
             "messages", "between nodes", "seconds");
  for (const algo::Algorithm* algorithm : algo::all_algorithms()) {
    if (algorithm->collective != problem.collective || algorithm->lengths < problem.lengths) {
      continue;
    }
    map_as_needed(*algorithm, &problem);
    const Result<Outcome> outcome = simulate_one(*algorithm, problem, bytes, options);
    if (!outcome.ok()) {
      fmt::print("{:<28} {}\n", algorithm->name, outcome.status().text());
      continue;
    }
    const sim::Report& report = outcome.value().report;
    const auto form = sim::expected(*algorithm, problem, bytes, options);
    const std::string expected =
        form ? sim::text_of_time(static_cast<uint64_t>(form->ns * 1000)) : "-";
    fmt::print("{:<28} {:>14} {:>14} {:>12} {:>14} B {:>9.2f}{}\n", algorithm->name,
               sim::text_of_time(report.total_ps), expected, report.messages,
               report.message_bytes_inter_node, outcome.value().seconds,
               report.complete ? "" : "  STOPPED");
    std::fflush(stdout);
  }
  fmt::print("{}", resources(0, 0).substr(resources(0, 0).rfind(", ") + 2));
  return {};
}

Status run(const SimOptions& given) {
  const Result<algo::NamedCollective> named = parse_collective(given.problem.collective);
  if (!named.ok()) return named.status();
  const Result<uint64_t> bytes = parse_bytes("--bytes", given.bytes);
  if (!bytes.ok()) return bytes.status();
  if (given.rank_count < 1) return invalid_argument("--ranks must be at least 1");
  if (given.node_count < 1 || given.node_count > given.rank_count) {
    return invalid_argument(
        fmt::format("--nodes {} must lie within 1..{}", given.node_count, given.rank_count));
  }
  if (given.problem.algorithm.empty() != given.all) {
    return invalid_argument("either --algorithm or --all is needed");
  }
  if (given.all && (given.json || !given.svg_file.empty())) {
    return invalid_argument("--all goes with neither --json nor --svg");
  }
  sim::Options options;
  WEIR_RETURN_IF_ERROR(fill(given, bytes.value(), &options));
  const std::vector<uint32_t> nodes = blocks_of_nodes(given.rank_count, given.node_count);
  algo::Problem problem;
  problem.collective = named.value().collective;
  problem.lengths = named.value().lengths;
  problem.rank_count = given.rank_count;
  problem.root = given.problem.root;
  problem.node_of_rank = nodes;
  return given.all ? run_all(given, problem, bytes.value(), options)
                   : run_one(given, problem, bytes.value(), options);
}

}  // namespace

void add_sim_command(cli::Command& app, int* exit_code) {
  cli::Command command =
      app.add_subcommand("sim", "How long a collective takes on a simulated network");
  const auto given = std::make_shared<SimOptions>();
  add_algorithm_options(command, &given->problem);
  command.add_flag("--all", given->all, "compare all algorithms of the collective");
  command.add_option("-n,--ranks", given->rank_count, "number of ranks").required();
  command.add_option("-b,--bytes", given->bytes, "the largest buffer of a rank: 4096, 64K, 1M, 2G")
      .show_default();
  command.add_option("--nodes", given->node_count, "number of nodes; ranks fill them in blocks")
      .show_default();
  command.add_option("--root", given->problem.root, "of broadcast, reduce, gather and scatter");
  command.add_option("--slice", given->slice_bytes, "cut chunks into slices; 0: whole chunks")
      .show_default();
  command.add_option("--in-flight", given->slices_in_flight, "slices side by side").show_default();
  command.add_option("--slow", given->slow, "RANK:FACTOR, a rank that takes FACTOR times as long");
  command.add_option("--dead", given->dead, "RANK@MICROSECONDS, when a rank stops");
  command.add_option("--net", given->network_file, "TOML file with the figures of the network");
  command
      .add_option("--costs", given->costs_file, "measured costs (WEIR_COSTS_FILE) instead of --net")
      .excludes("--net");
  command.add_option("--svg", given->svg_file, "writes what the first 64 ranks do over time");
  command.add_flag("--json", given->json, "result as JSON on standard output");
  command.footer("Example: weir-sched sim -c all_reduce -a ring -n 10240 -b 64M --nodes 1280");
  command.on_parsed([given, exit_code] {
    const Status status = run(*given);
    if (status.ok()) return;
    fmt::print(stderr, "weir-sched sim: {}\n", status.text());
    *exit_code = kExitInput;
  });
}

}  // namespace weir::sched_tool
