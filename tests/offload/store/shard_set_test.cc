// SPDX-License-Identifier: Apache-2.0
#include "offload/store/shard_set.h"

#include <gtest/gtest.h>

#include <cstring>

#include "offload/store/simulated_disk.h"
#include "offload/store/store_run.h"
#include "offload/store/transfer_all.h"

namespace weir::offload {
namespace {

constexpr uint32_t kRanks = 3;

// Three ranks with uneven shares of two groups; element e of group g is the number 1000 g + e.
class ShardSetTest : public testing::Test {
 protected:
  static StoreDescription description(uint32_t rank) {
    constexpr uint64_t kFirst[] = {0, 700, 700, 1500};
    StoreDescription d = test_description(rank, kRanks);
    d.groups = {{"a", kFirst[rank + 1] - kFirst[rank], kFirst[rank], 256, 1, 0},
                {"b", 10, 10 * uint64_t{rank}, 256, 1, 0}};
    return d;
  }
  void SetUp() override {
    AlignedBuffer buffer = AlignedBuffer::make(kTestChunkBytes).take();
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      const StoreDescription d = description(rank);
      directories_.push_back({"/rank" + std::to_string(rank)});
      held_.push_back({"/held" + std::to_string(rank)});
      auto made = Store::create(disk_, directories_.back(), d, test_options(rank));
      ASSERT_TRUE(made.ok()) << made.status().text();
      Store& store = *made.value();
      ASSERT_TRUE(store.begin_step(5).ok());
      for (uint64_t chunk = 0; chunk < store.chunk_count(); ++chunk) {
        const ChunkPlace place = place_of(d, chunk);
        for (uint64_t e = 0; e < place.element_count; ++e) {
          const uint64_t value =
              1000 * place.group + d.groups[place.group].first_element + place.first_element + e;
          std::memcpy(buffer.data() + 8 * e, &value, 8);
        }
        const Transfer write = store.write_transfer(chunk, buffer.data()).value();
        std::vector<Completion> done;
        ASSERT_TRUE(disk_.submit({&write, 1}).ok());
        ASSERT_TRUE(disk_.reap(1, 0, &done).ok());
        ASSERT_TRUE(store.wrote(chunk).ok());
      }
      ASSERT_TRUE(store.commit().ok());
      ASSERT_TRUE(store.checkpoint(held_.back()).ok());
    }
  }

  // A chunk of an old rank, checked.
  Status read(const ShardSet& shards, uint32_t shard, uint64_t chunk, AlignedBuffer* buffer) {
    Result<Transfer> transfer = shards.shard(shard).read_transfer(chunk, buffer->data());
    if (!transfer.ok()) return transfer.status();
    WEIR_RETURN_IF_ERROR(transfer_all(disk_, {&transfer.value(), 1}, 1000).first_error());
    return shards.shard(shard).check_read(chunk, buffer->data());
  }

  SimulatedDrive drive_{1};
  SimulatedDisk disk_{drive_};
  std::vector<std::vector<std::string>> directories_;
  std::vector<std::vector<std::string>> held_;
};

TEST_F(ShardSetTest, AnyRangeOfElementsComesFromTheOldRanks) {
  auto opened = ShardSet::open(disk_, held_, test_options(1));
  ASSERT_TRUE(opened.ok()) << opened.status().text();
  ShardSet& shards = *opened.value();
  EXPECT_EQ(shards.step(), 5u);
  const uint32_t a = shards.find_group("a").value();
  EXPECT_EQ(shards.element_count(a), 1500u);
  EXPECT_FALSE(shards.find_group("c").ok());
  AlignedBuffer buffer = AlignedBuffer::make(kTestChunkBytes).take();
  for (const uint64_t ranks : {1u, 2u, 4u, 7u}) {
    for (uint64_t rank = 0; rank < ranks; ++rank) {
      const uint64_t first = 1500 * rank / ranks;
      const uint64_t count = 1500 * (rank + 1) / ranks - first;
      const auto pieces = shards.pieces(a, first, count);
      ASSERT_TRUE(pieces.ok()) << pieces.status().text();
      uint64_t next = first;
      for (const ShardPiece& piece : pieces.value()) {
        ASSERT_EQ(piece.first_element, next);
        const Status status = read(shards, piece.shard, piece.chunk, &buffer);
        ASSERT_TRUE(status.ok()) << status.text();
        std::vector<uint64_t> values(piece.element_count);
        std::memcpy(values.data(), buffer.data() + 8 * piece.element_in_chunk,
                    8 * piece.element_count);
        for (const uint64_t value : values) ASSERT_EQ(value, next++);
      }
      ASSERT_EQ(next, first + count);
    }
  }
  EXPECT_NE(shards.pieces(a, 1400, 200).status().text().find("no shard holds element 1500"),
            std::string::npos);
}

TEST_F(ShardSetTest, RefusesWhatIsNotOneRunAtOneStep) {
  const auto refused = [&](const std::vector<std::vector<std::string>>& directories) {
    return ShardSet::open(disk_, directories, test_options(1)).status().text();
  };
  EXPECT_NE(refused({held_[0], held_[1]}).find("expected one of 2 ranks, found one of 3"),
            std::string::npos);
  EXPECT_NE(refused({held_[0], held_[2], held_[1]}).find("expected rank 1, found rank 2"),
            std::string::npos);
  (*drive_.content("/held1/slot-a"))[9] ^= 4;
  drive_.commit_edit("/held1/slot-a");
  auto opened = ShardSet::open(disk_, held_, test_options(1));
  ASSERT_TRUE(opened.ok());
  // Rank 1 holds none of group a; its first chunk is one of group b.
  AlignedBuffer buffer = AlignedBuffer::make(kTestChunkBytes).take();
  EXPECT_NE(read(*opened.value(), 1, 0, &buffer).text().find("is bad"), std::string::npos);
  EXPECT_TRUE(read(*opened.value(), 2, 0, &buffer).ok());
}

TEST_F(ShardSetTest, RefusesShardsOfDifferentSteps) {
  {
    auto store = Store::open(disk_, directories_[1], nullptr, test_options(4));
    ASSERT_TRUE(store.ok());
    Store& one = *store.value();
    one.peers_committed(1);
    ASSERT_TRUE(one.begin_step(6).ok());
    AlignedBuffer buffer = AlignedBuffer::make(kTestChunkBytes).take();
    for (uint64_t chunk = 0; chunk < one.chunk_count(); ++chunk) {
      const Transfer write = one.write_transfer(chunk, buffer.data()).value();
      std::vector<Completion> done;
      ASSERT_TRUE(disk_.submit({&write, 1}).ok());
      ASSERT_TRUE(disk_.reap(1, 0, &done).ok());
      ASSERT_TRUE(one.wrote(chunk).ok());
    }
    ASSERT_TRUE(one.commit().ok());
  }
  const Status status = ShardSet::open(disk_, directories_, test_options(1)).status();
  EXPECT_NE(status.text().find("expected step 5 as in shard 0, found step 6"), std::string::npos)
      << status.text();
}

}  // namespace
}  // namespace weir::offload
