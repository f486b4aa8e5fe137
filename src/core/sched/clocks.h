// SPDX-License-Identifier: Apache-2.0
// Vector clocks as rows of numbers. Any thread.
#pragma once

#include <cstdint>

namespace weir::sched {

// Rows are padded to a multiple of this, with zeros.
inline constexpr uint32_t kClockGranule = 16;

// `to` becomes the larger of both in each of `count` places, a multiple of kClockGranule. The rows
// do not overlap. Most of a verification's time is spent here.
void join_clocks(uint32_t* to, const uint32_t* from, uint32_t count);

}  // namespace weir::sched
