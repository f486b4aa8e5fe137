// SPDX-License-Identifier: Apache-2.0
// What survives, what can be taken back, and who may go on.
#include <cmath>

#include "offload/optimizer/optimizer_support.h"

namespace weir::offload::test {
namespace {

constexpr uint64_t kSomeResident = uint64_t{9} << 19;

TEST(Hold, UndoIsExactAndTheStepCanRunAgain) {
  const Groups groups = mixed_groups();
  for (const char* where : {"memory", "drives", "mixed"}) {
    SCOPED_TRACE(where);
    ScratchDirectory scratch;
    OptimizerOptions options = small_options();
    options.undo_in_memory = where == std::string("memory");
    options.durable_every = 3;
    if (!options.undo_in_memory) options.directories = {scratch / "a"};
    if (where == std::string("mixed")) options.memory_bytes = kSomeResident;
    const auto optimizer = stepped(options, groups, 0);
    ASSERT_NE(optimizer, nullptr);
    std::vector<std::vector<uint16_t>> outputs(groups.size());
    for (uint32_t g = 0; g < groups.size(); ++g) {
      outputs[g].resize(groups[g].element_count + 1);
      ASSERT_OK(optimizer->set_output(g, g % 2 == 0 ? DataType::kBfloat16 : DataType::kFloat16,
                                      outputs[g].data(), true));
    }
    ASSERT_OK(run_steps(*optimizer, groups, 0, 2));
    const auto outputs_before = outputs;
    const Values before = values_of(*optimizer, groups);
    Giver giver;
    ASSERT_OK(giver.give(*optimizer, groups, 3));
    StepOptions hold;
    hold.hold = true;
    StepReport report;
    ASSERT_OK(optimizer->step(hold, &report));
    EXPECT_EQ(report.norm, -1);
    EXPECT_FALSE(report.committed);
    EXPECT_FALSE(same_bits(values_of(*optimizer, groups), before));
    EXPECT_EQ(optimizer->step({}, nullptr).code(), Code::kInvalidUsage);
    ASSERT_OK(optimizer->undo());
    EXPECT_TRUE(same_bits(values_of(*optimizer, groups), before));
    EXPECT_EQ(outputs, outputs_before);
    EXPECT_EQ(optimizer->undo().code(), Code::kInvalidUsage);
    // The gradients are still there; this time it is kept.
    ASSERT_OK(optimizer->step(hold, &report));
    EXPECT_EQ(report.step, 3u);
    ASSERT_OK(optimizer->accept());
    ASSERT_OK(run_steps(*optimizer, groups, 3, 5));
    EXPECT_TRUE(same_bits(values_of(*optimizer, groups), in_memory(groups, 5)));
  }
}

TEST(Hold, NeedsASecondSlotInMemory) {
  Groups groups(1);
  groups[0].name = "w";
  groups[0].element_count = 10;
  const auto optimizer = made(Optimizer::create(small_options(), groups));
  Giver giver;
  ASSERT_OK(giver.give(*optimizer, groups, 1));
  StepOptions hold;
  hold.hold = true;
  const Status status = optimizer->step(hold, nullptr);
  EXPECT_EQ(status.code(), Code::kInvalidUsage);
  EXPECT_NE(status.text().find("WEIR_OFFLOAD_UNDO_IN_MEMORY"), std::string::npos);
  ASSERT_OK(optimizer->step({}, nullptr));
}

TEST(Durability, OpeningFindsTheLastCommittedStepAndGoesOnBitForBit) {
  const Groups groups = mixed_groups();
  for (const uint64_t memory : {uint64_t{0}, kSomeResident}) {
    for (const uint32_t every : {1, 3}) {
      ScratchDirectory scratch;
      OptimizerOptions options = small_options();
      options.memory_bytes = memory;
      options.durable_every = every;
      options.directories = {scratch / "a", scratch / "b"};
      {
        const auto optimizer = stepped(options, groups, 7);
        ASSERT_NE(optimizer, nullptr);
      }
      const auto optimizer = made(Optimizer::open(options, groups));
      ASSERT_NE(optimizer, nullptr);
      const uint64_t committed = every == 1 ? 7 : 6;
      uint64_t step = 0;
      ASSERT_OK(optimizer->committed_step(&step));
      EXPECT_EQ(step, committed);
      EXPECT_TRUE(same_bits(values_of(*optimizer, groups), in_memory(groups, committed)));
      ASSERT_OK(run_steps(*optimizer, groups, committed, 10));
      EXPECT_TRUE(same_bits(values_of(*optimizer, groups), in_memory(groups, 10)));
      ASSERT_OK(optimizer->commit());
      ASSERT_OK(optimizer->committed_step(&step));
      EXPECT_EQ(step, 10u);
    }
  }
}

TEST(Durability, OnlyCommitsWriteWhatIsInMemory) {
  ScratchDirectory scratch;
  const Groups groups = mixed_groups();
  OptimizerOptions options = small_options();
  options.memory_bytes = uint64_t{1} << 30;
  options.durable_every = 2;
  options.directories = {scratch / "a"};
  const auto optimizer = stepped(options, groups, 0);
  ASSERT_NE(optimizer, nullptr);
  Giver giver;
  for (uint64_t step = 1; step <= 4; ++step) {
    ASSERT_OK(giver.give(*optimizer, groups, step));
    StepReport report;
    ASSERT_OK(optimizer->step({}, &report));
    EXPECT_EQ(report.read_bytes, 0u);
    EXPECT_EQ(report.written_bytes > 0, step % 2 == 0);
    EXPECT_EQ(report.committed, step % 2 == 0);
  }
}

TEST(Durability, AStoreWithoutACommitIsRefusedByOpenAndReplacedByCreate) {
  ScratchDirectory scratch;
  Groups groups = mixed_groups();
  OptimizerOptions options = small_options();
  options.directories = {scratch / "a"};
  {
    const auto optimizer = made(Optimizer::create(options, groups));
    // Not from under a run that has not committed yet.
    EXPECT_EQ(Optimizer::create(options, groups).status().code(), Code::kRefused);
    ASSERT_OK(set_first(*optimizer, groups));
  }
  const auto opened = Optimizer::open(options, groups);
  EXPECT_EQ(opened.status().code(), Code::kRefused);
  EXPECT_NE(opened.status().text().find("no committed step"), std::string::npos);
  groups[0].element_count += 1;  // nothing of the old one is needed
  {
    const auto optimizer = made(Optimizer::create(options, groups));
    ASSERT_NE(optimizer, nullptr);
    ASSERT_OK(optimizer->commit());
  }
  EXPECT_NE(made(Optimizer::open(options, groups)), nullptr);
}

TEST(Durability, ARelativeDirectoryStaysWhereItWasWhenTheProcessGoesElsewhere) {
  const std::filesystem::path before = std::filesystem::current_path();
  ScratchDirectory scratch;
  const Groups groups = mixed_groups();
  OptimizerOptions options = small_options();
  options.directories = {"a"};
  std::filesystem::current_path(scratch / "");
  const auto optimizer = made(Optimizer::create(options, groups));
  std::filesystem::current_path(before);
  ASSERT_NE(optimizer, nullptr);
  ASSERT_OK(set_first(*optimizer, groups));
  ASSERT_OK(run_steps(*optimizer, groups, 0, 1));
  ASSERT_OK(optimizer->checkpoint({scratch / "held"}));
  ASSERT_OK(run_steps(*optimizer, groups, 1, 4));
  EXPECT_TRUE(same_bits(values_of(*optimizer, groups), in_memory(groups, 4)));
}

TEST(Durability, AnotherModelOrSeedIsRefused) {
  ScratchDirectory scratch;
  Groups groups = mixed_groups();
  OptimizerOptions options = small_options();
  options.directories = {scratch / "a"};
  {
    const auto optimizer = made(Optimizer::create(options, groups));
    ASSERT_OK(optimizer->commit());
  }
  EXPECT_EQ(Optimizer::create(options, groups).status().code(), Code::kRefused);
  OptimizerOptions other = options;
  other.seed = 8;
  EXPECT_EQ(Optimizer::open(other, groups).status().code(), Code::kMismatch);
  other = options;
  other.rank_count = 2;
  EXPECT_EQ(Optimizer::open(other, groups).status().code(), Code::kMismatch);
  groups[0].element_count += 1;
  EXPECT_EQ(Optimizer::open(options, groups).status().code(), Code::kMismatch);
}

TEST(Ranks, AStepWaitsForThePeersAndRollsBack) {
  ScratchDirectory scratch;
  const Groups groups = mixed_groups();
  OptimizerOptions options = small_options();
  options.rank_count = 2;
  options.directories = {scratch / "a"};
  {
    const auto optimizer = stepped(options, groups, 1);
    ASSERT_NE(optimizer, nullptr);
    Giver giver;
    ASSERT_OK(giver.give(*optimizer, groups, 2));
    const Status early = optimizer->step({}, nullptr);
    EXPECT_EQ(early.code(), Code::kInvalidUsage);
    EXPECT_NE(early.text().find("committed step 1"), std::string::npos) << early.text();
    ASSERT_OK(optimizer->peers_committed(0));
    EXPECT_EQ(optimizer->step({}, nullptr).code(), Code::kInvalidUsage);
    ASSERT_OK(optimizer->peers_committed(1));
    ASSERT_OK(optimizer->step({}, nullptr));
  }
  const auto optimizer = made(Optimizer::open(options, groups));
  EXPECT_EQ(optimizer->roll_back(0).code(), Code::kRefused);
  ASSERT_OK(optimizer->roll_back(1));
  EXPECT_TRUE(same_bits(values_of(*optimizer, groups), in_memory(groups, 1)));
  ASSERT_OK(optimizer->peers_committed(1));
  ASSERT_OK(run_steps(*optimizer, groups, 1, 2));
  EXPECT_TRUE(same_bits(values_of(*optimizer, groups), in_memory(groups, 2)));
}

TEST(Accumulation, SumsEqualOneGradientAndTakeTheirMemoryFromTheBudget) {
  const Groups groups = mixed_groups();
  for (const uint64_t memory : {uint64_t{0}, uint64_t{9} << 19}) {
    ScratchDirectory scratch;
    OptimizerOptions options = small_options();
    options.memory_bytes = memory;
    options.durable_every = 4;
    options.directories = {scratch / "a"};
    const auto optimizer = stepped(options, groups, 1);
    ASSERT_NE(optimizer, nullptr);
    for (uint64_t step = 2; step <= 4; ++step) {
      for (uint32_t g = 0; g < groups.size(); ++g) {
        const uint64_t count = groups[g].element_count;
        if (g > 0) {  // by reference beside it
          continue;
        }
        // Three quarters and a quarter, exact in f32; in two halves each.
        for (const float part : {0.75f, 0.25f}) {
          std::vector<float> values(count);
          for (uint64_t i = 0; i < count; ++i) values[i] = gradient_value(g, i, step) * part;
          const uint64_t cut = count / 2 + 1;
          ASSERT_OK(
              optimizer->accumulate(g, cut, count - cut, DataType::kFloat32, values.data() + cut));
          ASSERT_OK(optimizer->accumulate(g, 0, cut, DataType::kFloat32, values.data()));
        }
      }
      const float twice = 1;
      EXPECT_EQ(optimizer->gradient(0, 5, 1, DataType::kFloat32, &twice).code(),
                Code::kInvalidArgument);
      std::deque<std::vector<unsigned char>> kept;
      for (uint32_t g = 1; g < groups.size(); ++g) {
        kept.push_back(
            gradient_bytes(groups[g], g, 0, groups[g].element_count, step, DataType::kBfloat16));
        ASSERT_OK(optimizer->gradient(g, 0, groups[g].element_count, DataType::kBfloat16,
                                      kept.back().data()));
      }
      ASSERT_OK(optimizer->step({}, nullptr));
    }
    EXPECT_TRUE(same_bits(values_of(*optimizer, groups), in_memory(groups, 4)));
    uint64_t held = 0;
    ASSERT_OK(optimizer->memory_bytes(&held));
    if (memory > 0) {
      EXPECT_LE(held, memory);
    }
  }
}

TEST(Checkpoint, RestoresOntoAnotherNumberOfRanks) {
  const Groups whole = mixed_groups();
  const auto part = [&](uint32_t rank, uint32_t ranks) {
    Groups groups = whole;
    for (ParameterGroup& group : groups) {
      const uint64_t each = group.element_count / ranks / kMomentBlock * kMomentBlock;
      group.first_element = rank * each;
      group.element_count = rank + 1 == ranks ? group.element_count - rank * each : each;
    }
    return groups;
  };
  ScratchDirectory scratch;
  // Two ranks on drives, then three in memory, then one on drives.
  const uint32_t counts[] = {2, 3, 1};
  std::vector<std::vector<std::string>> shards;
  uint64_t step = 0;
  for (const uint32_t ranks : counts) {
    std::vector<std::vector<std::string>> next;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      const Groups groups = part(rank, ranks);
      OptimizerOptions options = small_options();
      options.chunk_bytes = 8192 * ranks;
      options.rank = rank;
      options.rank_count = ranks;
      const std::string name = std::to_string(ranks) + "-" + std::to_string(rank);
      if (ranks != 3) options.directories = {scratch / ("store" + name)};
      const auto optimizer = made(Optimizer::create(options, groups));
      ASSERT_NE(optimizer, nullptr);
      if (shards.empty()) {
        ASSERT_OK(set_first(*optimizer, groups));
      } else {
        ASSERT_OK(optimizer->restore(shards));
      }
      for (uint64_t at = step; at < step + 2; ++at) {
        ASSERT_OK(optimizer->peers_committed(at));
        ASSERT_OK(run_steps(*optimizer, groups, at, at + 1));
      }
      next.push_back({scratch / ("held" + name)});
      ASSERT_OK(optimizer->checkpoint(next.back()));
      if (ranks == 1) {
        EXPECT_TRUE(same_bits(values_of(*optimizer, groups), in_memory(groups, 6)));
      }
      if (ranks == 3) continue;
      options.directories = next.back();
      options.read_only = true;
      const auto reader = made(Optimizer::open(options, groups));
      ASSERT_NE(reader, nullptr);
      EXPECT_TRUE(same_bits(values_of(*reader, groups), values_of(*optimizer, groups)));
      EXPECT_EQ(reader->step({}, nullptr).code(), Code::kInvalidUsage);
    }
    shards = next;
    step += 2;
  }
}

}  // namespace
}  // namespace weir::offload::test
