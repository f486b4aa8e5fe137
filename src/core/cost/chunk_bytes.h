// SPDX-License-Identifier: Apache-2.0
// ChunkBytes: how many bytes a run of chunks of a collective's grid (sched/op.h) has, whole or in
// one slice, for prediction and simulation. It follows the engine's chunk map for even block sizes:
// chunk boundaries inside a block are multiples of 64 bytes and the last chunks of a block are
// shorter. A value; thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/base/types.h"

namespace weir::cost {

// The number of equal blocks into which a collective's grid is divided.
constexpr uint64_t block_count(Collective collective, Rank rank_count) {
  switch (collective) {
    case Collective::kReduceScatter:
    case Collective::kAllGather:
    case Collective::kGather:
    case Collective::kScatter:
      return rank_count;
    case Collective::kAllToAll:
      return uint64_t{rank_count} * rank_count;
    default:
      return 1;
  }
}

// How a program is sliced: it runs once per slice of every chunk, `in_flight` slices at a time.
struct Slicing {
  uint64_t slice_bytes = 0;  // the longest slice of a chunk; 0: chunks are not cut
  uint32_t in_flight = 1;    // >= 1
};

class ChunkBytes {
 public:
  static constexpr uint64_t kGranuleBytes = 64;

  // `bytes` is the size of the largest buffer of one rank (what bandwidth tools print): the whole
  // vector of all_reduce, reduce, broadcast; all n blocks of the others.
  ChunkBytes(Collective collective, Rank rank_count, uint64_t bytes, uint32_t chunk_count,
             uint64_t slice_bytes = 0) {
    const uint64_t blocks = block_count(collective, rank_count);
    block_bytes_ = blocks == 1 ? bytes : bytes / rank_count;
    chunks_per_block_ = std::max<uint64_t>(1, chunk_count / blocks);
    const uint64_t even = (block_bytes_ + chunks_per_block_ - 1) / chunks_per_block_;
    stride_bytes_ = chunks_per_block_ == 1 ? block_bytes_ : round_up(even);
    one_block_ = blocks == 1;
    if (slice_bytes == 0 || slice_bytes >= bytes_max()) return;
    // Slices are even, because a short last slice would cost as much latency as a long one.
    slice_count_ = (bytes_max() + slice_bytes - 1) / slice_bytes;
    slice_bytes_ = round_up((bytes_max() + slice_count_ - 1) / slice_count_);
    slice_count_ = (bytes_max() + slice_bytes_ - 1) / slice_bytes_;
  }

  uint64_t slice_count() const { return slice_count_; }

  // The slices, from the first on, in which every chunk has the same number of bytes.
  uint64_t alike_slice_count() const {
    const uint64_t before_last = stride_bytes_ * (chunks_per_block_ - 1);
    const uint64_t shortest = block_bytes_ > before_last ? block_bytes_ - before_last : 0;
    return slice_bytes_ == 0 ? 0 : std::min(shortest, bytes_max()) / slice_bytes_;
  }

  // Bytes of slice `slice` of the `count` chunks from `chunk` on.
  uint64_t bytes(uint64_t chunk, uint64_t count, uint64_t slice) const {
    if (slice_count_ == 1) return whole(chunk, count);
    const uint64_t begin = slice * slice_bytes_;
    uint64_t sum = 0;
    for (uint64_t i = chunk; i < chunk + count; ++i) {
      const uint64_t length = whole(i, 1);
      if (length > begin) sum += std::min(slice_bytes_, length - begin);
    }
    return sum;
  }
  // The bytes of the longest chunk, and of slice `slice` of it.
  uint64_t bytes_max() const { return std::min(block_bytes_, stride_bytes_); }
  uint64_t bytes_max(uint64_t slice) const {
    if (slice_count_ == 1) return bytes_max();
    return std::min(slice_bytes_, bytes_max() - slice * slice_bytes_);
  }

 private:
  static uint64_t round_up(uint64_t bytes) {
    return (bytes + kGranuleBytes - 1) / kGranuleBytes * kGranuleBytes;
  }
  uint64_t whole(uint64_t chunk, uint64_t count) const {
    if (chunks_per_block_ == 1) return count * block_bytes_;
    return offset(chunk + count) - offset(chunk);
  }
  uint64_t offset(uint64_t chunk) const {
    if (one_block_) return std::min(block_bytes_, stride_bytes_ * chunk);
    const uint64_t block = chunk / chunks_per_block_;
    return block * block_bytes_ +
           std::min(block_bytes_, stride_bytes_ * (chunk - block * chunks_per_block_));
  }

  uint64_t block_bytes_ = 0;
  uint64_t stride_bytes_ = 0;
  uint64_t chunks_per_block_ = 1;
  bool one_block_ = true;
  uint64_t slice_count_ = 1;
  uint64_t slice_bytes_ = 0;
};

}  // namespace weir::cost
