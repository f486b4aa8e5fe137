// SPDX-License-Identifier: Apache-2.0
// The start of many ranks in a simulated network: the nodes and frames are the real ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "unit/comm/start/simulated_start.h"

namespace weir::comm {
namespace {

using testing::HasSubstr;

constexpr size_t kHeaderBytes = 16;  // of a frame

void expect_all_ok(const SimulatedStart& start, Rank rank_count) {
  for (Rank rank = 0; rank < rank_count; ++rank) {
    ASSERT_TRUE(start.status(rank).ok()) << rank << ": " << start.status(rank).text();
  }
}

uint64_t first_seed() {
  const char* text = getenv("WEIR_TEST_SEED");
  const uint64_t seed = text != nullptr ? strtoull(text, nullptr, 0) : 1;
  std::printf("WEIR_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

size_t levels(Rank rank_count) {
  size_t depth = 0;
  for (size_t held = 1, level = 1; held < rank_count; ++depth) {
    level *= Node::kChildrenMax;
    held += level;
  }
  return depth;
}

TEST(SimulatedStart, EveryRankCountTo70GathersOnHostsOfAnySize) {
  for (Rank count = 2; count <= 70; ++count) {
    SimulatedNetwork network;
    network.rank_count = count;
    network.ranks_per_host = 1 + count % 9;
    SimulatedStart start(network);
    (void)start.join();
    expect_all_ok(start, count);
    for (const size_t bytes : {size_t{1}, size_t{700}}) {
      (void)start.all_gather(bytes);
      ASSERT_TRUE(start.all_gathered()) << count;
    }
  }
}

TEST(SimulatedStart, FourThousandRanksTakeTheTimeOfTheTreesLevels) {
  std::printf("%6s %6s %6s %12s %12s %12s\n", "ranks", "depth", "links", "root shakes", "join us",
              "gather us");
  for (const Rank count : {64u, 512u, 4096u}) {
    SimulatedNetwork network;
    network.rank_count = count;
    SimulatedStart start(network);
    const uint64_t join_ns = start.join();
    expect_all_ok(start, count);
    const uint64_t gather_ns = start.all_gather(4);
    ASSERT_TRUE(start.all_gathered());
    std::printf("%6u %6zu %6zu %12llu %12.1f %12.1f\n", count, start.depth_max(),
                start.connections_max(),
                static_cast<unsigned long long>(start.handshakes_of_root()),
                static_cast<double>(join_ns) * 1e-3, static_cast<double>(gather_ns) * 1e-3);
    // No rank has more connections than its children and its parent.
    EXPECT_LE(start.connections_max(), Node::kChildrenMax + 1);
    // Hosts of 8 ranks hang below each other, so a path has at most two links for each level.
    EXPECT_LE(start.depth_max(), 2 * levels(count));
    // The root shakes hands with the first rank of each host and with those of its own host.
    EXPECT_LE(start.handshakes_of_root(), count / network.ranks_per_host + network.ranks_per_host);
    // A gather is a way up and a way down. A level costs a latency and the frames of all children,
    // and at the end each frame holds the records of all ranks.
    const uint64_t all_bytes = uint64_t{count} * (kRecordHeaderBytes + 4);
    const uint64_t level_ns = network.latency_ns +
                              2 * (Node::kChildrenMax + 1) * (network.frame_ns + kHeaderBytes) +
                              (Node::kChildrenMax + 1) * all_bytes;
    EXPECT_LE(gather_ns, 2 * start.depth_max() * level_ns);
  }
}

TEST(SimulatedStart, TheSameSeedGivesTheSameEvents) {
  const uint64_t seed = first_seed();
  const auto trace = [](uint64_t of) {
    SimulatedNetwork network;
    network.rank_count = 100;
    network.ranks_per_host = 3;
    network.seed = of;
    network.skew_ns = 3'000'000;
    SimulatedStart start(network);
    (void)start.join();
    (void)start.all_gather(10);
    EXPECT_TRUE(start.all_gathered());
    return start.trace();
  };
  EXPECT_EQ(trace(seed), trace(seed));
  EXPECT_NE(trace(seed), trace(seed + 1));
}

TEST(SimulatedStart, RanksThatComeInAnyOrderMeet) {
  const uint64_t seed = first_seed();
  for (uint64_t i = 0; i < 200; ++i) {
    SimulatedNetwork network;
    network.seed = seed + i;
    network.rank_count = static_cast<Rank>(2 + (seed + i) * 37 % 150);
    network.ranks_per_host = static_cast<Rank>(1 + (seed + i) % 20);
    network.skew_ns = 1'000 << i % 14;
    SimulatedStart start(network);
    (void)start.join();
    expect_all_ok(start, network.rank_count);
    (void)start.all_gather(1 + i);
    ASSERT_TRUE(start.all_gathered()) << "seed " << network.seed;
    ASSERT_LE(start.connections_max(), Node::kChildrenMax + 1);
  }
}

TEST(SimulatedStart, MissingRanksAreNamedByAllThatCame) {
  SimulatedNetwork network;
  network.rank_count = 300;
  network.timeout_ns = 5'000'000'000;
  network.absent = {17, 200, 201, 299};
  SimulatedStart start(network);
  const uint64_t time_ns = start.join();
  EXPECT_LE(time_ns, network.timeout_ns);
  for (Rank rank = 0; rank < network.rank_count; ++rank) {
    if (rank == 17 || rank == 200 || rank == 201 || rank == 299) continue;
    ASSERT_EQ(start.status(rank).code(), Code::kTimeout) << rank << start.status(rank).text();
    ASSERT_THAT(start.status(rank).text(),
                HasSubstr("ranks 17, 200, 201, 299 of 300 have not joined"));
  }
}

TEST(SimulatedStart, ARankThatDiesInAGatherIsNamedByAll) {
  const uint64_t seed = first_seed();
  for (uint64_t i = 0; i < 60; ++i) {
    SimulatedNetwork network;
    network.seed = seed + i;
    network.rank_count = 120;
    network.ranks_per_host = static_cast<Rank>(1 + i % 7);
    SimulatedStart start(network);
    const uint64_t joined_ns = start.join();
    expect_all_ok(start, network.rank_count);
    const auto victim = static_cast<Rank>((seed + i) * 31 % network.rank_count);
    start.kill_at(victim, joined_ns + (seed + i) % 11 * 100);
    const uint64_t time_ns = start.all_gather(50);
    EXPECT_LT(time_ns, network.timeout_ns / 2) << "nobody waits for a deadline";
    for (Rank rank = 0; rank < network.rank_count; ++rank) {
      if (rank == victim) continue;
      ASSERT_EQ(start.status(rank).code(), Code::kPeerLost)
          << "seed " << network.seed << ", rank " << rank << ": " << start.status(rank).text();
      ASSERT_THAT(start.status(rank).text(),
                  HasSubstr("rank " + std::to_string(victim) + " of 120"));
    }
  }
}

}  // namespace
}  // namespace weir::comm
