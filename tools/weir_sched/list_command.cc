// SPDX-License-Identifier: Apache-2.0
// weir-sched list: all algorithms.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "weir_sched/commands.h"
#include "weir_sched/problem_options.h"

namespace weir::sched_tool {
namespace {

int list(const std::string& only) {
  if (!only.empty()) {
    const Result<Collective> collective = parse_collective(only);
    if (!collective.ok()) {
      fmt::print(stderr, "weir-sched list: {}\n", collective.status().text());
      return kExitInput;
    }
  }
  fmt::print("{:<15} {:<27} {:<8} {:<6} {}\n", "collective", "algorithm", "memory", "order",
             "idea");
  for (const algo::Algorithm* algorithm : algo::all_algorithms()) {
    if (!only.empty() && only != name_of(algorithm->collective)) continue;
    const char* memory = algorithm->needs_user_windows ? "windows"
                         : algorithm->needs_mapped     ? "mapped"
                                                       : "any";
    fmt::print("{:<15} {:<27} {:<8} {:<6} {}\n", name_of(algorithm->collective), algorithm->name,
               memory, algorithm->rank_order ? "rank" : "-", algorithm->summary);
  }
  return kExitOk;
}

}  // namespace

void add_list_command(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("list", "All algorithms, what they need and do");
  const auto only = std::make_shared<std::string>();
  command->add_option("-c,--collective", *only, "only those of this collective");
  command->footer(
      "memory: mapped needs staging memory that all ranks map, windows also needs users' buffers "
      "there.\n"
      "order: rank means that every element is one fold in rank order (deterministic mode).");
  command->callback([only, exit_code] { *exit_code = list(*only); });
}

}  // namespace weir::sched_tool
