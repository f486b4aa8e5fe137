// SPDX-License-Identifier: Apache-2.0
// The program that a rank executes where buffers are told (op.h), for given buffers: what the
// engine does while it runs, as a program that the verifier, the simulator and people can read.
// Pure functions; thread-safe.
#pragma once

#include <vector>

#include "core/sched/program.h"

namespace weir::sched {

// By rank: whether its buffer lies in a window.
struct OpenBuffers {
  std::vector<bool> inputs;
  std::vector<bool> outputs;
};

// Whether a rank executes an operation with this condition.
constexpr bool holds(When when, bool input_open, bool output_open) {
  switch (when) {
    case When::kAlways:
      return true;
    case When::kInputOpen:
      return input_open;
    case When::kInputClosed:
      return !input_open;
    case When::kOutputOpen:
      return output_open;
    case When::kOutputClosed:
      return !output_open;
  }
  return true;
}

// Without conditions and stand-ins.
Program with_buffers(const Program& program, const OpenBuffers& open);

// The bytes that a rank reads and writes in a program without conditions, in chunks of one byte: a
// copy reads and writes one, a fold of n reads n and writes one. A copy onto itself moves nothing;
// `in_place`: Input and Output share memory.
uint64_t touched_chunks(const Program& program, bool in_place);

}  // namespace weir::sched
