// SPDX-License-Identifier: Apache-2.0
// The subcommands of weir-sched: each function adds one to `app`; when it was chosen on the command
// line, its result is stored in *exit_code.
#pragma once

namespace CLI {
class App;
}

namespace weir::sched_tool {

constexpr int kExitOk = 0;
constexpr int kExitFlaw = 1;   // a program is wrong
constexpr int kExitInput = 2;  // wrong arguments, or a file that cannot be read

void add_list_command(CLI::App& app, int* exit_code);
void add_print_command(CLI::App& app, int* exit_code);
void add_verify_command(CLI::App& app, int* exit_code);

}  // namespace weir::sched_tool
