// SPDX-License-Identifier: Apache-2.0
#include "core/algo/msccl_memory.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/algo/imported.h"

namespace weir::algo {

using sched::Ref;
using sched::Space;

Result<MscclMemory> MscclMemory::of(const MscclAlgo& algo) {
  MscclMemory memory;
  const auto n = static_cast<Rank>(algo.gpus.size());
  uint32_t inputs = 0, outputs = 0, scratch = 0;
  bool writes_input = false;
  for (const MscclGpu& gpu : algo.gpus) {
    inputs = std::max(inputs, gpu.input_chunks);
    outputs = std::max(outputs, gpu.output_chunks);
    scratch = std::max(scratch, gpu.scratch_chunks);
    for (const MscclBlock& block : gpu.blocks) {
      for (const MscclStep& step : block.steps) {
        writes_input = writes_input || (msccl_writes_dst(step.type) && step.dst.buffer == 'i');
      }
    }
  }
  memory.collective_ = algo.collective;
  memory.rank_count_ = n;
  const bool is_all_gather = algo.collective == Collective::kAllGather;
  const uint32_t whole = is_all_gather ? outputs
                         : algo.collective == Collective::kReduceScatter
                             ? inputs
                             : std::max(inputs, outputs);
  const bool in_blocks = algo.collective != Collective::kAllReduce;
  if (whole == 0 || (in_blocks && whole % n != 0)) {
    return invalid_argument(fmt::format(
        "{}: {} has {} chunks{}", algo.name,
        is_all_gather ? "the largest output (o_chunks)" : "the largest input (i_chunks)", whole,
        whole == 0 ? "" : fmt::format(", not a multiple of the {} gpus", n)));
  }
  memory.block_ = in_blocks ? whole / n : whole;
  const bool is_all_to_all = algo.collective == Collective::kAllToAll;
  const uint64_t grid = is_all_to_all ? uint64_t{whole} * n : whole;
  if (grid > kImportedPlaceCountMax) {
    return invalid_argument(
        fmt::format("{}: {} chunks are more than the {} of programs that can "
                    "run",
                    algo.name, grid, kImportedPlaceCountMax));
  }
  memory.chunk_count_ = static_cast<uint32_t>(grid);
  memory.input_chunks_ = is_all_gather ? memory.block_ : whole;
  memory.output_chunks_ = algo.collective == Collective::kReduceScatter ? memory.block_ : whole;
  if (algo.in_place) {
    const bool into_output = algo.collective == Collective::kAllReduce || is_all_gather;
    memory.input_ = into_output ? Stead::kOutput : Stead::kScratch;
    memory.output_ = into_output ? Stead::kOutput : Stead::kScratch;
  } else if (writes_input) {
    memory.input_ = Stead::kScratch;
  }
  memory.stead_slot_ = scratch;
  memory.scratch_slots_ = scratch + (memory.input_ == Stead::kScratch ? memory.input_chunks_ : 0);
  const uint64_t held = (2 * uint64_t{memory.area()} + memory.scratch_slots_) * n;
  if (memory.scratch_slots_ > kImportedScratchSlotCountMax || held > kImportedPlaceCountMax) {
    return invalid_argument(
        fmt::format("{}: {} scratch slots of a gpu, {} chunks and slots of all; at most {} and {} "
                    "can run",
                    algo.name, memory.scratch_slots_, held, kImportedScratchSlotCountMax,
                    kImportedPlaceCountMax));
  }
  return memory;
}

uint32_t MscclMemory::index_in_area(const Ref& ref) const {
  if (ref.space == Space::kInput) return ref.chunk - input_of(ref.rank).first;
  switch (collective_) {
    case Collective::kReduceScatter:
      return ref.chunk - ref.rank * block_;
    case Collective::kAllToAll:
      return ref.chunk / (block_ * rank_count_) * block_ + ref.chunk % block_;
    default:
      return ref.chunk;
  }
}

std::pair<uint32_t, uint32_t> MscclMemory::input_of(Rank rank) const {
  const bool own = collective_ == Collective::kAllGather || collective_ == Collective::kAllToAll;
  return {own ? rank * input_chunks_ : 0, input_chunks_};
}

Ref MscclMemory::stead_of_input(Rank rank, uint32_t k) const {
  switch (input_) {
    case Stead::kInput:
      return {input_of(rank).first + k, rank, Space::kInput};
    case Stead::kOutput:
      return {input_of(rank).first + k, rank, Space::kOutput};
    case Stead::kScratch:
      break;
  }
  return {stead_slot_ + k, rank, Space::kScratch};
}

Ref MscclMemory::output(Rank rank, uint32_t offset) const {
  switch (collective_) {
    case Collective::kReduceScatter:
      return {rank * block_ + offset, rank, Space::kOutput};
    case Collective::kAllToAll:
      return {(offset / block_ * rank_count_ + rank) * block_ + offset % block_, rank,
              Space::kOutput};
    default:
      return {offset, rank, Space::kOutput};
  }
}

// In place, Output of a reduce-scatter is this rank's block of Input.
Ref MscclMemory::stead_of_output(Rank rank, uint32_t offset) const {
  if (output_ != Stead::kScratch) return output(rank, offset);
  const uint32_t first = collective_ == Collective::kReduceScatter ? rank * block_ : 0;
  return {stead_slot_ + first + offset, rank, Space::kScratch};
}

uint32_t MscclMemory::chunks_in(const MscclGpu& gpu, char buffer) const {
  return buffer == 's' ? gpu.scratch_chunks : buffer == 'i' ? input_chunks_ : output_chunks_;
}

std::optional<Ref> MscclMemory::find(const MscclGpu& gpu, Rank rank, MscclPlace place) const {
  if (place.offset >= chunks_in(gpu, place.buffer)) return std::nullopt;
  if (place.buffer == 's') return Ref{place.offset, rank, Space::kScratch};
  return place.buffer == 'i' ? stead_of_input(rank, place.offset)
                             : stead_of_output(rank, place.offset);
}

}  // namespace weir::algo
