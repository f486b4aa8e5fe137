// SPDX-License-Identifier: Apache-2.0
// RangeAllocator: hands out ranges of [0, bytes), and takes them back in any order. Each range is a
// multiple of 64 bytes at a multiple of 64. The smallest free piece that is large enough is taken,
// and of equal ones the first; a freed range is joined with the free pieces beside it. O(log n) in
// the number of ranges and free pieces. It never touches the memory. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

namespace weir::comm {

class RangeAllocator {
 public:
  static constexpr uint64_t kAlignmentBytes = 64;

  explicit RangeAllocator(uint64_t bytes);

  // The offset of `bytes` bytes, more than 0; none when no free piece is that long.
  std::optional<uint64_t> allocate(uint64_t bytes);
  // False when no range in use begins at `offset`; then nothing has changed.
  bool free(uint64_t offset);

  uint64_t bytes() const { return bytes_; }
  uint64_t used_bytes() const { return used_bytes_; }
  uint64_t largest_free_bytes() const { return by_bytes_.empty() ? 0 : by_bytes_.rbegin()->first; }
  size_t range_count() const { return used_.size(); }

 private:
  void add_free(uint64_t offset, uint64_t bytes);
  void remove_free(std::map<uint64_t, uint64_t>::iterator piece);

  uint64_t bytes_;
  uint64_t used_bytes_ = 0;
  std::unordered_map<uint64_t, uint64_t> used_;       // by offset: bytes
  std::map<uint64_t, uint64_t> free_;                 // by offset: bytes; no two are adjacent
  std::set<std::pair<uint64_t, uint64_t>> by_bytes_;  // the same as (bytes, offset)
};

}  // namespace weir::comm
