// SPDX-License-Identifier: Apache-2.0
// weir-sched sim: how long a collective would take on a given network.
#pragma once

namespace weir::cli {
class Command;
}

namespace weir::sched_tool {

void add_sim_command(cli::Command& app, int* exit_code);

}  // namespace weir::sched_tool
