// SPDX-License-Identifier: Apache-2.0
// Programs as text for people (as JSON: json.h). Pure functions; thread-safe.
//
//   rank 1 of 4, all_reduce: 4 chunks, 1 scratch slot, 1 lane
//     0  lane 0  send    in[1] -> rank 2
//     1  lane 0  recv    scratch[0] <- rank 0
//     2  lane 0  reduce  out[0] <- scratch[0] + in[0]
//
// A reference is space[chunk], space[first..last] for several, and …@rank at a peer.
#pragma once

#include <string>

#include "core/sched/program.h"

namespace weir::sched {

const char* name_of(OpCode code);  // "send", …
const char* name_of(Space space);  // "in", "out", "scratch", "staging"

// One operation without its number and lane: "send in[1] -> rank 2". Accepts broken programs.
std::string describe(const Program& program, const Op& op);
// "rank 1 op 2 (lane 0: send in[1] -> rank 2)", or "rank 1" when there is no such operation.
std::string locate(const Program& program, uint32_t op_index);
// The whole program, as above.
std::string print(const Program& program);

}  // namespace weir::sched
