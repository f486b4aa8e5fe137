// SPDX-License-Identifier: Apache-2.0
// The program that a rank executes where buffers are told (op.h), for given Inputs: what the
// engine does while it runs, as a program that the verifier, the simulator and people can read.
// Pure functions; thread-safe.
#pragma once

#include <vector>

#include "core/sched/program.h"

namespace weir::sched {

// Whether a rank whose Input is open, or not, executes an operation with this condition.
constexpr bool holds(When when, bool input_open) {
  return when == When::kAlways || (when == When::kInputOpen) == input_open;
}

// Without conditions and stand-ins; `open`, by rank: whether its Input lies in a window.
Program with_inputs(const Program& program, const std::vector<bool>& open);

// The bytes that a rank reads and writes in a program without conditions, in chunks of one byte: a
// copy reads and writes one, a fold of n reads n and writes one. A copy onto itself moves nothing;
// `in_place`: Input and Output share memory.
uint64_t touched_chunks(const Program& program, bool in_place);

}  // namespace weir::sched
