// SPDX-License-Identifier: Apache-2.0
// How a command-line tool ends: output that was lost is an error. For the main thread.
#pragma once

#include <string>

namespace weir::output {

// Writes what is buffered. Returns "", or why standard output has lost something.
std::string stdout_error();

// The status of run(argc, argv); `failed_status` and a line on standard error where standard output
// could not be written, whatever `run` returns.
int run_tool(const char* program, int (*run)(int argc, char** argv), int argc, char** argv,
             int failed_status = 1);

}  // namespace weir::output
