// SPDX-License-Identifier: Apache-2.0
// weir-sched search: the trees along which a collective uses the links of a machine best, and the
// programs that go along them.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <set>

#include "command_line/command_line.h"
#include "core/base/clock.h"
#include "core/graph/cluster_forest.h"
#include "core/graph/cut_bound.h"
#include "core/sched/json.h"
#include "weir_sched/commands.h"
#include "weir_sched/problem_options.h"
#include "weir_sched/sim_machine.h"

namespace weir::sched_tool {
namespace {

struct SearchOptions {
  std::string collective = "all_reduce";
  uint32_t root = 0;
  std::string topology_file;
  uint32_t hosts = 1;
  uint32_t rank_count = 0;
  uint32_t searched_ranks = 16;
  std::string output;
  bool show_graph = false;
};

Status write(const std::string& path, const std::string& text) {
  if (path == "-") {
    return std::fwrite(text.data(), 1, text.size(), stdout) == text.size()
               ? Status()
               : system_error("cannot write to standard output");
  }
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  return file ? Status() : system_error("cannot write '" + path + "'");
}

std::string describe(const graph::LinkGraph& graph, const graph::Forest& forest, bool rooted,
                     uint64_t ns) {
  uint32_t depth = 0;
  std::set<std::pair<Rank, Rank>> pairs;
  for (const graph::Tree& tree : forest.trees) {
    for (const graph::TreeLink& link : tree.links) {
      depth = std::max(depth, link.depth);
      pairs.emplace(link.from, link.to);
    }
  }
  return fmt::format(
      "{} ranks on {} hosts, {} vertices, {} links, graph {:016x}\n"
      "cut bound     {:.4g} GB/s from {} to all others\n"
      "trees         {} for each root, depth {} at most, between {} pairs of ranks\n"
      "they carry    {:.4g} GB/s, {:.3f} of the bound\n"
      "found in      {:.1f} ms, {} steps\n",
      graph.rank_count(), graph.host_count(), graph.vertices().size(), graph.links().size(),
      graph.hash(), forest.bound_gbs, rooted ? "the root" : "each rank", forest.trees_per_root,
      depth, pairs.size(), forest.block_gbs, forest.block_gbs / forest.bound_gbs,
      static_cast<double>(ns) / 1e6, forest.steps);
}

Status run(const SearchOptions& options) {
  const auto collective = parse_collective(options.collective);
  if (!collective.ok()) return collective.status();
  const algo::Algorithm* algorithm = algo::find_algorithm(collective.value().collective, "forest");
  if (algorithm == nullptr) {
    return invalid_argument("--collective: no trees for " + options.collective +
                            "; they are for all_reduce, reduce_scatter, all_gather, broadcast and "
                            "reduce");
  }
  auto machine = read_sim_machine(options.topology_file, options.hosts, options.rank_count);
  if (!machine.ok()) return machine.status();
  const graph::LinkGraph& graph = machine.value().graph;
  const Rank n = graph.rank_count();
  if (options.root >= n) {
    return invalid_argument(fmt::format("--root: {} of {} ranks", options.root, n));
  }
  if (options.show_graph) fmt::print("{}\n", graph.text());
  const bool rooted = is_rooted(collective.value().collective);
  const uint64_t begin = now_ns();
  auto forest = rooted ? graph::find_trees(graph, std::span(&options.root, 1))
                       : graph::best_forest(graph, options.searched_ranks);
  const uint64_t end = now_ns();
  if (!forest.ok()) return forest.status();
  // The programs may be on standard output.
  std::fputs(describe(graph, forest.value(), rooted, end - begin).c_str(),
             options.output == "-" ? stderr : stdout);
  if (options.output.empty()) return {};
  algo::Problem problem;
  problem.collective = collective.value().collective;
  problem.rank_count = n;
  problem.root = options.root;
  problem.forest = &forest.value();
  sched::ProgramSet set;
  for (Rank rank = 0; rank < n; ++rank) {
    set.programs.push_back(algo::compile(*algorithm, problem, rank));
  }
  return write(options.output, sched::to_json(set));
}

}  // namespace

void add_search_command(cli::Command& app, int* exit_code) {
  cli::Command command = app.add_subcommand(
      "search", "The trees along which a collective uses the links of a machine best");
  const auto options = std::make_shared<SearchOptions>();
  command
      .add_option("-c,--collective", options->collective,
                  "all_reduce, reduce_scatter, all_gather, broadcast or reduce")
      .show_default();
  command.add_option("--root", options->root, "of broadcast and reduce");
  command.add_option("-t,--topology", options->topology_file, "hwloc's or NCCL's XML of a machine")
      .value_name("FILE")
      .required();
  command
      .add_option("--hosts", options->hosts,
                  "hosts like the one of the file; ranks fill them in blocks")
      .show_default();
  command.add_option("-n,--ranks", options->rank_count,
                     "number of ranks; without it, one on each GPU or core");
  command
      .add_option("--searched-ranks", options->searched_ranks,
                  "search all at once up to so many ranks, beyond that host by host")
      .range<uint32_t>(0, 64)
      .show_default();
  command.add_option("-o,--output", options->output,
                     "write the programs of all ranks to this file; - is standard output");
  command.add_flag("--graph", options->show_graph, "print the link graph first");
  command.footer(
      "Example: weir-sched search --topology machine.xml --hosts 2 -o programs.json\n"
      "The programs can be verified (weir-sched verify --file) and run.");
  command.on_parsed([options, exit_code] {
    const Status status = run(*options);
    if (status.ok()) return;
    fmt::print(stderr, "weir-sched search: {}\n", status.text());
    *exit_code = kExitInput;
  });
}

}  // namespace weir::sched_tool
