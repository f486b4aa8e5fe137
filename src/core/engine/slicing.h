// SPDX-License-Identifier: Apache-2.0
// How a mapped plan divides its data: pure functions of sizes, with the measured figures on which
// they are based (docs/performance.md). All ranks give the same arguments and so get the same
// result. Thread-safe.
#pragma once

#include <array>
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

// Those from which the router chooses where messages carry memory of devices over their links: what
// a message takes beside its bytes is worth hundreds of KiB there, and nothing has to fit into a
// processor's cache.
inline constexpr std::array<uint64_t, 7> kDeviceSliceBytes = {
    128 << 10, 256 << 10, 512 << 10, 1 << 20, 3 << 19, 2 << 20, 4 << 20};

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
