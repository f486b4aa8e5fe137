// SPDX-License-Identifier: Apache-2.0
// weir-sched: shows the programs of a collective's ranks, and checks that they are right.
#include "command_line/command_line.h"
#include "output/run_tool.h"
#include "weir_sched/commands.h"
#include "weir_sched/sim_command.h"

namespace weir::sched_tool {
namespace {

constexpr const char* kDescription =
    "Shows and checks schedules: the operations that each rank of a collective performs.";

constexpr const char* kExamples = R"(
Examples:
  weir-sched list
  weir-sched print --collective all_reduce --algorithm ring --ranks 8 --rank 0
  weir-sched print --collective broadcast --algorithm binomial --ranks 5 --root 2 --json > tree.json
  weir-sched verify --file tree.json
  weir-sched verify --all --ranks 1..64
  weir-sched import exported.xml --output programs.json
  weir-sched verify --collective all_reduce --algorithm hierarchical --ranks 24 --per-node 8
  weir-sched search --topology machine.xml --hosts 2 --output programs.json
  weir-sched sim --collective all_reduce --all --ranks 64 --nodes 8 --bytes 64M
  weir-sched sim --collective all_gather --all --bytes 64M --topology machine.xml --hosts 4
  weir-sched regret --machine 8x8:fabric --ranks 16,128 --bytes 8,64K,16M

Exit status: 0 right, 1 a program is wrong (or output failed), 2 wrong arguments or an unreadable
file.)";

int run(int argc, char** argv) {
  cli::CommandLine app(kDescription, "weir-sched");
  app.footer(kExamples);
  app.require_subcommand();
  int exit_code = kExitOk;
  add_list_command(app, &exit_code);
  add_print_command(app, &exit_code);
  add_verify_command(app, &exit_code);
  add_import_command(app, &exit_code);
  add_sim_command(app, &exit_code);
  add_regret_command(app, &exit_code);
  add_search_command(app, &exit_code);
  return app.parse(argc, argv, kExitInput).value_or(exit_code);
}

}  // namespace
}  // namespace weir::sched_tool

int main(int argc, char** argv) {
  return weir::output::run_tool("weir-sched", weir::sched_tool::run, argc, argv);
}
