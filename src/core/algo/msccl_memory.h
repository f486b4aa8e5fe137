// SPDX-License-Identifier: Apache-2.0
// MscclMemory: where the buffers of an MSCCL document lie in our programs: which chunk of which
// space an offset of i, o or s is, per gpu. Immutable once made. Internal to core/algo.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "core/algo/msccl_algo.h"
#include "core/base/status.h"
#include "core/sched/program.h"

namespace weir::algo {

class MscclMemory {
 public:
  // What stands in for a buffer.
  enum class Stead : uint8_t { kInput, kOutput, kScratch };

  static Result<MscclMemory> of(const MscclAlgo& algo);

  uint32_t chunk_count() const { return chunk_count_; }
  // Slots for s and for what stands in for i and o.
  uint32_t scratch_slots() const { return scratch_slots_; }
  // Chunks that Input or Output of a rank holds at most, and which of them a chunk of either is.
  uint32_t area() const { return std::max(input_chunks_, output_chunks_); }
  uint32_t index_in_area(const sched::Ref& ref) const;
  // Consecutive offsets of o are not consecutive chunks.
  bool is_scattered() const { return collective_ == Collective::kAllToAll; }

  // nullopt: the buffer has no such chunk.
  std::optional<sched::Ref> find(const MscclGpu& gpu, Rank rank, MscclPlace place) const;
  uint32_t chunks_in(const MscclGpu& gpu, char buffer) const;

  // Whether i has to be copied to its stead at the beginning, and o from its stead at the end. The
  // chunks of Input that a rank holds: first and count.
  bool copies_input() const { return input_ != Stead::kInput; }
  bool copies_output() const { return output_ == Stead::kScratch; }
  std::pair<uint32_t, uint32_t> input_of(Rank rank) const;
  // Where the k-th of these is in the stead of i.
  sched::Ref stead_of_input(Rank rank, uint32_t k) const;
  uint32_t output_chunks() const { return output_chunks_; }  // of a rank
  sched::Ref output(Rank rank, uint32_t offset) const;
  sched::Ref stead_of_output(Rank rank, uint32_t offset) const;

 private:
  Collective collective_ = Collective::kAllReduce;
  Rank rank_count_ = 1;
  uint32_t chunk_count_ = 0;
  uint32_t block_ = 0;  // chunks per block of the grid
  uint32_t input_chunks_ = 0;
  uint32_t output_chunks_ = 0;
  Stead input_ = Stead::kInput;
  Stead output_ = Stead::kOutput;
  uint32_t stead_slot_ = 0;  // the first slot of steads
  uint32_t scratch_slots_ = 0;
};

}  // namespace weir::algo
