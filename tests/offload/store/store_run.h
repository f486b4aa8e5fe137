// SPDX-License-Identifier: Apache-2.0
// What the tests of the store share: a small description, the bytes that each chunk holds at each
// step, steps written and checked over a Disk as a pipeline would do it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "offload/store/aligned_buffer.h"
#include "offload/store/store.h"

namespace weir::offload {

inline constexpr uint64_t kTestChunkBytes = 4096;

StoreDescription test_description(uint32_t rank = 0, uint32_t rank_count = 1);
std::vector<std::string> test_directories(uint32_t count = 2);
// Draws the same numbers for the same seed.
StoreOptions test_options(uint64_t seed);

// The payload of a chunk after a step; `salt` tells attempts at the same step apart.
void fill(uint64_t chunk, uint64_t step, uint64_t salt, unsigned char* buffer, uint64_t bytes);

// begin_step, then every chunk: read and checked (unless nothing was written yet) and compared with
// what `before` left, written with what `step` leaves. Ends within the step.
Status write_step(Disk& disk, Store& store, uint64_t step, uint64_t salt = 0);
// write_step, and commit with the step as data.
Status commit_step(Disk& disk, Store& store, uint64_t step, uint64_t salt = 0);

// Ok when every chunk reads as `step` left it. kInternal when the store calls good what is not
// (wrong data: the one thing that must never be), else the store's own error.
Status check_state(Disk& disk, Store& store, uint64_t step, uint64_t salt = 0);

// check_state of whatever the store says is committed.
Status check_committed(Disk& disk, Store& store, uint64_t salt = 0);

}  // namespace weir::offload
