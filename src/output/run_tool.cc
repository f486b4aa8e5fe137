// SPDX-License-Identifier: Apache-2.0
#include "output/run_tool.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>

namespace weir::output {

std::string stdout_error() {
  const bool earlier = std::ferror(stdout) != 0;
  const int error = std::fflush(stdout) != 0 ? errno : 0;
  if (error == 0 && !earlier) return {};
  return fmt::format("cannot write standard output{}{}; its text is incomplete",
                     error == 0 ? "" : ": ", error == 0 ? "" : std::strerror(error));
}

int run_tool(const char* program, int (*run)(int argc, char** argv), int argc, char** argv,
             int failed_status) {
  int status = failed_status;
  std::string wrong;
  try {
    status = run(argc, argv);
  } catch (const std::system_error& error) {  // of fmt::print
    wrong = std::ferror(stdout) == 0 ? error.what()
                                     : fmt::format(
                                           "cannot write standard output: {}; its text is "
                                           "incomplete",
                                           error.code().message());
  }
  if (wrong.empty()) wrong = stdout_error();
  if (wrong.empty()) return status;
  std::fputs(fmt::format("{}: {}\n", program, wrong).c_str(), stderr);
  return failed_status;
}

}  // namespace weir::output
