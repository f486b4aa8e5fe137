// SPDX-License-Identifier: Apache-2.0
// Ranks of one host that have a device each: the links between the devices of the machine, which
// WEIR_TOPOLOGY_FILE names, decide whether large collectives go along rings, in communicators that
// are made in each way. On the stand-in for CUDA, with eight devices and WEIR_DIRECT=1, without
// which its memory counts as the host's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "nccl/stream/graph_support.h"
#include "nccl/stream/stream_support.h"

namespace weir::nccl::test {
namespace {

constexpr int kRanks = 8;
constexpr size_t kLarge = 2'500'003;

// Sums of floats by one rank: 1e8 and -1e8 hide a 1 between them where they are folded in the order
// of the ranks, and rings begin with other ranks, too.
void expect_sums_along_rings(int rank, ncclComm_t comm, const Stream& stream) {
  const float own = rank == 0 ? 1e8F : rank == 1 ? 1.0F : rank == 2 ? -1e8F : 0.0F;
  const Array data(MemoryKind::kDevice, kLarge);
  data.set(std::vector<int>(kLarge, std::bit_cast<int>(own)));
  ASSERT_NCCL(
      ncclAllReduce(data.data(), data.data(), kLarge, ncclFloat, ncclSum, comm, stream.nccl()));
  stream.synchronize();
  const std::vector<int> sums = data.get();
  EXPECT_NE(std::find(sums.begin(), sums.end(), std::bit_cast<int>(1.0F)), sums.end());
}

void expect_values(int rank, ncclComm_t comm, const Stream& stream) {
  const size_t each = kLarge / kRanks;
  const auto value = [](int of, size_t i) { return static_cast<int>(i * 3) + 1000 * of; };
  const Array input(MemoryKind::kDevice, each * kRanks);
  const Array output(MemoryKind::kDevice, each * kRanks);
  std::vector<int> values(input.size());
  for (size_t i = 0; i < values.size(); ++i) values[i] = value(rank, i);
  input.set(values);
  const auto expect = [&](size_t count, const auto& expected) {
    stream.synchronize();
    const std::vector<int> got = output.get();
    for (size_t i = 0; i < count; ++i) ASSERT_EQ(got[i], expected(i)) << "element " << i;
  };
  ASSERT_NCCL(ncclAllReduce(input.data(), output.data(), input.size(), ncclInt, ncclSum, comm,
                            stream.nccl()));
  expect(input.size(), [&](size_t i) { return kRanks * value(0, i) + 28'000; });
  ASSERT_NCCL(
      ncclReduceScatter(input.data(), output.data(), each, ncclInt, ncclMax, comm, stream.nccl()));
  expect(each, [&](size_t i) { return value(kRanks - 1, static_cast<size_t>(rank) * each + i); });
  ASSERT_NCCL(ncclAllGather(input.data(), output.data(), each, ncclInt, comm, stream.nccl()));
  expect(input.size(), [&](size_t i) { return value(static_cast<int>(i / each), i % each); });
}

// Each rank in a thread of its own, on its own device.
template <typename Body>
void run_ranks(const Body& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&body, rank] {
      use_device(rank);
      const Stream stream;
      body(rank, stream);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(NcclRings, CommunicatorsOfThreadsTakeThem) {
  const ncclUniqueId id = make_id();
  testing::internal::CaptureStderr();
  run_ranks([&](int rank, const Stream& stream) {
    ncclComm_t comm = nullptr;
    ASSERT_NCCL(ncclCommInitRank(&comm, kRanks, id, rank));
    expect_sums_along_rings(rank, comm, stream);
    expect_values(rank, comm, stream);
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::ContainsRegex("all_reduce.*: directly, by rings"));
}

TEST(NcclRings, CommunicatorsOfInitAllTakeThem) {
  std::array<ncclComm_t, kRanks> comms{};
  use_device(0);
  ASSERT_NCCL(ncclCommInitAll(comms.data(), kRanks, nullptr));
  run_ranks([&](int rank, const Stream& stream) {
    expect_sums_along_rings(rank, comms[static_cast<size_t>(rank)], stream);
  });
  for (ncclComm_t comm : comms) EXPECT_NCCL(ncclCommDestroy(comm));
}

// Made without waiting, and of the same ranks again by ncclCommSplit.
TEST(NcclRings, NonblockingCommunicatorsAndThoseOfSplitTakeThem) {
  const ncclUniqueId id = make_id();
  run_ranks([&](int rank, const Stream& stream) {
    const auto wait = [](ncclComm_t comm) {
      ncclResult_t state = ncclInProgress;
      while (state == ncclInProgress) ASSERT_NCCL(ncclCommGetAsyncError(comm, &state));
      EXPECT_EQ(state, ncclSuccess);
    };
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t comm = nullptr;
    ASSERT_EQ(ncclCommInitRankConfig(&comm, kRanks, id, rank, &config), ncclInProgress);
    wait(comm);
    ncclConfig_t blocking = NCCL_CONFIG_INITIALIZER;
    blocking.blocking = 1;
    ncclComm_t child = nullptr;
    (void)ncclCommSplit(comm, 0, rank, &child, &blocking);
    wait(comm);
    expect_sums_along_rings(rank, child, stream);
    EXPECT_NCCL(ncclCommDestroy(child));
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

// The neighbors of a rank wait as it does: no rank that has launched the graph is named.
TEST(NcclRings, ARankThatDoesNotLaunchItsGraphIsNamedAtTheDeadline) {
  constexpr int kLate = 5;
  setenv("WEIR_TIMEOUT_MS", "2000", 1);
  const ncclUniqueId id = make_id();
  std::atomic<int> failed{0};
  run_ranks([&](int rank, const Stream& stream) {
    ncclComm_t comm = nullptr;
    ASSERT_NCCL(ncclCommInitRank(&comm, kRanks, id, rank));
    expect_sums_along_rings(rank, comm, stream);
    const Array data(MemoryKind::kDevice, kLarge);
    const Graph graph(stream, [&] {
      EXPECT_NCCL(
          ncclAllReduce(data.data(), data.data(), kLarge, ncclFloat, ncclSum, comm, stream.nccl()));
    });
    if (rank == kLate) {
      for (int i = 0; i < 3000 && failed < kRanks - 1; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    } else {
      graph.launch(stream);
      ncclResult_t error = ncclSuccess;
      for (int i = 0; i < 2000 && error == ncclSuccess; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        EXPECT_NCCL(ncclCommGetAsyncError(comm, &error));
      }
      EXPECT_EQ(error, ncclRemoteError);
      stream.synchronize();
      EXPECT_THAT(ncclGetLastError(comm), testing::HasSubstr("; it waits for rank 5, which"));
      ++failed;
    }
    EXPECT_NCCL(ncclCommAbort(comm));
  });
  unsetenv("WEIR_TIMEOUT_MS");
}

}  // namespace
}  // namespace weir::nccl::test
