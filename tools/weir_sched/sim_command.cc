// SPDX-License-Identifier: Apache-2.0
#include "weir_sched/sim_command.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <charconv>
#include <memory>
#include <optional>

#include "command_line/command_line.h"
#include "core/base/clock.h"
#include "core/cost/cache.h"
#include "core/cost/decision_log.h"
#include "core/cost/router.h"
#include "core/graph/forests.h"
#include "core/sched/validate.h"
#include "core/sim/lane_picture.h"
#include "core/sim/machine_picture.h"
#include "core/sim/measured_network.h"
#include "core/sim/report.h"
#include "output/output_file.h"
#include "weir_sched/commands.h"
#include "weir_sched/problem_options.h"
#include "weir_sched/regret_machine.h"
#include "weir_sched/sim_machine.h"

namespace weir::sched_tool {
namespace {

constexpr uint32_t kTimelineRanks = 64;
constexpr uint64_t kQuietNs = 500'000'000;  // shorter runs show no progress

struct SimOptions {
  ProblemOptions problem;
  uint32_t rank_count = 0;
  std::string bytes = "1M";
  uint32_t node_count = 1;
  std::string topology_file;
  uint32_t host_count = 1;
  std::string slice_bytes = "0";
  uint32_t slices_in_flight = 4;
  uint32_t credit = 0;
  uint32_t lanes_max = 16;
  std::vector<std::string> slow;
  std::vector<std::string> dead;
  std::string network_file;
  std::string costs_file;
  std::vector<double> nics;
  std::string svg_file;
  std::string links_svg_file;
  std::string lanes_svg_file;
  Rank lanes_of = 0;
  bool json = false;
  bool all = false;
  bool chosen = false;
};

// What is simulated, and over what.
struct Job {
  algo::Problem problem;  // nodes are those below
  std::vector<uint32_t> nodes;
  uint32_t node_count = 1;
  uint64_t bytes = 0;
  std::optional<SimMachine> machine;      // instead of the two-level network
  std::optional<graph::Forests> forests;  // of the machine
  sim::Options options;
  bool has_built_in_times = true;  // neither --net nor --costs says others

  const graph::LinkGraph* links() const { return machine ? &machine->graph : nullptr; }
  sim::Machine bounded(const algo::Problem& of) const {
    return machine ? sim::machine_of(machine->graph, of, bytes) : sim::Machine{};
  }
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

Status fill(const SimOptions& given, Job* job) {
  sim::Options* options = &job->options;
  options->links = job->links();
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
  if (job->machine && job->machine->on_accelerators) {
    options->network = sim::accelerator_network();
  }
  job->has_built_in_times = given.network_file.empty() && given.costs_file.empty();
  if (!given.network_file.empty()) {
    const Result<sim::Network> network = sim::load_network(given.network_file, options->network);
    if (!network.ok()) return network.status();
    options->network = network.value();
  }
  if (!given.costs_file.empty()) {
    const Result<cost::Table> table = cost::read_table(given.costs_file);
    if (!table.ok()) return table.status();
    options->network = sim::measured_network(table.value(), job->bytes);
  }
  options->nic_ns_per_byte_of_node = given.nics;
  const Result<uint64_t> slice = parse_bytes("--slice", given.slice_bytes);
  if (!slice.ok()) return slice.status();
  options->slicing = {slice.value(), slice.value() == 0 ? 1 : given.slices_in_flight};
  options->credit = given.credit;
  if (!given.svg_file.empty()) options->timeline_ranks = kTimelineRanks;
  if (!given.lanes_svg_file.empty()) {
    options->lanes_of = given.lanes_of;
    if (given.lanes_of >= job->problem.rank_count) {
      return invalid_argument(fmt::format("--lanes-of {} is out of range, there are {} ranks",
                                          given.lanes_of, job->problem.rank_count));
    }
  }
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

// `failure`: receives the exit status of an output that failed.
Status write_file(const std::string& path, const std::string& text, int* failure) {
  const std::string wrong = output::write_file(path, text);
  if (wrong.empty()) return {};
  *failure = kExitFlaw;
  return Status(Code::kSystem, wrong);
}

// Why an algorithm cannot run over the hosts; "": it can.
std::string why_not(const algo::Algorithm& algorithm, const algo::Problem& problem,
                    uint32_t host_count) {
  if (host_count > 1 && (algorithm.needs_mapped || algorithm.needs_user_windows)) {
    return "needs memory that all ranks map, which ranks of different hosts do not have; simulate "
           "one host, or an algorithm that \"weir-sched list\" says needs any memory";
  }
  return algorithm.supports(problem) ? "" : why_unsupported(algorithm, problem);
}

Status run_one(const SimOptions& given, const Job& job, int* failure) {
  const Result<const algo::Algorithm*> found = find_algorithm(given.problem);
  if (!found.ok()) return found.status();
  const algo::Algorithm& algorithm = *found.value();
  algo::Problem problem = job.problem;
  map_as_needed(algorithm, &problem);
  const std::string why = why_not(algorithm, problem, job.node_count);
  if (!why.empty()) return invalid_argument(fmt::format("{}: {}", algorithm.name, why));
  const Result<Outcome> outcome = simulate_one(algorithm, problem, job.bytes, job.options);
  if (!outcome.ok()) return outcome.status();
  const sim::Report& report = outcome.value().report;
  const auto closed_form = sim::expected(algorithm, problem, job.bytes, job.options);
  const sim::Machine machine = job.bounded(problem);
  const std::string title = fmt::format(
      "{} {}, {} ranks on {} nodes, {} bytes", algo::name_of(problem.collective, problem.lengths),
      algorithm.name, problem.rank_count, job.node_count, job.bytes);
  if (given.json) {
    fmt::print("{}", sim::to_json(report, closed_form, machine));
  } else {
    fmt::print("{}\n{}{}", title, sim::to_text(report, closed_form, machine),
               resources(outcome.value().seconds, report.events));
  }
  if (!given.svg_file.empty()) {
    WEIR_RETURN_IF_ERROR(write_file(given.svg_file, sim::to_svg(report, title), failure));
  }
  if (!given.links_svg_file.empty()) {
    WEIR_RETURN_IF_ERROR(
        write_file(given.links_svg_file, sim::machine_svg(report, machine, title), failure));
  }
  if (!given.lanes_svg_file.empty()) {
    WEIR_RETURN_IF_ERROR(write_file(
        given.lanes_svg_file, sim::lanes_svg(report, given.lanes_of, machine, title), failure));
  }
  return {};
}

// Of one algorithm: its closed form, or how far it is from the cut bound.
std::string reference(const sim::Report& report, const std::optional<cost::ClosedForm>& form,
                      const sim::Machine& machine) {
  if (form) return sim::text_of_time(static_cast<uint64_t>(form->ns * 1000));
  if (!machine.least_ns || !report.complete) return "-";
  return fmt::format("{:.2f}", static_cast<double>(report.total_ps) / 1000 / *machine.least_ns);
}

Status run_all(const Job& job) {
  algo::Problem problem = job.problem;
  const sim::Machine machine = job.bounded(problem);
  fmt::print("{}, {} ranks on {} nodes, {} bytes\n",
             algo::name_of(problem.collective, problem.lengths), problem.rank_count, job.node_count,
             job.bytes);
  if (machine.least_ns) {
    fmt::print("cut bound {}\n",
               sim::text_of_time(static_cast<uint64_t>(*machine.least_ns * 1000)));
  }
  if (job.machine && job.has_built_in_times) {
    fmt::print(
        "copies and reductions take the times of the built-in network; --costs FILE takes "
        "measured ones\n");
  }
  fmt::print("{:<28} {:>14} {:>14} {:>12} {:>16} {:>9}\n", "algorithm", "time",
             job.machine ? "times bound" : "closed form", "messages", "between nodes", "seconds");
  for (const algo::Algorithm* algorithm : algo::all_algorithms()) {
    if (algorithm->collective != problem.collective || algorithm->lengths < problem.lengths) {
      continue;
    }
    map_as_needed(*algorithm, &problem);
    const std::string why = why_not(*algorithm, problem, job.node_count);
    if (!why.empty()) {
      fmt::print("{:<28} left out: {}\n", algorithm->name, why);
      continue;
    }
    const Result<Outcome> outcome = simulate_one(*algorithm, problem, job.bytes, job.options);
    if (!outcome.ok()) {
      fmt::print("{:<28} {}\n", algorithm->name, outcome.status().text());
      continue;
    }
    const sim::Report& report = outcome.value().report;
    const auto form = sim::expected(*algorithm, problem, job.bytes, job.options);
    fmt::print("{:<28} {:>14} {:>14} {:>12} {:>14} B {:>9.2f}{}\n", algorithm->name,
               sim::text_of_time(report.total_ps), reference(report, form, machine),
               report.messages, report.message_bytes_inter_node, outcome.value().seconds,
               report.complete ? "" : "  STOPPED");
    std::fflush(stdout);
  }
  fmt::print("{}", resources(0, 0).substr(resources(0, 0).rfind(", ") + 2));
  return {};
}

// What the planner chooses for the ranks of the machine, and why; that is simulated.
Status run_chosen(const SimOptions& given, Job* job, int* failure) {
  if (job->problem.lengths != algo::BlockLengths::kEqual) {
    return invalid_argument("--chosen is for blocks of equal length");
  }
  const Result<cost::Table> table =
      given.costs_file.empty() ? cost::built_in_table() : cost::read_table(given.costs_file);
  if (!table.ok()) return table.status();
  const Result<RegretMachine> machine =
      read_regret_machine(given.topology_file, table.value(), /*by_links=*/true);
  if (!machine.ok()) return machine.status();
  const RegretHosts hosts(machine.value(), job->problem.rank_count);
  WEIR_RETURN_IF_ERROR(hosts.status());
  if (hosts.host_count() != job->node_count) {
    return invalid_argument(fmt::format(
        "--chosen: {} ranks fill {} hosts like {}, not {}; give other --ranks or --hosts",
        job->problem.rank_count, hosts.host_count(), given.topology_file, job->node_count));
  }
  const cost::Request request =
      hosts.request(job->problem.collective, job->bytes, job->problem.root);
  const Result<cost::Decision> decision =
      cost::choose(request, cost::candidates_for(algo::all_algorithms(), request.work.problem),
                   machine.value().table, nullptr);
  if (!decision.ok()) return decision.status();
  const cost::Decision& made = decision.value();
  if (!given.json) {
    cost::DecisionLog log;
    fmt::print("{}\n", cost::explain(*log.find(log.add(request, made))));
  }
  const cost::Workload work =
      cost::work_of(*made.algorithm, request, {made.slice_bytes, made.tree_lanes});
  job->problem = work.problem;
  job->options.slicing = work.slicing;
  SimOptions chosen = given;
  chosen.problem.algorithm = made.algorithm->name;
  return run_one(chosen, *job, failure);
}

// The ranks, and what is between them.
Status place_ranks(const SimOptions& given, Job* job) {
  if (given.topology_file.empty()) {
    if (given.rank_count < 1) return invalid_argument("--ranks must be at least 1");
    if (given.node_count < 1 || given.node_count > given.rank_count) {
      return invalid_argument(
          fmt::format("--nodes {} must lie within 1..{}", given.node_count, given.rank_count));
    }
    job->problem.rank_count = given.rank_count;
    job->node_count = given.node_count;
    job->nodes = blocks_of_nodes(given.rank_count, given.node_count);
    return {};
  }
  if (given.host_count < 1) return invalid_argument("--hosts must be at least 1");
  Result<SimMachine> machine =
      read_sim_machine(given.topology_file, given.host_count, given.rank_count);
  if (!machine.ok()) return machine.status();
  job->machine.emplace(machine.take());
  job->problem.rank_count = job->machine->graph.rank_count();
  job->node_count = job->machine->host_count;
  job->nodes = job->machine->nodes;
  return {};
}

Status run(const SimOptions& given, int* failure) {
  const Result<algo::NamedCollective> named = parse_collective(given.problem.collective);
  if (!named.ok()) return named.status();
  const Result<uint64_t> bytes = parse_bytes("--bytes", given.bytes);
  if (!bytes.ok()) return bytes.status();
  const int asked =
      (given.problem.algorithm.empty() ? 0 : 1) + (given.all ? 1 : 0) + (given.chosen ? 1 : 0);
  if (asked != 1) {
    return invalid_argument("either --algorithm, --all or --chosen is needed");
  }
  const bool draws =
      !given.svg_file.empty() || !given.links_svg_file.empty() || !given.lanes_svg_file.empty();
  if (given.all && (given.json || draws)) {
    return invalid_argument("--all goes with neither --json nor --svg, --svg-links or --svg-lanes");
  }
  Job job;
  job.bytes = bytes.value();
  job.problem.collective = named.value().collective;
  job.problem.lengths = named.value().lengths;
  WEIR_RETURN_IF_ERROR(place_ranks(given, &job));
  job.problem.node_of_rank = job.nodes;
  if (job.machine) {
    job.problem.cache_of_rank = job.machine->cache_of_rank;
    job.problem.numa_of_rank = job.machine->numa_of_rank;
  }
  job.problem.root = given.problem.root;
  if (job.problem.root >= job.problem.rank_count) {
    return invalid_argument(fmt::format("--root {} is out of range, there are {} ranks",
                                        job.problem.root, job.problem.rank_count));
  }
  if (job.machine) {
    job.forests.emplace(job.machine->graph);
    job.problem.forest = job.forests->of(job.problem.collective, job.problem.root);
    job.problem.rings = job.forests->rings();
    job.problem.lanes_max = given.lanes_max;
  }
  WEIR_RETURN_IF_ERROR(fill(given, &job));
  WEIR_RETURN_IF_ERROR(sim::check(job.problem, job.options));
  if (given.chosen) return run_chosen(given, &job, failure);
  return given.all ? run_all(job) : run_one(given, job, failure);
}

}  // namespace

void add_sim_command(cli::Command& app, int* exit_code) {
  cli::Command command =
      app.add_subcommand("sim", "How long a collective takes on a simulated network");
  const auto given = std::make_shared<SimOptions>();
  add_algorithm_options(command, &given->problem);
  command.add_flag("--all", given->all, "compare all algorithms of the collective");
  command.add_option("-n,--ranks", given->rank_count,
                     "number of ranks; with --topology not needed: one on each GPU or core");
  command.add_option("-b,--bytes", given->bytes, "the largest buffer of a rank: 4096, 64K, 1M, 2G")
      .show_default();
  command.add_option("--nodes", given->node_count, "number of nodes; ranks fill them in blocks")
      .show_default();
  command
      .add_option("-t,--topology", given->topology_file,
                  "hwloc's or NCCL's XML of a machine: simulates its links")
      .value_name("FILE")
      .excludes("--nodes");
  command
      .add_option("--hosts", given->host_count,
                  "hosts like the one of the file; ranks fill them in "
                  "blocks")
      .needs("--topology")
      .show_default();
  command
      .add_flag(
          "--chosen", given->chosen,
          "what the planner chooses for the machine, and why; with GPUs, for buffers on these")
      .needs("--topology");
  command.add_option("--root", given->problem.root, "of broadcast, reduce, gather and scatter");
  command.add_option("--slice", given->slice_bytes, "cut chunks into slices; 0: whole chunks")
      .show_default();
  command
      .add_option("--lanes", given->lanes_max,
                  "lanes that a program may use, where more of them help")
      .range<uint32_t>(1, sched::kLaneCountMax)
      .show_default();
  command.add_option("--in-flight", given->slices_in_flight, "slices side by side").show_default();
  command
      .add_option("--credit", given->credit,
                  "messages of a lane that the target has not received yet; 0: any number")
      .show_default();
  command.add_option("--slow", given->slow, "RANK:FACTOR, a rank that takes FACTOR times as long");
  command.add_option("--dead", given->dead, "RANK@MICROSECONDS, when a rank stops");
  command.add_option("--net", given->network_file, "TOML file with the figures of the network");
  command
      .add_option("--costs", given->costs_file, "measured costs (WEIR_COSTS_FILE) instead of --net")
      .excludes("--net");
  command
      .add_option(
          "--nics", given->nics,
          "ns per byte of the network card of each node, with commas; instead of one figure")
      .delimiter(',')
      .excludes("--topology");
  command.add_option("--svg", given->svg_file, "writes what the first 64 ranks do over time");
  command
      .add_option("--svg-links", given->links_svg_file,
                  "writes a picture of the machine with the load of its links")
      .needs("--topology");
  command.add_option("--svg-lanes", given->lanes_svg_file,
                     "writes what the lanes and links of one rank do over time");
  command.add_option("--lanes-of", given->lanes_of, "that rank")
      .needs("--svg-lanes")
      .show_default();
  command.add_flag("--json", given->json, "result as JSON on standard output");
  command.footer(
      "Examples:\n"
      "  weir-sched sim -c all_reduce -a ring -n 10240 -b 64M --nodes 1280\n"
      "  weir-sched sim -c all_gather -a ring -b 64M --topology machine.xml --hosts 4\n"
      "With --topology the times of links are those of the file or estimates, and --net and "
      "--costs\n"
      "give the overheads of the ranks only.");
  command.on_parsed([given, exit_code] {
    int failure = kExitInput;
    const Status status = run(*given, &failure);
    if (status.ok()) return;
    fmt::print(stderr, "weir-sched sim: {}\n", status.text());
    *exit_code = failure;
  });
}

}  // namespace weir::sched_tool
