// SPDX-License-Identifier: Apache-2.0
// How a mapped plan cuts its data: pure functions of sizes, with the measured figures that they
// rest on (docs/performance.md). Every rank asks the same question and so gets the same answer.
// Thread-safe.
#pragma once

#include <cstdint>

#include "core/engine/mapped_plan.h"

namespace weir::engine {

// Below this, agreeing on windows costs more than the copies that it saves.
inline constexpr uint64_t kWindowBytesMin = 16 * 1024;
// Rooted operations let the root work ahead, which agreeing ends.
inline constexpr uint64_t kRootedWindowBytesMin = 256 * 1024;
// Slices of programs over messages; also of the probe that measures them.
inline constexpr uint64_t kMessageSliceBytes = 128 * 1024;
// Those of a collective.
uint64_t message_slice_bytes(Collective collective, Rank rank_count);

struct SlicingQuestion {
  uint64_t chunk_bytes_max = 0;  // longest chunk of the grid
  uint32_t staging_slots = 0;    // per rank
  uint64_t staging_bytes = 0;    // there is so much staging memory per rank
  uint32_t rank_count = 1;
  bool shared_cores = false;  // ranks take turns on their cores
  bool one_signal = false;    // the program may use the line protocol
  uint64_t slice_bytes = 0;   // wanted by the user; 0: choose
};

Slicing choose_slicing(const SlicingQuestion& question);

}  // namespace weir::engine
