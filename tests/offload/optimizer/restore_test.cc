// SPDX-License-Identifier: Apache-2.0
// Restore from checkpoints: bit for bit whatever the chunks of both sides are, and with many reads
// under way.
#include "offload/optimizer/optimizer_support.h"
#include "offload/store/simulated_disk.h"

namespace weir::offload::test {
namespace {

// Counts how many reads are under way.
class WatchedDisk : public SimulatedDisk {
 public:
  using SimulatedDisk::SimulatedDisk;
  Result<uint32_t> submit(std::span<const Transfer> transfers) override {
    const Result<uint32_t> taken = SimulatedDisk::submit(transfers);
    for (uint32_t i = 0; taken.ok() && i < taken.value(); ++i) {
      if (!transfers[i].write) read_bytes += transfers[i].bytes;
      reads += transfers[i].write ? 0 : 1;
    }
    in_flight_max = std::max(in_flight_max, in_flight());
    return taken;
  }
  uint32_t in_flight_max = 0;
  uint64_t reads = 0;
  uint64_t read_bytes = 0;
};

TEST(Restore, KeepsManyReadsUnderWayAndReadsEachChunkAboutOnce) {
  const Groups groups = mixed_groups();
  SimulatedDrive drive(seed());
  WatchedDisk disk(drive, 16);
  OptimizerOptions options = small_options();
  options.disk = &disk;
  options.chunk_bytes = 16384;
  options.directories = {"/old"};
  {
    const auto optimizer = made(Optimizer::create(options, groups));
    ASSERT_NE(optimizer, nullptr);
    ASSERT_OK(set_first(*optimizer, groups));
    ASSERT_OK(run_steps(*optimizer, groups, 0, 3));
    ASSERT_OK(optimizer->checkpoint({"/held"}));
  }
  uint64_t state_bytes = 0;
  for (const std::string& path : drive.paths())
    if (path.starts_with("/held/slot")) state_bytes = drive.content(path)->size();
  options.directories = {"/new"};
  const auto optimizer = made(Optimizer::create(options, groups));
  ASSERT_NE(optimizer, nullptr);
  disk.in_flight_max = 0;
  disk.reads = disk.read_bytes = 0;
  ASSERT_OK(optimizer->restore({{"/held"}}));
  EXPECT_GT(disk.in_flight_max, 4u);
  EXPECT_LT(disk.read_bytes, 2 * state_bytes);
  EXPECT_TRUE(same_bits(values_of(*optimizer, groups), in_memory(groups, 3)));
  ASSERT_OK(run_steps(*optimizer, groups, 3, 5));
  EXPECT_TRUE(same_bits(values_of(*optimizer, groups), in_memory(groups, 5)));
}

TEST(Restore, IsExactFromAndToChunksOfAnySize) {
  // 8-bit moments come back in blocks: chunks that cut no block keep them bit for bit.
  const Groups groups = mixed_groups();
  const Values expected = in_memory(groups, 4);
  for (const uint64_t from : {uint64_t{8192}, uint64_t{131072}}) {
    ScratchDirectory scratch;
    OptimizerOptions options = small_options();
    options.thread_count = 2;
    options.chunk_bytes = from;
    options.directories = {scratch / "old-a", scratch / "old-b"};
    const std::vector<std::string> held = {scratch / "held-a", scratch / "held-b"};
    {
      const auto optimizer = made(Optimizer::create(options, groups));
      ASSERT_NE(optimizer, nullptr);
      ASSERT_OK(set_first(*optimizer, groups));
      ASSERT_OK(run_steps(*optimizer, groups, 0, 2));
      ASSERT_OK(optimizer->checkpoint(held));
    }
    for (const uint64_t to : {uint64_t{8192}, uint64_t{16384}, uint64_t{131072}}) {
      for (const char* where : {"memory", "drives", "mixed"}) {
        SCOPED_TRACE(testing::Message() << from << " to " << to << " in " << where);
        options.chunk_bytes = to;
        options.directories.clear();
        options.memory_bytes = where == std::string("mixed") ? 16 * to + (uint64_t{1} << 20) : 0;
        if (where != std::string("memory"))
          options.directories = {scratch / (std::to_string(to) + where)};
        const auto optimizer = made(Optimizer::create(options, groups));
        ASSERT_NE(optimizer, nullptr);
        ASSERT_OK(optimizer->restore({held}));
        ASSERT_OK(run_steps(*optimizer, groups, 2, 4));
        EXPECT_TRUE(same_bits(values_of(*optimizer, groups), expected));
      }
    }
  }
}

TEST(Restore, IntoFewerOrOtherGroupsIsRefusedWithBothCounts) {
  const Groups groups = mixed_groups();
  ScratchDirectory scratch;
  const std::string held = scratch / "held";
  {
    const auto optimizer = made(Optimizer::create(small_options(), groups));
    ASSERT_OK(set_first(*optimizer, groups));
    ASSERT_OK(optimizer->checkpoint({held}));
  }
  Groups fewer = groups;
  fewer.erase(fewer.begin() + 3);
  const auto optimizer = made(Optimizer::create(small_options(), fewer));
  const Status status = optimizer->restore({{held}});
  EXPECT_EQ(status.code(), Code::kMismatch);
  EXPECT_NE(status.text().find("the checkpoint has 7 groups, the optimizer 6: 'half8'"),
            std::string::npos)
      << status.text();
  ASSERT_OK(made(Optimizer::create(small_options(), groups))->restore({{held}}));
}

// A copy of state in memory goes through a store of its own, which a kill may leave in any state.
TEST(Restore, OfACopyThatReplacesOneThatWasCutShort) {
  const Groups groups = mixed_groups();
  ScratchDirectory scratch;
  const std::string held = scratch / "held";
  const auto optimizer = made(Optimizer::create(small_options(), groups));
  ASSERT_OK(set_first(*optimizer, groups));
  ASSERT_OK(run_steps(*optimizer, groups, 0, 1));
  std::filesystem::create_directory(held);
  {
    OptimizerOptions options = small_options();
    options.directories = {held + "/making"};
    const auto left = made(Optimizer::create(options, groups));
    ASSERT_NE(left, nullptr);
    ASSERT_OK(run_steps(*left, groups, 0, 1));  // committed, and never removed
  }
  ASSERT_OK(optimizer->checkpoint({held}));
  EXPECT_FALSE(std::filesystem::exists(held + "/making"));
  const auto restored = made(Optimizer::create(small_options(), groups));
  ASSERT_OK(restored->restore({{held}}));
  EXPECT_TRUE(same_bits(values_of(*restored, groups), in_memory(groups, 1)));
  // And one that fails leaves nothing.
  const std::string nowhere = scratch / "missing" + "/held";
  EXPECT_FALSE(optimizer->checkpoint({nowhere}).ok());
  EXPECT_FALSE(optimizer->checkpoint({held}).ok());
  EXPECT_FALSE(std::filesystem::exists(held + "/making"));
}

TEST(Restore, OfADamagedShardNamesItsChunkAndFile) {
  const Groups groups = mixed_groups();
  SimulatedDrive drive(seed());
  SimulatedDisk disk(drive, 8);
  OptimizerOptions options = small_options();
  options.disk = &disk;
  options.directories = {"/old"};
  {
    const auto optimizer = made(Optimizer::create(options, groups));
    ASSERT_OK(set_first(*optimizer, groups));
    ASSERT_OK(run_steps(*optimizer, groups, 0, 1));
    ASSERT_OK(optimizer->checkpoint({"/held"}));
  }
  for (const std::string& path : drive.paths()) {
    if (!path.starts_with("/held/slot")) continue;
    (*drive.content(path))[2 * options.chunk_bytes + 9] ^= 1;
    drive.commit_edit(path);
  }
  options.directories = {"/new"};
  const auto optimizer = made(Optimizer::create(options, groups));
  const Status status = optimizer->restore({{"/held"}});
  EXPECT_EQ(status.code(), Code::kRefused);
  EXPECT_NE(status.text().find("shard 0: chunk 2 of"), std::string::npos) << status.text();
  EXPECT_NE(status.text().find("'/held/slot-"), std::string::npos) << status.text();
  EXPECT_NE(status.text().find("create it again, and restore again"), std::string::npos)
      << status.text();
}

}  // namespace
}  // namespace weir::offload::test
