// SPDX-License-Identifier: Apache-2.0
#include "core/comm/collective/range_allocator.h"

#include <iterator>

namespace weir::comm {

RangeAllocator::RangeAllocator(uint64_t bytes) : bytes_(bytes / kAlignmentBytes * kAlignmentBytes) {
  if (bytes_ > 0) add_free(0, bytes_);
}

void RangeAllocator::add_free(uint64_t offset, uint64_t bytes) {
  free_.emplace(offset, bytes);
  by_bytes_.emplace(bytes, offset);
}

void RangeAllocator::remove_free(std::map<uint64_t, uint64_t>::iterator piece) {
  by_bytes_.erase({piece->second, piece->first});
  free_.erase(piece);
}

std::optional<uint64_t> RangeAllocator::allocate(uint64_t bytes) {
  if (bytes == 0 || bytes > bytes_) return std::nullopt;
  const uint64_t rounded = (bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
  const auto found = by_bytes_.lower_bound({rounded, 0});
  if (found == by_bytes_.end()) return std::nullopt;
  const auto [piece_bytes, offset] = *found;
  used_.emplace(offset, rounded);
  remove_free(free_.find(offset));
  if (piece_bytes > rounded) add_free(offset + rounded, piece_bytes - rounded);
  used_bytes_ += rounded;
  return offset;
}

bool RangeAllocator::free(uint64_t offset) {
  const auto range = used_.find(offset);
  if (range == used_.end()) return false;
  uint64_t begin = offset;
  uint64_t bytes = range->second;
  used_bytes_ -= bytes;
  used_.erase(range);
  auto after = free_.lower_bound(offset);
  if (after != free_.end() && after->first == offset + bytes) {
    bytes += after->second;
    const auto next = std::next(after);
    remove_free(after);
    after = next;
  }
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == begin) {
      begin = before->first;
      bytes += before->second;
      remove_free(before);
    }
  }
  add_free(begin, bytes);
  return true;
}

}  // namespace weir::comm
