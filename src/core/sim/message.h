// SPDX-License-Identifier: Apache-2.0
// What the simulator keeps of a message in flight and of a signal. Values.
#pragma once

#include <cstdint>

#include "core/base/types.h"
#include "core/cost/message_pool.h"
#include "core/sim/costs.h"

namespace weir::sim {

// Where the time on a chain of dependences went; the rest of the time was contention.
struct Path {
  Picoseconds overhead = 0;
  Picoseconds latency = 0;
  Picoseconds transfer = 0;
  Picoseconds compute = 0;
};

struct Message {
  Rank source = 0;
  Rank target = 0;
  // The pool's, once it has arrived; before: how many links of its way it has claimed.
  uint32_t next = cost::kNoMessage;
  uint32_t hops : 22;
  // The source's core writes the target's memory, or the target's core reads the source's.
  uint32_t is_write : 1;
  uint32_t is_read : 1;
  uint32_t lane : 8;
  uint64_t bytes = 0;
  Picoseconds first = 0;  // with task times: when the receiver can begin
  Picoseconds end = 0;    // when the last byte leaves the port that was claimed last
  Path path;

  Message() : hops(0), is_write(0), is_read(0), lane(0) {}
  bool is_access() const { return is_write != 0 || is_read != 0; }
};
static_assert(sizeof(Message) == 72);

struct SignalRecord {
  Picoseconds time = 0;  // given; latency comes on top
  Path path;
  uint64_t hops = 0;
};

}  // namespace weir::sim
