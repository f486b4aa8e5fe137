// SPDX-License-Identifier: Apache-2.0
// Slices: a large operation as several smaller ones of the same kind, so that copies between device
// and host overlap with the network. An operation's buffer is one block, or one for each rank;
// slice k is elements [k * width, …) of every block. All ranks cut alike: the cut depends on what
// they have agreed on, and not on where a rank's memory lies. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "nccl/host/operation.h"

namespace weir::nccl {

// Longer operations are cut into wider slices: a stream takes about so many calls for one operation
// at most (two for flags, and one for each block of a slice), of the thousand that a launch queue
// holds.
inline constexpr size_t kCallsMax = 256;

struct Cut {
  size_t send_blocks = 0;  // 0: this rank does not use the buffer
  size_t recv_blocks = 0;
  size_t larger_blocks = 1;  // of the larger buffer, on whichever rank it is
  size_t element_bytes = 1;
  size_t width = 0;        // elements of a block in a slice, but for the last one
  size_t slice_count = 1;  // at least one, even without elements

  size_t send_bytes() const { return send_blocks * width * element_bytes; }
  size_t recv_bytes() const { return recv_blocks * width * element_bytes; }
};

// `chunk_bytes`: of the larger buffer, in one slice; 0: the operation stays whole.
Cut cut(const Operation& operation, uint64_t chunk_bytes);

}  // namespace weir::nccl
