// SPDX-License-Identifier: Apache-2.0
// Job: runs a Plan with the real library in a World, and judges what every rank got. One at a time;
// one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "simnet/plan.h"

namespace weir::simnet {

struct Verdict {
  std::vector<std::string> wrong;  // empty: every property held
  uint64_t trace_hash = 0;
  std::string trace;  // where asked for
  uint64_t virtual_ns = 0;
  uint64_t message_count = 0;
  uint64_t post_count_max = 0;  // of any rank
};

Verdict run_job(const Plan& plan, bool keeps_trace = false);

// The seed, what went wrong and the command that shows it again.
std::string describe(const Plan& plan, const Verdict& verdict);

}  // namespace weir::simnet
