// SPDX-License-Identifier: Apache-2.0
#include "core/sched/layout.h"

#include <algorithm>

#include "core/base/leaves.h"

namespace weir::sched {

uint32_t chunks_per_block(Collective collective, Rank rank_count, uint32_t chunk_count) {
  uint64_t blocks = 1;
  switch (collective) {
    case Collective::kReduceScatter:
    case Collective::kAllGather:
    case Collective::kGather:
    case Collective::kScatter:
      blocks = rank_count;
      break;
    case Collective::kAllToAll:
      blocks = uint64_t{rank_count} * rank_count;
      break;
    case Collective::kAllReduce:
    case Collective::kBroadcast:
    case Collective::kReduce:
    case Collective::kBarrier:
    case Collective::kSendRecv:
      break;
  }
  return chunk_count % blocks == 0 ? static_cast<uint32_t>(chunk_count / blocks) : 0;
}

Layout::Layout(Collective collective, Rank rank_count, Rank root, const Shape& shape, bool in_place)
    : rank_count_(rank_count),
      transposed_(collective == Collective::kAllToAll),
      block_chunks_(chunks_per_block(collective, rank_count, shape.chunk_count)),
      ranks_(rank_count) {
  const uint32_t all = shape.chunk_count;
  const uint32_t g = block_chunks_;
  for (Rank rank = 0; rank < rank_count; ++rank) {
    PerRank& own = ranks_[rank];
    const bool is_root = rank == root;
    const Area whole{0, all, 0};
    const Area block{rank * g, g, 0};
    switch (collective) {
      case Collective::kAllReduce:
        own.input = own.output = whole;
        break;
      case Collective::kReduceScatter:
        own.input = whole;
        own.output = block;
        break;
      case Collective::kAllGather:
        own.input = block;
        own.output = whole;
        break;
      case Collective::kAllToAll:
        own.input = {rank * rank_count * g, rank_count * g, 0};
        own.output = {0, rank_count * g, 0};
        break;
      case Collective::kBroadcast:
        if (is_root) own.input = whole;
        own.output = whole;
        break;
      case Collective::kReduce:
        own.input = whole;
        if (is_root) own.output = whole;
        break;
      case Collective::kGather:
        own.input = block;
        if (is_root) own.output = whole;
        break;
      case Collective::kScatter:
        if (is_root) own.input = whole;
        own.output = block;
        break;
      case Collective::kBarrier:
      case Collective::kSendRecv:
        break;
    }
    if (shape.leaf_count > 0) {
      own.node_count =
          static_cast<uint32_t>(leaf_nodes_of(shape.leaf_count, rank_count, rank).size());
      if (own.node_count == 0) own.input.count = 0;
    }
    own.scratch = {0, shape.scratch_slots, 0};
    own.staging = {0, shape.staging_slots, 0};

    own.input.place = place_count_;
    place_count_ += own.input.count;
    if (in_place && own.input.count > 0 && own.output.count > 0) {
      // One of the two is a part of the other, at its own chunk numbers (all_to_all: both are
      // equally long).
      const uint32_t start = place_count_ - own.input.count;
      if (transposed_) {
        own.output.place = start;
      } else {
        const uint32_t first = std::min(own.input.first, own.output.first);
        own.input.place = start + (own.input.first - first);
        own.output.place = start + (own.output.first - first);
        place_count_ = start + std::max(own.input.count, own.output.count);
      }
    } else {
      own.output.place = place_count_;
      place_count_ += own.output.count;
    }
    own.further_nodes = place_count_;
    if (own.node_count > 1) place_count_ += (own.node_count - 1) * own.input.count;
    own.scratch.place = place_count_;
    place_count_ += own.scratch.count;
    own.staging.place = place_count_;
    place_count_ += own.staging.count;
  }
}

Layout::Place Layout::find_node(const PerRank& own, const Ref& ref, uint32_t count) const {
  const uint32_t offset = ref.chunk - own.input.first;
  if (ref.node >= own.node_count || offset >= own.input.count || count > own.input.count - offset) {
    return kNowhere;
  }
  return own.further_nodes + (ref.node - 1u) * own.input.count + offset;
}

Layout::Place Layout::find_transposed(const PerRank& own, const Ref& ref, uint32_t count) const {
  if (block_chunks_ == 0) return kNowhere;
  const uint32_t block = ref.chunk / block_chunks_;
  const uint32_t within = ref.chunk % block_chunks_;
  const Rank source = block / rank_count_;
  if (source >= rank_count_ || block % rank_count_ != ref.rank || count > block_chunks_ - within) {
    return kNowhere;
  }
  return own.output.place + source * block_chunks_ + within;
}

Rank Layout::owner(Place place) const {
  // Places are numbered rank by rank; in a rank, input.place (in place: the smaller of the two)
  // comes first.
  Rank low = 0;
  Rank high = rank_count_;
  while (high - low > 1) {
    const Rank middle = low + (high - low) / 2;
    if (std::min(ranks_[middle].input.place, ranks_[middle].output.place) <= place) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace weir::sched
