// SPDX-License-Identifier: Apache-2.0
// One rank's part of a run: for each cycle, type, reduction, root and size it warms up, times and
// checks the operation out of place and in place. All ranks of the communicator run it with equal
// options.
#pragma once

#include <string>

#include <weir/weir.h>

#include "perf/harness/machine.h"
#include "perf/harness/operation.h"
#include "perf/harness/options.h"
#include "perf/harness/report.h"

namespace weir::perf {

struct RankJob {
  const Options* options = nullptr;
  const Operation* operation = nullptr;
  weir_comm_t comm = nullptr;
  int rank = 0;
  int rank_count = 1;
  int process = 0;
  int process_count = 1;
  int local_rank = 0;  // among the ranks of this machine
  int local_rank_count = 1;
  int pinned_cpu = -1;
  size_t resident_bytes = 0;  // of the process before it made a communicator
  std::string launch;
  Machine machine;
};

inline constexpr int kExitOk = 0;
// Also: less bandwidth than NCCL_TESTS_MIN_BW, or lost output.
inline constexpr int kExitWrong = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitError = 3;

// Prints errors on stderr with the rank. Returns one of the above. The caller keeps the
// communicator.
int run_rank(const RankJob& job);

}  // namespace weir::perf
