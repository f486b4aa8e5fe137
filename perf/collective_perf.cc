// SPDX-License-Identifier: Apache-2.0
// The main program of each row of operations.cc. WEIR_PERF_PROGRAM is the row's name.
#include "output/run_tool.h"
#include "perf/operations.h"

namespace {

int run(int argc, char** argv) {
  const weir::perf::Operation* operation = weir::perf::find_operation(WEIR_PERF_PROGRAM);
  return operation != nullptr ? weir::perf::run_program(argc, argv, *operation) : 2;
}

}  // namespace

int main(int argc, char** argv) {
  return weir::output::run_tool(WEIR_PERF_PROGRAM, run, argc, argv);
}
