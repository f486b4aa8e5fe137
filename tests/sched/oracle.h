// SPDX-License-Identifier: Apache-2.0
// An independent judge of programs, for tests of the verifier: it runs all ranks on explicit values
// (which ranks, folded how, as text) under random interleavings, and knows of memory only what
// weir.h says. It shares no code with the verifier. What it rejects is wrong; what it accepts was
// right in this one interleaving.
//
// Users' memory is poisoned before a rank enters the call (which happens at a random time) and as
// soon as it has left, so that accesses outside the call are seen.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/sched/layout.h"
#include "core/sched/program.h"

namespace weir::sched {

struct OracleResult {
  std::string error;  // empty: right
  // By (rank, output chunk): "(0+1+2)".
  std::map<std::pair<Rank, uint32_t>, std::string> outputs;
};

struct OracleOptions {
  Access access;
  uint32_t credit = 1;
  uint64_t seed = 1;
};

OracleResult run_oracle(std::span<const Program> programs, const OracleOptions& options);

}  // namespace weir::sched
