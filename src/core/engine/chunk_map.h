// SPDX-License-Identifier: Apache-2.0
// ChunkMap: where the chunks of a collective's grid (sched/op.h) lie in the buffers of one rank.
// Only this class knows uneven tails and the sizes of the v-variants. A value; immutable once made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/engine/call.h"

namespace weir::engine {

class ChunkMap {
 public:
  // `chunk_count` is that of the program's shape; a multiple of the collective's block count.
  ChunkMap(const Call& call, Rank rank, Rank rank_count, uint32_t chunk_count);

  // In elements. Offsets are from the start of the user's send or receive buffer and are valid only
  // for chunks that the buffer holds on this rank; with all_to_all_v, so are lengths.
  size_t length(uint32_t chunk) const;
  size_t input_offset(uint32_t chunk) const;
  size_t output_offset(uint32_t chunk) const;

  // Of a fold over leaves: from a node to the next in the user's send buffer.
  size_t node_stride() const;

  // The longest chunk of the grid, the same on all ranks. With all_to_all_v it is the longest whose
  // length this rank knows, and at least Call::block_count_max.
  size_t length_max() const { return length_max_; }

 private:
  struct Part {
    size_t offset;  // within the block
    size_t length;
  };
  uint32_t block_of(uint32_t chunk) const { return chunk / chunks_per_block_; }
  size_t block_length(uint32_t block) const;
  Part part(uint32_t chunk) const;

  Collective collective_;
  Rank rank_;
  Rank rank_count_;
  size_t count_;
  size_t granule_;  // chunk boundaries inside a block are multiples of this
  uint32_t chunks_per_block_ = 1;
  // v-variants only: by block; all_to_all_v: by target of what this rank sends.
  std::vector<size_t> block_counts_;
  std::vector<size_t> block_offsets_;
  // all_to_all_v: by source of what this rank receives.
  std::vector<size_t> recv_counts_;
  std::vector<size_t> recv_offsets_;
  size_t length_max_ = 0;
};

}  // namespace weir::engine
