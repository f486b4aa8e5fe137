// SPDX-License-Identifier: Apache-2.0
// ShardSet: the checkpoints (or stores) of all ranks of an old run, read together, so that a run
// with another number of ranks can gather any range of elements of a group. It knows where elements
// lie; the optimizer layer knows the format of their bytes, and reads and checks the chunks named
// here through the stores. Same thread rule as the stores.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "offload/store/store.h"

namespace weir::offload {

// A run of elements of one group that lie one after another in one chunk.
struct ShardPiece {
  uint32_t shard = 0;             // the rank of the old run
  uint64_t chunk = 0;             // its number in that rank's store
  uint64_t element_in_chunk = 0;  // of the first one
  uint64_t chunk_elements = 0;    // elements that this chunk holds in all
  uint64_t first_element = 0;     // in the whole group
  uint64_t element_count = 0;
  bool operator==(const ShardPiece&) const = default;
};

class ShardSet {
 public:
  // `directories[r]`: the directories of rank r. Opens read only; kMismatch when they are not those
  // of ranks 0 to n-1 of one run at one step, kRefused as in Store::open.
  static Result<std::unique_ptr<ShardSet>> open(
      Disk& disk, const std::vector<std::vector<std::string>>& directories,
      StoreOptions options = {});

  uint32_t shard_count() const { return static_cast<uint32_t>(stores_.size()); }
  const Store& shard(uint32_t rank) const { return *stores_[rank]; }
  uint64_t step() const { return stores_[0]->committed()->step; }
  // The index of the group with this name; kRefused when there is none.
  Result<uint32_t> find_group(const std::string& name) const;
  // Elements of the group over all ranks.
  uint64_t element_count(uint32_t group) const;

  // The pieces that hold [first_element, first_element + element_count) of the whole group, in
  // order. kRefused, naming the first element that no rank holds.
  Result<std::vector<ShardPiece>> pieces(uint32_t group, uint64_t first_element,
                                         uint64_t element_count) const;

 private:
  ShardSet() = default;

  std::vector<std::unique_ptr<Store>> stores_;
};

}  // namespace weir::offload
