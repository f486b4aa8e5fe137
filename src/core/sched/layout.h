// SPDX-License-Identifier: Apache-2.0
// Layout: which chunks the buffers of each rank hold (the table in op.h, as a function), and a
// number for each place, so that places can be compared: in place, Input and Output share numbers
// as weir.h lets them share memory. Immutable once made; any thread may read.
#pragma once

#include <cstdint>
#include <vector>

#include "core/sched/program.h"

namespace weir::sched {

// What a program may assume about memory, as in algo::Problem.
struct Access {
  bool mapped = false;          // Staging of peers
  bool inputs_mapped = false;   // Input of peers, to read
  bool outputs_mapped = false;  // Output of peers, to read and write
  bool in_place = false;        // Input and Output alias
};

// Grid chunks per block: chunk_count over 1, n or n^2. 0 when it does not divide.
uint32_t chunks_per_block(Collective collective, Rank rank_count, uint32_t chunk_count);

class Layout {
 public:
  using Place = uint32_t;
  static constexpr Place kNowhere = 0xffffffffu;

  // For a valid shape (see validate.h).
  Layout(Collective collective, Rank rank_count, Rank root, const Shape& shape, bool in_place);

  // The place of the first chunk of `ref`, if memory holds `count` chunks from there at consecutive
  // places; kNowhere otherwise. count >= 1.
  Place find(const Ref& ref, uint32_t count) const {
    const PerRank& own = ranks_[ref.rank];
    const Area* area = nullptr;
    switch (ref.space) {
      case Space::kInput:
        if (ref.node > 0) return find_node(own, ref, count);
        area = &own.input;
        break;
      case Space::kOutput:
        if (transposed_) return find_transposed(own, ref, count);
        area = &own.output;
        break;
      case Space::kScratch:
        area = &own.scratch;
        break;
      case Space::kStaging:
        area = &own.staging;
        break;
    }
    const uint32_t offset = ref.chunk - area->first;
    if (offset >= area->count || count > area->count - offset) return kNowhere;
    return area->place + offset;
  }

  uint32_t place_count() const { return place_count_; }
  // The rank that owns a place.
  Rank owner(Place place) const;

 private:
  struct Area {
    uint32_t first = 0;  // chunk number of the first chunk
    uint32_t count = 0;
    Place place = 0;
  };
  struct PerRank {
    Area input, output, scratch, staging;
    uint32_t node_count = 1;  // how often Input holds its chunks
    Place further_nodes = 0;  // those of the nodes after the first, one after the other
  };
  Place find_node(const PerRank& own, const Ref& ref, uint32_t count) const;
  Place find_transposed(const PerRank& own, const Ref& ref, uint32_t count) const;

  Rank rank_count_;
  bool transposed_;  // all_to_all: Output holds a column of the grid
  uint32_t block_chunks_;
  uint32_t place_count_ = 0;
  std::vector<PerRank> ranks_;
};

}  // namespace weir::sched
