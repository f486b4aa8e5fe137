// SPDX-License-Identifier: Apache-2.0
#include "core/engine/chunk_map.h"

#include <algorithm>

#include "core/base/check.h"

namespace weir::engine {

namespace {

uint32_t blocks_of(Collective collective, Rank rank_count) {
  switch (collective) {
    case Collective::kReduceScatter:
    case Collective::kAllGather:
    case Collective::kGather:
    case Collective::kScatter:
      return rank_count;
    case Collective::kAllToAll:
      return rank_count * rank_count;
    default:
      return 1;
  }
}

// Where `count` blocks start. Displacements of empty blocks may be any.
std::vector<size_t> offsets_of(const size_t* counts, const size_t* displacements, Rank count) {
  std::vector<size_t> offsets(count);
  size_t next = 0;
  for (Rank i = 0; i < count; ++i) {
    if (counts[i] == 0) continue;
    offsets[i] = displacements != nullptr ? displacements[i] : next;
    next += counts[i];
  }
  return offsets;
}

}  // namespace

ChunkMap::ChunkMap(const Call& call, Rank rank, Rank rank_count, uint32_t chunk_count)
    : collective_(call.collective),
      rank_(rank),
      rank_count_(rank_count),
      count_(call.count),
      // Cache-line multiples keep chunks from sharing lines and kernels aligned.
      granule_(std::max<size_t>(1, 64 / element_bytes(call.type))) {
  if (chunk_count == 0) return;
  const uint32_t block_count = blocks_of(collective_, rank_count_);
  WEIR_CHECK(chunk_count % block_count == 0, "the grid divides into the collective's blocks");
  chunks_per_block_ = chunk_count / block_count;
  size_t block_length_max = count_;
  if (call.block_counts != nullptr) {
    block_counts_.assign(call.block_counts, call.block_counts + rank_count_);
    block_offsets_ = offsets_of(call.block_counts, call.block_displacements, rank_count_);
    block_length_max = *std::max_element(block_counts_.begin(), block_counts_.end());
  }
  if (call.recv_counts != nullptr) {
    recv_counts_.assign(call.recv_counts, call.recv_counts + rank_count_);
    recv_offsets_ = offsets_of(call.recv_counts, call.recv_displacements, rank_count_);
    block_length_max =
        std::max({block_length_max, *std::max_element(recv_counts_.begin(), recv_counts_.end()),
                  call.block_count_max});
  }
  const size_t per_chunk = (block_length_max + chunks_per_block_ - 1) / chunks_per_block_;
  length_max_ = chunks_per_block_ == 1
                    ? block_length_max
                    : std::min(block_length_max, (per_chunk + granule_ - 1) / granule_ * granule_);
}

size_t ChunkMap::block_length(uint32_t block) const {
  if (block_counts_.empty()) return count_;
  if (collective_ != Collective::kAllToAll) return block_counts_[block];
  const Rank source = block / rank_count_;
  const Rank target = block % rank_count_;
  WEIR_CHECK(source == rank_ || target == rank_, "a rank moves blocks of its own");
  return source == rank_ ? block_counts_[target] : recv_counts_[source];
}

ChunkMap::Part ChunkMap::part(uint32_t chunk) const {
  const size_t whole = block_length(block_of(chunk));
  if (chunks_per_block_ == 1) return {0, whole};
  const size_t per_chunk = (whole + chunks_per_block_ - 1) / chunks_per_block_;
  const size_t stride = (per_chunk + granule_ - 1) / granule_ * granule_;
  const size_t offset = std::min(whole, stride * (chunk % chunks_per_block_));
  return {offset, std::min(stride, whole - offset)};
}

size_t ChunkMap::length(uint32_t chunk) const { return part(chunk).length; }

size_t ChunkMap::input_offset(uint32_t chunk) const {
  const uint32_t block = block_of(chunk);
  const size_t inside = part(chunk).offset;
  switch (collective_) {
    case Collective::kReduceScatter:
    case Collective::kScatter:
      return (block_offsets_.empty() ? block * count_ : block_offsets_[block]) + inside;
    case Collective::kAllToAll: {
      const Rank target = block % rank_count_;
      return (block_offsets_.empty() ? target * count_ : block_offsets_[target]) + inside;
    }
    default:  // the buffer holds one block
      return inside;
  }
}

size_t ChunkMap::node_stride() const {
  return collective_ == Collective::kReduceScatter ? count_ * rank_count_ : count_;
}

size_t ChunkMap::output_offset(uint32_t chunk) const {
  const uint32_t block = block_of(chunk);
  const size_t inside = part(chunk).offset;
  switch (collective_) {
    case Collective::kAllGather:
    case Collective::kGather:
      return (block_offsets_.empty() ? block * count_ : block_offsets_[block]) + inside;
    case Collective::kAllToAll: {
      const Rank source = block / rank_count_;
      return (recv_offsets_.empty() ? source * count_ : recv_offsets_[source]) + inside;
    }
    default:
      return inside;
  }
}

}  // namespace weir::engine
