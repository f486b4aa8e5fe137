// SPDX-License-Identifier: Apache-2.0
// The subcommands of weir-sched: each function adds one to `app`; when it is chosen on the command
// line, its result is stored in *exit_code.
#pragma once

namespace weir::cli {
class Command;
}

namespace weir::sched_tool {

constexpr int kExitOk = 0;
constexpr int kExitFlaw = 1;   // a program is wrong
constexpr int kExitInput = 2;  // wrong arguments, or a file that cannot be read

void add_import_command(cli::Command& app, int* exit_code);
void add_list_command(cli::Command& app, int* exit_code);
void add_print_command(cli::Command& app, int* exit_code);
void add_regret_command(cli::Command& app, int* exit_code);
void add_search_command(cli::Command& app, int* exit_code);
void add_verify_command(cli::Command& app, int* exit_code);

}  // namespace weir::sched_tool
