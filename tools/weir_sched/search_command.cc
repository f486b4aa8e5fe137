// SPDX-License-Identifier: Apache-2.0
// weir-sched search: the trees along which a collective uses the links of a machine best, and the
// programs that go along them.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <optional>
#include <set>

#include "command_line/command_line.h"
#include "core/base/clock.h"
#include "core/cost/cache.h"
#include "core/graph/cluster_forest.h"
#include "core/graph/cut_bound.h"
#include "core/graph/kept_searches.h"
#include "core/graph/searches.h"
#include "core/sched/json.h"
#include "output/output_file.h"
#include "weir_sched/commands.h"
#include "weir_sched/problem_options.h"
#include "weir_sched/sim_machine.h"

namespace weir::sched_tool {
namespace {

constexpr uint32_t kHostsMax = 1'000'000;

struct SearchOptions {
  std::string collective = "all_reduce";
  uint32_t root = 0;
  std::string topology_file;
  uint32_t hosts = 1;
  uint32_t rank_count = 0;
  uint32_t searched_ranks = 16;
  std::string output;
  bool show_graph = false;
  bool keep = false;
  std::string kept;
  std::string cache;
  uint32_t trees = graph::ForestOptions().trees_max;
  uint64_t steps = graph::ForestOptions().steps_max;
};

Status write(const std::string& path, const std::string& text) {
  if (path == "-") {
    fmt::print("{}", text);
    return {};
  }
  const std::string wrong = output::write_file(path, text);
  return wrong.empty() ? Status() : Status(Code::kSystem, wrong);
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
      "{} ranks on {} host{}, {} vertices, {} links, graph {:016x}\n"
      "cut bound     {:.4g} GB/s from {} to all others\n"
      "trees         {} for each root, depth {} at most, between {} pairs of ranks\n"
      "they carry    {:.4g} GB/s, {:.3f} of the bound\n"
      "found in      {:.1f} ms, {} steps\n",
      graph.rank_count(), graph.host_count(), graph.host_count() == 1 ? "" : "s",
      graph.vertices().size(), graph.links().size(), graph.hash(), forest.bound_gbs,
      rooted ? "the root" : "each rank", forest.trees_per_root, depth, pairs.size(),
      forest.block_gbs, forest.block_gbs / forest.bound_gbs, static_cast<double>(ns) / 1e6,
      forest.steps);
}

Result<std::string> cache_of(const SearchOptions& options) {
  if (!options.cache.empty()) return options.cache;
  const char* setting = std::getenv("WEIR_CACHE_DIR");
  return cost::cache_directory(setting == nullptr ? "" : setting);
}

// The graph that a communicator has kept with its trees.
Result<graph::LinkGraph> kept_graph(const SearchOptions& options) {
  uint64_t hash = 0;
  const char* const end = options.kept.data() + options.kept.size();
  const auto parsed = std::from_chars(options.kept.data(), end, hash, 16);
  if (parsed.ec != std::errc() || parsed.ptr != end) {
    return invalid_argument(
        fmt::format("--kept {}: the hash of a graph has up to 16 hexadecimal "
                    "digits",
                    options.kept));
  }
  const auto directory = cache_of(options);
  if (!directory.ok()) return directory.status();
  auto record = graph::read_search(directory.value(), hash);
  if (!record.ok()) return record.status();
  if (!record.value()) {
    return invalid_argument(fmt::format("--kept: '{}/{}' does not exist", directory.value(),
                                        graph::kept_search_name(hash)));
  }
  return std::move(record.value()->graph);
}

// The better of what communicators find and what the limits of the command line allow.
Result<graph::Forest> search(const graph::LinkGraph& graph, const SearchOptions& options,
                             bool rooted) {
  std::vector<Rank> roots(graph.rank_count());
  std::iota(roots.begin(), roots.end(), 0u);
  if (rooted) roots = {options.root};
  Result<graph::Forest> usual = rooted
                                    ? graph::best_trees(graph, options.root, options.searched_ranks)
                                    : graph::best_forest(graph, options.searched_ranks);
  const graph::ForestOptions known;
  if (options.trees == known.trees_max && options.steps == known.steps_max) return usual;
  auto larger = graph::find_trees(
      graph, roots, {.trees_max = options.trees, .good_enough = 1, .steps_max = options.steps});
  // Smaller limits are those of the search that is asked for.
  if (options.trees < known.trees_max || options.steps < known.steps_max) return larger;
  if (!larger.ok()) return usual;
  const bool better = !usual.ok() || larger.value().block_gbs > usual.value().block_gbs;
  return better ? std::move(larger) : std::move(usual);
}

// Where communicators find it.
Status keep(const graph::LinkGraph& graph, const graph::Forest& forest,
            const SearchOptions& options) {
  const auto directory = cache_of(options);
  if (!directory.ok()) return directory.status();
  auto known = graph::read_search(directory.value(), graph.hash());
  graph::SearchRecord record{.graph = graph, .forests = {forest}, .rings = {}};
  std::FILE* const out = options.output == "-" ? stderr : stdout;
  if (known.ok() && known.value()) {
    record.rings = std::move(known.value()->rings);
    for (graph::Forest& other : known.value()->forests) {
      if (other.for_all_reduce || graph::roots_of(other) != graph::roots_of(forest)) {
        record.forests.push_back(std::move(other));
      } else if (other.block_gbs >= forest.block_gbs) {
        fmt::print(out, "kept trees    carry {:.4g} GB/s, as much: they stay\n", other.block_gbs);
        return {};
      }
    }
  }
  WEIR_RETURN_IF_ERROR(graph::store_search(directory.value(), record));
  fmt::print(out, "kept as       {}/{}\n", directory.value(),
             graph::kept_search_name(graph.hash()));
  return {};
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
  if (options.topology_file.empty() == options.kept.empty()) {
    return invalid_argument("give --topology or --kept");
  }
  std::optional<graph::LinkGraph> links;
  if (!options.kept.empty()) {
    auto kept = kept_graph(options);
    if (!kept.ok()) return kept.status();
    links = kept.take();
  } else {
    auto machine = read_sim_machine(options.topology_file, options.hosts, options.rank_count, true);
    if (!machine.ok()) return machine.status();
    links = std::move(machine.value().graph);
  }
  const graph::LinkGraph& graph = *links;
  const Rank n = graph.rank_count();
  if (options.root >= n) {
    return invalid_argument(fmt::format("--root: {} of {} ranks", options.root, n));
  }
  if (options.show_graph) fmt::print("{}\n", graph.text());
  const bool rooted = is_rooted(collective.value().collective);
  const uint64_t begin = now_ns();
  auto forest = search(graph, options, rooted);
  const uint64_t end = now_ns();
  if (!forest.ok()) return forest.status();
  // The programs may be on standard output.
  std::fputs(describe(graph, forest.value(), rooted, end - begin).c_str(),
             options.output == "-" ? stderr : stdout);
  if (options.keep) WEIR_RETURN_IF_ERROR(keep(graph, forest.value(), options));
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
      .value_name("FILE");
  command
      .add_option("--hosts", options->hosts,
                  "hosts like the one of the file; ranks fill them in blocks")
      .range<uint32_t>(1, kHostsMax)
      .show_default();
  command
      .add_option("-n,--ranks", options->rank_count,
                  "number of ranks; without it, one on each GPU or core")
      .range<uint32_t>(1, graph::kRecordRanksMax);
  command
      .add_option("--searched-ranks", options->searched_ranks,
                  "search all at once up to so many ranks, beyond that host by host")
      .range<uint32_t>(0, 64)
      .show_default();
  command.add_option("-o,--output", options->output,
                     "write the programs of all ranks to this file; - is standard output");
  command.add_flag("--keep", options->keep,
                   "keep the trees where communicators over the same links find them");
  command
      .add_option("--kept", options->kept,
                  "instead of --topology: the links of a communicator, by the hash of its graph, "
                  "which WEIR_EXPLAIN=1 shows")
      .excludes("--ranks")
      .excludes("--hosts")
      .value_name("HASH");
  command
      .add_option("--cache", options->cache,
                  "directory of what is kept; without it, that of communicators (WEIR_CACHE_DIR)")
      .value_name("DIR");
  command.add_option("--trees", options->trees, "up to so many trees for each root")
      .range<uint32_t>(1, 64)
      .show_default();
  command.add_option("--steps", options->steps, "give up after so many steps of a search")
      .range<uint64_t>(1, 1'000'000'000)
      .show_default();
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
