// SPDX-License-Identifier: Apache-2.0
// Runs a program, or a function of this one in a separate process, to its end and keeps its output.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"

namespace weir::info {

struct Output {
  int exit_code = 0;  // 128 + the signal that ended it
  std::string out;    // of its standard output
  std::string err;
};

// `arguments` begins with the path of the program; `environment` is added to that of this process.
// A program that is not done after `timeout_ms`, or prints more than a mebibyte, is killed, which
// is an error.
Result<Output> run_program(const std::vector<std::string>& arguments,
                           const std::vector<std::pair<std::string, std::string>>& environment,
                           int timeout_ms);

// The result of `work` in a forked process, whose own output is discarded: for libraries that may
// hang, crash or print when they are opened. An error says how the process ended without a result.
Result<std::string> answer_of_fork(const std::function<std::string()>& work, int timeout_ms);

}  // namespace weir::info
