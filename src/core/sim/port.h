// SPDX-License-Identifier: Apache-2.0
// Port: what serves one message after another, in the order in which they claim it. A value.
#pragma once

#include <algorithm>

#include "core/cost/op_stream.h"

namespace weir::sim {

using cost::Picoseconds;

struct Port {
  Picoseconds free = 0;  // when the last message that claimed it is through
  Picoseconds busy = 0;  // for how long it has been taken

  // Takes the port from `time` on, or from when it is free; returns from when.
  Picoseconds claim(Picoseconds time, Picoseconds taken) {
    const Picoseconds start = std::max(time, free);
    free = start + taken;
    busy += taken;
    return start;
  }
};

}  // namespace weir::sim
