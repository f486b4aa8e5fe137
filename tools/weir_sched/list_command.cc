// SPDX-License-Identifier: Apache-2.0
// weir-sched list: all algorithms.
#include <fmt/format.h>

#include <memory>
#include <optional>

#include "command_line/command_line.h"
#include "weir_sched/commands.h"
#include "weir_sched/problem_options.h"

namespace weir::sched_tool {
namespace {

// Which ranks may have blocks of different lengths with an algorithm.
const char* text_of(algo::BlockLengths lengths) {
  switch (lengths) {
    case algo::BlockLengths::kEqual:
      return "equal";
    case algo::BlockLengths::kKnownToAll:
      return "all";
    case algo::BlockLengths::kKnownToEnds:
      return "ends";
  }
  return "?";
}

int list(const std::string& only) {
  std::optional<algo::NamedCollective> wanted;
  if (!only.empty()) {
    const Result<algo::NamedCollective> named = parse_collective(only);
    if (!named.ok()) {
      fmt::print(stderr, "weir-sched list: {}\n", named.status().text());
      return kExitInput;
    }
    wanted = named.value();
  }
  fmt::print("{:<15} {:<27} {:<8} {:<8} {:<6} {}\n", "collective", "algorithm", "memory", "lengths",
             "order", "idea");
  for (const algo::Algorithm* algorithm : algo::all_algorithms()) {
    if (wanted &&
        (wanted->collective != algorithm->collective || algorithm->lengths < wanted->lengths)) {
      continue;
    }
    const char* memory = algorithm->needs_user_windows ? "windows"
                         : algorithm->needs_mapped     ? "mapped"
                                                       : "any";
    algo::Problem equal;
    equal.collective = algorithm->collective;
    equal.rank_count = 4;
    const bool only_uneven =
        algorithm->lengths != algo::BlockLengths::kEqual && !algorithm->supports(equal);
    if (wanted && only_uneven && wanted->lengths == algo::BlockLengths::kEqual) continue;
    const algo::BlockLengths lengths = wanted        ? wanted->lengths
                                       : only_uneven ? algorithm->lengths
                                                     : algo::BlockLengths::kEqual;
    fmt::print("{:<15} {:<27} {:<8} {:<8} {:<6} {}\n",
               algo::name_of(algorithm->collective, lengths), algorithm->name, memory,
               text_of(algorithm->lengths), algorithm->rank_order ? "rank" : "-",
               algorithm->summary);
  }
  return kExitOk;
}

}  // namespace

void add_list_command(cli::Command& app, int* exit_code) {
  cli::Command command = app.add_subcommand("list", "All algorithms, what they need and do");
  const auto only = std::make_shared<std::string>();
  command.add_option("-c,--collective", *only, "only those of this collective");
  command.footer(
      "memory: mapped needs staging memory that all ranks map, windows also needs users' buffers "
      "there.\n"
      "lengths: all means that blocks may differ in length where every rank knows all lengths\n"
      "(all_gather_v, reduce_scatter_v), ends that the two ends of a message are enough\n"
      "(all_to_all_v).\n"
      "order: rank means that every element is one fold in rank order (deterministic mode).");
  command.on_parsed([only, exit_code] { *exit_code = list(*only); });
}

}  // namespace weir::sched_tool
