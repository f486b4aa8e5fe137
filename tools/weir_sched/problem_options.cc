// SPDX-License-Identifier: Apache-2.0
#include "weir_sched/problem_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "command_line/command_line.h"
#include "core/algo/collective_names.h"

namespace weir::sched_tool {
namespace {

// A whole number, with nothing else in `text`.
bool parse_number(std::string_view text, uint32_t* number) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, *number);
  return error == std::errc() && stop == end && !text.empty();
}

}  // namespace

void add_algorithm_options(cli::Command& command, ProblemOptions* options) {
  command.add_option("-c,--collective", options->collective, "all_reduce, broadcast, …");
  command.add_option("-a,--algorithm", options->algorithm, "as weir-sched list names it");
}

void add_problem_options(cli::Command& command, ProblemOptions* options) {
  command.add_option("--root", options->root, "of broadcast, reduce, gather and scatter");
  command.add_option("--per-node", options->per_node,
                     "ranks per node, for hierarchical algorithms (default: one node)");
  command.add_option("--nodes", options->nodes, "node of each rank, such as 0,0,1,1")
      .delimiter(',');
  command.add_flag("--in-place", options->in_place, "send and receive buffers share memory");
}

Result<algo::NamedCollective> parse_collective(const std::string& name) {
  const auto named = algo::collective_named(name);
  if (named && named->collective != Collective::kSendRecv) return *named;
  return invalid_argument(
      fmt::format("unknown collective \"{}\"; known are {}", name, algo::known_collectives()));
}

Result<const algo::Algorithm*> find_algorithm(const ProblemOptions& options) {
  const Result<algo::NamedCollective> named = parse_collective(options.collective);
  if (!named.ok()) return named.status();
  const auto [collective, lengths] = named.value();
  const algo::Algorithm* found = algo::find_algorithm(collective, options.algorithm);
  if (found != nullptr && found->lengths >= lengths) return found;
  std::string known;
  for (const algo::Algorithm* algorithm : algo::all_algorithms()) {
    if (algorithm->collective != collective || algorithm->lengths < lengths) continue;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", algorithm->name);
  }
  return invalid_argument(fmt::format("unknown algorithm \"{}\" for {}; known are {}",
                                      options.algorithm, options.collective, known));
}

Result<std::vector<Rank>> parse_rank_counts(const std::string& text, Rank max) {
  std::vector<Rank> counts;
  size_t start = 0;
  while (start <= text.size()) {
    const size_t comma = std::min(text.find(',', start), text.size());
    const std::string_view part(text.data() + start, comma - start);
    const size_t dots = part.find("..");
    const std::string_view first_text = part.substr(0, std::min(dots, part.size()));
    const std::string_view last_text =
        dots == std::string_view::npos ? first_text : part.substr(dots + 2);
    uint32_t first = 0;
    uint32_t last = 0;
    if (!parse_number(first_text, &first) || !parse_number(last_text, &last)) {
      return invalid_argument(
          fmt::format("--ranks: \"{}\" is neither a number nor a range such as 1..64", part));
    }
    if (first < 1 || last > max || first > last) {
      return invalid_argument(
          fmt::format("--ranks: \"{}\" must rise and lie within 1..{}", part, max));
    }
    for (Rank count = first; count <= last; ++count) counts.push_back(count);
    start = comma + 1;
  }
  return counts;
}

std::string why_unsupported(const algo::Algorithm& algorithm, const algo::Problem& problem) {
  const char* why =
      "needs nodes that are numbered from 0 in order of first appearance; mend --nodes";
  if (algorithm.uses_forest) {
    why =
        "needs trees over the links of a machine: \"weir-sched search --topology FILE -o OUT\" "
        "writes its programs, and \"verify --file OUT\" checks them";
  } else if (algorithm.uses_rings) {
    why =
        "needs rings over the links of a machine that are better than the order of ranks: "
        "\"weir-sched sim --topology FILE\" looks for them";
  } else if (algorithm.groups == &algo::Problem::cache_of_rank) {
    why =
        "needs ranks in two or more groups by last-level cache, one of them of several ranks: "
        "\"weir-sched sim --topology FILE\" of a machine without GPUs has them";
  } else if (algorithm.groups == &algo::Problem::numa_of_rank) {
    why =
        "needs ranks in two or more groups by NUMA node, one of them of several ranks: "
        "\"weir-sched sim --topology FILE\" of a machine without GPUs has them";
  } else if (algorithm.lengths != algo::BlockLengths::kEqual &&
             problem.lengths == algo::BlockLengths::kEqual) {
    why = "is only for blocks of different lengths; name the collective with _v";
  }
  return fmt::format("{}/{} on {} ranks: it {}", algo::name_of(problem.collective, problem.lengths),
                     algorithm.name, problem.rank_count, why);
}

Result<OwnedProblem> make_problem(const algo::Algorithm& algorithm, Rank rank_count,
                                  const ProblemOptions& options) {
  OwnedProblem owned;
  algo::Problem& problem = owned.problem;
  problem.collective = algorithm.collective;
  problem.rank_count = rank_count;
  problem.root = options.root;
  problem.mapped = algorithm.needs_mapped || algorithm.needs_user_windows;
  problem.inputs_mapped = algorithm.needs_user_windows;
  problem.outputs_mapped = algorithm.needs_user_windows;
  problem.in_place = options.in_place;
  // If no collective is named, the one that the algorithm is for.
  const auto named = algo::collective_named(options.collective);
  problem.lengths = named ? named->lengths : algorithm.lengths;
  if (rank_count == 0) return invalid_argument("--ranks must be at least 1");
  if (options.root >= rank_count) {
    return invalid_argument(
        fmt::format("--root {} is out of range, there are {} ranks", options.root, rank_count));
  }
  if (!options.nodes.empty()) {
    if (options.nodes.size() != rank_count) {
      return invalid_argument(
          fmt::format("--nodes has {} entries for {} ranks", options.nodes.size(), rank_count));
    }
    owned.nodes = options.nodes;
  } else if (options.per_node > 0) {
    for (Rank rank = 0; rank < rank_count; ++rank) owned.nodes.push_back(rank / options.per_node);
  }
  if (!algorithm.supports(owned.get())) {
    return invalid_argument(why_unsupported(algorithm, owned.get()));
  }
  return owned;
}

}  // namespace weir::sched_tool
