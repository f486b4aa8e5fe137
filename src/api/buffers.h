// SPDX-License-Identifier: Apache-2.0
// Checks of the buffers that a caller passes: not NULL where they are used, and either apart or
// exactly in place. Pure.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/engine/call.h"

namespace weir::api {

// The largest buffer: what a pointer difference can express.
constexpr size_t kBytesMax = PTRDIFF_MAX;

// Blocks of one rank each within a buffer, in elements. Memory between them is not the buffer's.
struct Blocks {
  const size_t* counts = nullptr;         // nullptr: the whole buffer is one
  const size_t* displacements = nullptr;  // nullptr: blocks follow each other
};

struct Sides {
  size_t send_bytes;
  size_t recv_bytes;
  bool sends = true;            // this rank reads its send buffer
  bool receives = true;         // this rank writes its receive buffer
  size_t in_place_at = 0;       // in place is recv == send + this
  bool offset_in_recv = false;  // or send == recv + in_place_at
  Blocks send_blocks = {};
  Blocks recv_blocks = {};
};

bool overlaps(const void* a, size_t a_bytes, const void* b, size_t b_bytes);

// Whether a block of one buffer overlaps one of the other; `n` blocks each, or one.
bool blocks_overlap(const void* send, const void* recv, const Sides& sides, Rank n, size_t element);

// Sets call.in_place. Returns what is wrong, or nullptr. `n` and `element` (bytes) are for blocks.
inline const char* check_buffers(const void* send, const void* recv, const Sides& sides,
                                 engine::Call& call, Rank n = 0, size_t element = 1) {
  if (sides.sends && sides.send_bytes > 0 && send == nullptr) return "send is NULL";
  if (sides.receives && sides.recv_bytes > 0 && recv == nullptr) return "recv is NULL";
  if (!sides.sends || !sides.receives || sides.send_bytes == 0 || sides.recv_bytes == 0)
    return nullptr;
  const auto* s = static_cast<const char*>(send);
  const auto* r = static_cast<const char*>(recv);
  if (sides.offset_in_recv ? s == r + sides.in_place_at : r == s + sides.in_place_at) {
    call.in_place = true;
    return nullptr;
  }
  if (overlaps(send, sides.send_bytes, recv, sides.recv_bytes) &&
      blocks_overlap(send, recv, sides, n, element)) {
    return "send and recv overlap other than in place";
  }
  return nullptr;
}

// The end of the furthest of `n` blocks, in elements, but for empty ones; false when it overflows.
bool extent(const size_t* counts, const size_t* displacements, Rank n, size_t element, size_t* end);

}  // namespace weir::api
