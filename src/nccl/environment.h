// SPDX-License-Identifier: Apache-2.0
// NCCL's environment variables: what each means here, and what is said of those that mean nothing.
//
// Before a process makes its first unique id or communicator, the variables of NCCL's configuration
// file are set where they are not (as NCCL does), and those that have a counterpart of Weir's set it
// where it is not. NCCL_* variables that have no meaning on host memory are named in one line of the
// log, once a process.
// Thread-safe, except against threads that read the environment at that moment, as with every setenv.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "nccl/infiniband.h"
#include "nccl/outcome.h"

namespace weir::nccl {

struct Variable {
  const char* name;
  const char* default_value;
};

// Those that are honoured, by name.
const std::vector<Variable>& honoured_variables();

// Once a process; a forked child is another one. Errors name the variable.
Outcome apply_environment(const char* function);

// NCCL_COMM_ID: the id that every process makes from it. *set: whether it is set.
Outcome id_of_environment(const char* function, bool* set, ncclUniqueId* id);

// NCCL_TOPO_DUMP_FILE: writes this machine's topology there, once a process.
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
