// SPDX-License-Identifier: Apache-2.0
// NCCL's environment variables: what each does in Weir, and how those without an effect are
// reported.
//
// Before a process makes its first unique id or communicator, the variables of NCCL's configuration
// file are set where they are unset (as NCCL does), and those with a counterpart in Weir set that
// counterpart where it is unset. NCCL_* variables that have no meaning on host memory are named in
// one line of the log, once per process.
//
// Thread-safe, except against threads that read the environment at that moment, as with every
// setenv.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "nccl/base/infiniband.h"
#include "nccl/base/outcome.h"

namespace weir::nccl {

struct Variable {
  const char* name;
  const char* default_value;
};

// The variables that have an effect, by name.
const std::vector<Variable>& honoured_variables();

// One line for each variable whose value is none of those that NCCL documents: the value, what is
// allowed, and what is done instead. NCCL accepts them, too.
std::vector<std::string> unusual_values(const std::vector<std::string>& environment,
                                        const std::vector<InfinibandPort>& ports);

// Runs once per process; a forked child is another process. Errors name the variable.
Outcome apply_environment(const char* function);

// NCCL_COMM_ID: the unique id that every process derives from it. *set: whether the variable is
// set.
Outcome id_of_environment(const char* function, bool* set, ncclUniqueId* id);

// NCCL_TOPO_DUMP_FILE: writes this machine's topology there, once per process.
void dump_topology();

// For the tests: what the translation sets, as NAME=VALUE, for a given environment and machine.
std::vector<std::string> translate_environment(const std::vector<std::string>& environment,
                                               const std::vector<std::string>& transports,
                                               const std::vector<InfinibandPort>& ports,
                                               std::vector<std::string>* ignored,
                                               std::string* error);
// Lines NAME=VALUE of a configuration file of NCCL's; # begins a comment.
std::vector<std::string> parse_configuration(std::string_view text);

}  // namespace weir::nccl
