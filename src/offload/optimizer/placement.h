// SPDX-License-Identifier: Apache-2.0
// Placement: how parameter groups are cut into chunks, and which of them stay in memory. Chunks of
// state come first, group after group; behind them, for each group of a half-master format, chunks
// of its bf16 copy, a group of the store of its own, since only committing steps write them.
// Values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "offload/kernels/state_format.h"
#include "offload/optimizer/options.h"
#include "offload/store/description.h"

namespace weir::offload {

inline constexpr uint64_t kDefaultChunkBytes = uint64_t{1} << 20;
// Added to the state format, in the store's description of a group's bf16 copy.
inline constexpr uint32_t kCopyFormat = 0x100;

// The name of the store's group that holds a group's bf16 copy.
std::string copy_name(const std::string& group);

// chunk_layout without the plane of the bf16 copy, which is stored elsewhere.
ChunkLayout state_layout(Method method, StateFormat format, uint64_t element_count);

// The most elements, a multiple of kMomentBlock, whose state fits the payload of a chunk; 0: none.
uint64_t chunk_elements(Method method, StateFormat format, uint64_t payload_bytes);

// A chunk of state.
struct StateChunk {
  uint32_t group = 0;
  uint64_t first = 0;  // element of this rank's part of the group
  uint64_t count = 0;
  const ChunkLayout* layout = nullptr;
};

// A chunk of a bf16 copy.
struct CopyChunk {
  uint32_t group = 0;
  uint64_t first = 0;
  uint64_t count = 0;
};

class Placement {
 public:
  // kInvalidArgument names the group and its fault, or the fault of chunk_bytes.
  static Result<Placement> make(const OptimizerOptions& options,
                                const std::vector<ParameterGroup>& groups);

  const StoreDescription& description() const { return description_; }
  uint64_t chunk_bytes() const { return description_.chunk_bytes; }
  uint64_t state_count() const { return state_count_; }
  uint64_t chunk_count() const { return chunk_count_; }  // with those of copies
  uint64_t element_count() const { return element_count_; }
  StateChunk state(uint64_t chunk) const;  // chunk < state_count()
  CopyChunk copy(uint64_t chunk) const;    // state_count() <= chunk < chunk_count()
  // The chunks that hold elements of [first, first + count) of a group, count > 0.
  std::pair<uint64_t, uint64_t> chunks_of(uint32_t group, uint64_t first, uint64_t count) const;
  uint64_t state_bytes() const;      // of all chunks, in memory
  uint64_t state_bytes_max() const;  // of one
  uint64_t copy_bytes() const;       // of all copies, in memory

 private:
  struct Group {
    uint64_t first_chunk = 0;
    uint64_t chunk_count = 0;
    uint64_t chunk_elements = 0;
    uint64_t element_count = 0;
    bool has_copy = false;
    ChunkLayout full;
    ChunkLayout last;
  };
  StoreDescription description_;
  std::vector<Group> groups_;
  std::vector<uint32_t> copied_;  // the groups that have a copy, in order
  uint64_t state_count_ = 0;
  uint64_t chunk_count_ = 0;
  uint64_t element_count_ = 0;
};

// Which of `count` chunks are the `resident` ones: spread evenly, so that while some are computed
// the drives work on the others.
constexpr bool is_resident(uint64_t chunk, uint64_t resident, uint64_t count) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>(static_cast<Wide>(chunk + 1) * resident / count) !=
         static_cast<uint64_t>(static_cast<Wide>(chunk) * resident / count);
}

}  // namespace weir::offload
