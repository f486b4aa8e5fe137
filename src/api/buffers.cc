// SPDX-License-Identifier: Apache-2.0
#include "api/buffers.h"

#include <algorithm>
#include <vector>

namespace weir::api {

namespace {

struct Range {
  uintptr_t begin;
  uintptr_t end;
};

std::vector<Range> ranges_of(const void* buffer, size_t bytes, const Blocks& blocks, Rank n,
                             size_t element) {
  const auto begin = reinterpret_cast<uintptr_t>(buffer);
  if (blocks.counts == nullptr) return {{begin, begin + bytes}};
  std::vector<Range> ranges;
  size_t next = 0;
  for (Rank i = 0; i < n; ++i) {
    const size_t at = blocks.displacements != nullptr ? blocks.displacements[i] : next;
    next = at + blocks.counts[i];
    if (blocks.counts[i] != 0) ranges.push_back({begin + at * element, begin + next * element});
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  return ranges;
}

}  // namespace

bool overlaps(const void* a, size_t a_bytes, const void* b, size_t b_bytes) {
  const auto x = reinterpret_cast<uintptr_t>(a);
  const auto y = reinterpret_cast<uintptr_t>(b);
  return x < y + b_bytes && y < x + a_bytes;
}

bool blocks_overlap(const void* send, const void* recv, const Sides& sides, Rank n,
                    size_t element) {
  const auto sent = ranges_of(send, sides.send_bytes, sides.send_blocks, n, element);
  const auto received = ranges_of(recv, sides.recv_bytes, sides.recv_blocks, n, element);
  // Blocks of one side may overlap each other, so that the furthest end so far counts.
  uintptr_t sent_end = 0;
  uintptr_t received_end = 0;
  for (size_t s = 0, r = 0; s < sent.size() || r < received.size();) {
    if (r == received.size() || (s < sent.size() && sent[s].begin <= received[r].begin)) {
      if (sent[s].begin < received_end) return true;
      sent_end = std::max(sent_end, sent[s].end);
      ++s;
    } else {
      if (received[r].begin < sent_end) return true;
      received_end = std::max(received_end, received[r].end);
      ++r;
    }
  }
  return false;
}

bool extent(const size_t* counts, const size_t* displacements, Rank n, size_t element,
            size_t* end) {
  size_t next = 0;
  *end = 0;
  for (Rank i = 0; i < n; ++i) {
    if (counts[i] == 0) continue;
    const size_t begin = displacements != nullptr ? displacements[i] : next;
    if (counts[i] > kBytesMax / element || begin > kBytesMax / element - counts[i]) return false;
    next = begin + counts[i];
    *end = std::max(*end, next);
  }
  return true;
}

}  // namespace weir::api
