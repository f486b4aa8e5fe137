// SPDX-License-Identifier: Apache-2.0
// Binding: chunk maps, slicing and what a mapped program must look like.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "core/algo/algorithm.h"
#include "core/engine/chunk_map.h"
#include "core/engine/control.h"
#include "core/engine/line_run.h"
#include "core/engine/mapped_plan.h"
#include "core/engine/slicing.h"

namespace weir::engine {
namespace {

Call call_of(Collective collective, size_t count, DataType type = DataType::kFloat32) {
  Call call;
  call.collective = collective;
  call.count = count;
  call.type = type;
  return call;
}

TEST(ChunkMap, ChunksTileTheBufferWhateverTheCount) {
  for (const size_t count : {0, 1, 15, 16, 17, 100, 1000, 4097}) {
    for (const uint32_t chunks : {1u, 2u, 3u, 7u, 16u}) {
      const ChunkMap map(call_of(Collective::kAllReduce, count), 0, 4, chunks);
      size_t end = 0;
      for (uint32_t c = 0; c < chunks; ++c) {
        if (map.length(c) > 0) {
          EXPECT_EQ(map.input_offset(c), end);
        }
        EXPECT_EQ(map.input_offset(c), map.output_offset(c));
        EXPECT_LE(map.length(c), map.length_max());
        end += map.length(c);
      }
      EXPECT_EQ(end, count) << count << " in " << chunks;
    }
  }
}

TEST(ChunkMap, BlocksLieWhereTheCollectiveSays) {
  constexpr Rank kRanks = 3;
  constexpr size_t kCount = 5;
  const ChunkMap gather(call_of(Collective::kAllGather, kCount), 1, kRanks, kRanks);
  const ChunkMap scatter(call_of(Collective::kReduceScatter, kCount), 1, kRanks, kRanks);
  const ChunkMap all(call_of(Collective::kAllToAll, kCount), 1, kRanks, kRanks * kRanks);
  for (Rank p = 0; p < kRanks; ++p) {
    EXPECT_EQ(gather.output_offset(p), p * kCount);
    EXPECT_EQ(gather.input_offset(p), 0u);
    EXPECT_EQ(scatter.input_offset(p), p * kCount);
    EXPECT_EQ(scatter.output_offset(p), 0u);
    EXPECT_EQ(all.input_offset(1 * kRanks + p), p * kCount);   // from me to p
    EXPECT_EQ(all.output_offset(p * kRanks + 1), p * kCount);  // from p to me
  }
}

TEST(ChunkMap, UnevenBlocksHaveTheirOwnLengthsAndPlaces) {
  const size_t counts[] = {4, 0, 9};
  const size_t displacements[] = {20, 7, 0};
  Call call = call_of(Collective::kAllGather, 13);
  call.block_counts = counts;
  call.block_displacements = displacements;
  const ChunkMap map(call, 0, 3, 3);
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(map.length(i), counts[i]);
    EXPECT_EQ(map.output_offset(i), counts[i] == 0 ? 0 : displacements[i]);
  }
  EXPECT_EQ(map.length_max(), 9u);
}

TEST(ChunkMap, ARankOfAnAllToAllVKnowsTheLengthsOfItsOwnBlocks) {
  const size_t sent[] = {4, 0, 9};
  const size_t received[] = {2, 0, 5};
  const size_t displacements[] = {20, 7, 0};
  Call call = call_of(Collective::kAllToAll, 0);
  call.block_counts = sent;
  call.recv_counts = received;
  call.recv_displacements = displacements;
  constexpr Rank kSelf = 1;
  const ChunkMap map(call, kSelf, 3, 9);
  for (const Rank target : {0u, 1u, 2u}) EXPECT_EQ(map.length(kSelf * 3 + target), sent[target]);
  for (const Rank source : {0u, 2u}) EXPECT_EQ(map.length(source * 3 + kSelf), received[source]);
  EXPECT_EQ(map.input_offset(kSelf * 3 + 2), 4u);
  EXPECT_EQ(map.output_offset(2 * 3 + kSelf), 0u);
  EXPECT_EQ(map.output_offset(0 * 3 + kSelf), 20u);
  EXPECT_EQ(map.length_max(), 9u);
  call.block_count_max = 100;  // as the ranks have agreed
  EXPECT_EQ(ChunkMap(call, kSelf, 3, 9).length_max(), 100u);
}

TEST(Slicing, FitsTheStagingMemoryForEveryQuestion) {
  for (const uint64_t bytes :
       {0ull, 1ull, 56ull, 57ull, 8000ull, 8192ull, 100'000ull, 1ull << 30}) {
    for (const uint32_t slots : {0u, 1u, 2u, 4u, 64u, 256u}) {
      for (const bool shared : {false, true}) {
        for (const uint64_t staging : {64ull << 10, 2ull << 20}) {
          const Slicing slicing = choose_slicing({.chunk_bytes_max = bytes,
                                                  .staging_slots = slots,
                                                  .staging_bytes = staging,
                                                  .rank_count = 4,
                                                  .shared_cores = shared,
                                                  .one_signal = slots % 2 == 0});
          EXPECT_EQ(slicing.slice_bytes % 64, 0u);
          EXPECT_GT(slicing.slice_bytes, 0u);
          EXPECT_GE(slicing.entry_bytes, slots * slicing.slice_bytes);
          EXPECT_EQ(slicing.ring_bytes % slicing.entry_bytes, 0u);
          EXPECT_LE(slicing.ring_bytes, staging);
          if (slicing.embedded_flags) {
            EXPECT_LE(slicing.entry_bytes, kLineEntryBytes);
            EXPECT_GE(slicing.slice_bytes, line_slot_bytes(bytes));
          }
        }
      }
    }
  }
}

TEST(MappedPlan, RefusesProgramsOfMessages) {
  algo::Problem problem;
  problem.rank_count = 4;
  const algo::Algorithm* ring = algo::find_algorithm(Collective::kAllReduce, "ring");
  ASSERT_NE(ring, nullptr);
  const auto plan =
      MappedPlan::bind(algo::compile(*ring, problem, 1), call_of(Collective::kAllReduce, 64),
                       {.slice_bytes = 64, .entry_bytes = 64, .ring_bytes = 64}, Arithmetic::kIeee);
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.status().code(), Code::kUnsupported);
}

// Of rank 1 of `ranks`, by `name`, over windows if it needs them.
std::unique_ptr<MappedPlan> bound(Collective collective, const char* name, Rank ranks,
                                  uint32_t known_signal = MappedPlan::kNoKnownSignal) {
  algo::Problem problem;
  problem.collective = collective;
  problem.rank_count = ranks;
  problem.mapped = problem.inputs_mapped = problem.outputs_mapped = true;
  const algo::Algorithm* algorithm = algo::find_algorithm(collective, name);
  if (algorithm == nullptr) return nullptr;
  const sched::Program program = algo::compile(*algorithm, problem, 1);
  const uint64_t entry_bytes = 4096 * std::max(1u, program.shape.staging_slots);
  auto plan = MappedPlan::bind(
      program, call_of(collective, 4096),
      {.slice_bytes = 4096, .entry_bytes = entry_bytes, .ring_bytes = 8 * entry_bytes},
      Arithmetic::kIeee, known_signal);
  EXPECT_TRUE(plan.ok()) << plan.status().text();
  return plan.ok() ? plan.take() : nullptr;
}

TEST(MappedPlan, ASignalThatAllRanksHaveGivenIsNotWaitedFor) {
  for (const Collective collective :
       {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather,
        Collective::kAllToAll, Collective::kReduce}) {
    const auto plan = bound(collective, "window", 4);
    const auto entered = bound(collective, "window", 4, algo::kWindowsEntered);
    ASSERT_TRUE(plan != nullptr && entered != nullptr);
    EXPECT_LT(entered->stage_count(), plan->stage_count()) << name_of(collective);
    EXPECT_EQ(entered->stage_count(), 2u) << "the work, and the wait until all have left";
  }
}

TEST(MappedPlan, WhatIsFoldedIntoScratchOnlyToBeCopiedIsFoldedToWhereTheCopyGoes) {
  EXPECT_FALSE(bound(Collective::kReduce, "window", 2)->uses_scratch());
  EXPECT_FALSE(bound(Collective::kAllToAll, "window", 2)->uses_scratch());
}

TEST(MappedPlan, StoresAreMeasuredInAStageThatWritesSlotsOnlyAndInOneThatWritesOutputOnly) {
  const auto direct = bound(Collective::kAllReduce, "direct", 2);
  EXPECT_EQ(direct->slot_stage(), 0u);
  EXPECT_EQ(direct->output_stage(), 1u);
  const auto gather = bound(Collective::kGather, "direct", 2);  // rank 1 only fills a slot
  EXPECT_EQ(gather->slot_stage(), 0u);
  EXPECT_EQ(gather->output_stage(), gather->stage_count());
  const auto window = bound(Collective::kAllReduce, "window", 2, algo::kWindowsEntered);
  EXPECT_EQ(window->slot_stage(), window->stage_count());
  EXPECT_EQ(window->output_stage(), 0u) << "the last stage only waits";
}

TEST(Fingerprint, DiffersWhereverCallsDiffer) {
  const Call base = call_of(Collective::kReduce, 64);
  const uint32_t mark = fingerprint(base, 2);
  EXPECT_NE(mark, 0u);
  Call other = base;
  other.count = 65;
  EXPECT_NE(fingerprint(other, 2), mark);
  other = base;
  other.root = 1;
  EXPECT_NE(fingerprint(other, 2), mark);
  other = base;
  other.average = true;
  EXPECT_NE(fingerprint(other, 2), mark);
  other = base;
  other.in_place = true;  // each rank's own affair
  EXPECT_EQ(fingerprint(other, 2), mark);
}

TEST(Fingerprint, OfAnAllToAllVIsTheSameWhateverTheLengths) {
  const size_t some[] = {1, 2};
  const size_t others[] = {3, 4};
  Call call = call_of(Collective::kAllToAll, 0);
  const uint32_t even = fingerprint(call, 2);
  call.block_counts = call.recv_counts = some;
  const uint32_t uneven = fingerprint(call, 2);
  call.block_counts = others;
  EXPECT_EQ(fingerprint(call, 2), uneven);
  EXPECT_NE(uneven, even);
  EXPECT_EQ(describe(call), "all_to_all_v(float32)");
}

TEST(Fingerprint, DiffersWhereBlockCountsOfTheSameSumDiffer) {
  const size_t some[] = {1, 2};
  const size_t others[] = {2, 1};
  Call call = call_of(Collective::kAllGather, 3);
  call.block_counts = some;
  const uint32_t mark = fingerprint(call, 2);
  call.block_counts = others;
  EXPECT_NE(fingerprint(call, 2), mark);
}

TEST(Control, LayoutLeavesEachWriterItsOwnCacheLine) {
  EXPECT_EQ(sizeof(PhaseLine), kCacheLineBytes);
  EXPECT_EQ(sizeof(DescriptorLine), kCacheLineBytes);
  EXPECT_EQ(offsetof(Control, done) % kCacheLineBytes, 0u);
  EXPECT_EQ(offsetof(Control, phase) % kCacheLineBytes, 0u);
  EXPECT_EQ(kStagingOffset % 4096, 0u);
  // More operations may be under way than the rings that are indexed by sequence can tell apart:
  // never.
  EXPECT_LT(kOperationsAhead, kEndPositions);
  EXPECT_LT(kOperationsAhead, kRootedLineEntries);
  EXPECT_LT(kOperationsAhead, kDescriptorCount);
}

}  // namespace
}  // namespace weir::engine
