// SPDX-License-Identifier: Apache-2.0
// From one command to N ranks: local processes (--ranks), threads (-t), or what mpirun, srun or
// torchrun started. Not thread-safe; one use per process.
#pragma once

#include <functional>

namespace weir::perf {

// Forks `process_count` processes that run `body(index)` and exit with what it returns. Waits for
// all. If one fails, the others get a grace period to report and are then killed; none outlives the
// caller, however the caller ends. Returns the first non-zero status (128 + signal for one that was
// killed).
int run_processes(int process_count, const char* program, const std::function<int(int)>& body);

// Runs `body(index)` on `thread_count` threads; the largest of what they return.
int run_threads(int thread_count, const std::function<int(int)>& body);

// The name of the launcher whose rank variables are in the environment, or nullptr.
const char* launcher_in_environment();

}  // namespace weir::perf
