// SPDX-License-Identifier: Apache-2.0
// How a mapped plan divides its data: pure functions of sizes, with the measured figures on which
// they are based (docs/performance.md). All ranks give the same arguments and so get the same
// result. Thread-safe.
#pragma once

#include <cstdint>

#include "core/algo/algorithm.h"
#include "core/engine/mapped_plan.h"

namespace weir::engine {

// Below this size, agreeing on windows costs more than the copies that it saves.
inline constexpr uint64_t kWindowBytesMin = 16 * 1024;
// The same for rooted operations: their root works ahead, which an agreement prevents.
inline constexpr uint64_t kRootedWindowBytesMin = 256 * 1024;
// Slices of programs over messages; also of the probe that measures them.
inline constexpr uint64_t kMessageSliceBytes = 128 * 1024;
// The same for one collective. `wire_ns_per_byte`: of the slowest network card; 0: no network.
uint64_t message_slice_bytes(Collective collective, Rank rank_count, double wire_ns_per_byte = 0);

// The lanes of a program along the trees of the problem, of its lanes_max, for slices of so many
// bytes (0: chunks are not cut); 0: it has no trees. Over one lane as many slices are in flight as
// there are lanes, and the links of a rank work on several of them; but a slice more in flight is a
// slice more to wait for at the beginning and at the end. So: as few lanes as leave four rounds or
// more of slices.
uint32_t tree_lanes(const algo::Problem& problem, uint64_t bytes, uint64_t slice_bytes);

struct SlicingQuestion {
  uint64_t chunk_bytes_max = 0;  // longest chunk of the grid
  uint32_t staging_slots = 0;    // per rank
  uint64_t staging_bytes = 0;    // staging memory per rank
  uint32_t rank_count = 1;
  bool shared_cores = false;  // ranks take turns on their cores
  bool one_signal = false;    // the program may use the line protocol
  bool told = false;          // slots may not be used at all (sched/op.h)
  uint64_t slice_bytes = 0;   // wanted by the user; 0: choose
};

Slicing choose_slicing(const SlicingQuestion& question);

}  // namespace weir::engine
