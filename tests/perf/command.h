// SPDX-License-Identifier: Apache-2.0
// Runs a program and keeps what it prints. One thread at a time.
#pragma once

#include <string>
#include <vector>

namespace weir::test {

struct CommandResult {
  int status = -1;  // 128 + signal when it was killed
  std::string out;
  std::string err;
};

// `program` is a path; the environment is this process's plus `environment` ("NAME=value"), without
// the variables of launchers that this test may itself run under.
CommandResult run_command(const std::string& program, const std::vector<std::string>& arguments,
                          const std::vector<std::string>& environment = {});

// A perf tool of the build.
CommandResult run_tool(const std::string& tool, const std::vector<std::string>& arguments,
                       const std::vector<std::string>& environment = {});

}  // namespace weir::test
