// SPDX-License-Identifier: Apache-2.0
// weir-sched print: the programs of one problem, as text or JSON.
#include <fmt/format.h>

#include <cstdio>
#include <memory>

#include "command_line/command_line.h"
#include "core/algo/check.h"
#include "core/sched/json.h"
#include "core/sched/print.h"
#include "weir_sched/commands.h"
#include "weir_sched/problem_options.h"

namespace weir::sched_tool {
namespace {

constexpr uint32_t kAllPrograms = 0xffffffffu;

struct PrintOptions {
  ProblemOptions problem;
  uint32_t rank_count = 0;
  uint32_t rank = kAllPrograms;
  bool as_json = false;
};

// A single rank is compiled alone, so that any rank of a very large problem can be shown.
constexpr Rank kAllRanksMax = sched::kVerifiedRankCountMax;

Status print(const PrintOptions& options) {
  const Result<const algo::Algorithm*> algorithm = find_algorithm(options.problem);
  if (!algorithm.ok()) return algorithm.status();
  const Result<OwnedProblem> owned =
      make_problem(*algorithm.value(), options.rank_count, options.problem);
  if (!owned.ok()) return owned.status();
  const algo::Problem problem = owned.value().get();
  const bool one = options.rank != kAllPrograms;
  if (one && options.rank >= problem.rank_count) {
    return invalid_argument(fmt::format("--rank {} is out of range, there are {} ranks",
                                        options.rank, problem.rank_count));
  }
  if (!one && problem.rank_count > kAllRanksMax) {
    return invalid_argument(
        fmt::format("more than {} programs at once: choose one with --rank", kAllRanksMax));
  }
  sched::ProgramSet set{algo::access_of(problem), {}};
  if (one) {
    set.programs.push_back(algo::compile(*algorithm.value(), problem, options.rank));
  } else {
    set.programs = algo::compile_all(*algorithm.value(), problem);
  }
  std::string text;
  if (options.as_json) {
    text = one ? sched::to_json(set.programs.front()) : sched::to_json(set);
  } else {
    for (const sched::Program& program : set.programs) text += sched::print(program);
  }
  fmt::print("{}", text);
  return {};
}

}  // namespace

void add_print_command(cli::Command& app, int* exit_code) {
  cli::Command command = app.add_subcommand("print", "What each rank does");
  const auto options = std::make_shared<PrintOptions>();
  add_algorithm_options(command, &options->problem);
  command.option("--collective").required();
  command.option("--algorithm").required();
  command.add_option("-n,--ranks", options->rank_count, "number of ranks").required();
  command.add_option("-r,--rank", options->rank, "only this rank (default: all)");
  add_problem_options(command, &options->problem);
  command.add_flag("--json", options->as_json,
                   "JSON; for all ranks it is what weir-sched verify --file reads");
  command.on_parsed([options, exit_code] {
    const Status status = print(*options);
    if (status.ok()) return;
    fmt::print(stderr, "weir-sched print: {}\n", status.text());
    *exit_code = status.code() == Code::kInvalidArgument ? kExitInput : kExitFlaw;
  });
}

}  // namespace weir::sched_tool
