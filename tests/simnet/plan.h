// SPDX-License-Identifier: Apache-2.0
// Plan: what a seed stands for: a job, its network, what its ranks do, and what goes wrong. A
// value.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/cost/rules.h"
#include "simnet/fabric.h"
#include "simnet/operation.h"
#include "simnet/world.h"

namespace weir::simnet {

enum class Fault : uint8_t {
  kNone,
  kKill,      // a rank dies
  kStop,      // a rank stops for ever
  kCut,       // a host is cut off for ever
  kMismatch,  // a rank calls something else
  kAbort,     // a rank aborts
};
const char* name_of(Fault fault);

struct Plan {
  uint64_t seed = 0;
  uint32_t rank_count = 2;
  std::vector<uint32_t> host_of_rank;
  WorldOptions world;
  FabricOptions fabric;
  cost::Rules rules;
  bool deterministic = false;
  int64_t timeout_ms = 20'000;
  std::vector<Operation> operations;
  std::vector<int> color_of_rank;                // empty: nobody splits
  std::vector<std::vector<Operation>> of_color;  // then, after the others
  std::vector<Operation> after;                  // on what is left of the job, by shrink

  Fault fault = Fault::kNone;
  uint32_t culprit = 0;  // kCut: its host
  // kKill, kStop: post, or in shared memory ns after the start; kCut: ns after the start; else
  // operation
  uint64_t fault_at = 0;
  std::vector<Stall> stalls;  // that end
  uint32_t paused = 0;        // this rank stops for pause_ns at its pause_at-th post; 0 ns: nobody
  uint64_t pause_at = 0;      // in shared memory ns after the start
  uint64_t pause_ns = 0;
  // Whoever has its results may make no calls until all others have theirs.
  bool stays_away = false;

  bool is_cut_off(uint32_t rank) const {
    return fault == Fault::kCut && host_of_rank[rank] == host_of_rank[culprit];
  }
  std::string describe() const;
};

Plan draw_plan(uint64_t seed);

}  // namespace weir::simnet
