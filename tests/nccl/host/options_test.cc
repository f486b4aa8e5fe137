// SPDX-License-Identifier: Apache-2.0
// Options of one call: ncclCollConfig_t.ext. Ranks are processes, whose environment and sockets are
// their own.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "nccl/processes.h"
#include "nccl/sockets.h"
#include "weir/nccl_options.h"

namespace weir::nccl::test {
namespace {

ncclCollConfig_t with(ncclConfigExt_t* options) {
  ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
  config.ext = options;
  return config;
}

ncclResult_t reduce(ncclComm_t comm, int* value, ncclConfigExt_t* options) {
  const ncclCollConfig_t config = with(options);
  return ncclAllReduceConfig(value, value, 1, ncclInt, ncclSum, comm, nullptr, &config);
}

TEST(NcclOptions, ADeadlineHoldsForItsCallOnly) {
  int done[2];
  ASSERT_EQ(pipe(done), 0);
  const std::vector<int> statuses = run_processes(2, [&](int rank, ncclComm_t comm) {
    int value = 1;
    ncclConfigExt_t long_one = weir_nccl_timeout_ms(3'600'000, nullptr);
    setenv("WEIR_TIMEOUT_MS", "250", 1);
    EXPECT_NCCL(reduce(comm, &value, &long_one));
    EXPECT_EQ(value, 2);
    char byte = 0;
    if (rank == 1) {
      EXPECT_EQ(read(done[0], &byte, 1), 1);
      return;
    }
    EXPECT_EQ(ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, comm, nullptr), ncclRemoteError);
    expect_error_with({"ncclAllReduce", "250 ms", "rank 1"});
    EXPECT_EQ(write(done[1], ".", 1), 1);
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
  close(done[0]);
  close(done[1]);
}

TEST(NcclOptions, TheRankThatDoesNotComeBeforeTheCallsDeadlineIsNamed) {
  int done[2];
  ASSERT_EQ(pipe(done), 0);
  const std::vector<int> statuses = run_processes(2, [&](int rank, ncclComm_t comm) {
    char byte = 0;
    if (rank == 1) {
      EXPECT_EQ(read(done[0], &byte, 1), 1);
      return;
    }
    int value = 1;
    ncclConfigExt_t deadline = weir_nccl_timeout_ms(300, nullptr);
    EXPECT_EQ(reduce(comm, &value, &deadline), ncclRemoteError);
    expect_error_with({"ncclAllReduce", "300 ms", "rank 1"});
    EXPECT_EQ(write(done[1], ".", 1), 1);
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
  close(done[0]);
  close(done[1]);
}

TEST(NcclOptions, ADeterministicCallIsOneFoldInRankOrder) {
  constexpr int kRanks = 4;
  constexpr size_t kCount = 5000;
  std::vector<std::vector<float>> inputs;
  std::mt19937 random(7);
  std::uniform_real_distribution<float> some(-1e6F, 1e6F);
  for (int rank = 0; rank < kRanks; ++rank) {
    std::vector<float>& input = inputs.emplace_back(kCount);
    for (float& value : input) value = some(random) * (rank % 2 == 0 ? 1.0F : 1e-6F);
  }
  std::vector<float> expected = inputs[0];
  for (int rank = 1; rank < kRanks; ++rank) {
    for (size_t i = 0; i < kCount; ++i) expected[i] += inputs[static_cast<size_t>(rank)][i];
  }
  const std::vector<int> statuses = run_processes(kRanks, [&](int rank, ncclComm_t comm) {
    const std::vector<float>& input = inputs[static_cast<size_t>(rank)];
    // Over shared memory others fold in rank order, too.
    ncclConfigExt_t tcp = weir_nccl_transport("tcp", nullptr);
    ncclConfigExt_t exact = weir_nccl_deterministic(1, nullptr);
    ncclConfigExt_t exact_over_tcp = weir_nccl_deterministic(1, &tcp);
    for (int round = 0; round < 4; ++round) {
      const ncclCollConfig_t config = with(round % 2 == 0 ? &exact : &exact_over_tcp);
      std::vector<float> output(kCount);
      EXPECT_NCCL(ncclAllReduceConfig(input.data(), output.data(), kCount, ncclFloat, ncclSum, comm,
                                      nullptr, &config));
      EXPECT_EQ(output, expected);
      EXPECT_NCCL(
          ncclAllReduce(input.data(), output.data(), kCount, ncclFloat, ncclSum, comm, nullptr));
    }
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
  EXPECT_EQ(statuses, std::vector<int>(kRanks, 0));
}

TEST(NcclOptions, ACallGoesOverTheTransportThatItNames) {
  const std::vector<int> statuses = run_processes(2, [](int, ncclComm_t comm) {
    int value = 1;
    ncclConfigExt_t memory = weir_nccl_transport("shm", nullptr);
    EXPECT_NCCL(reduce(comm, &value, &memory));
    EXPECT_EQ(value, 2);
    const size_t before = tcp_sockets();
    ncclConfigExt_t tcp = weir_nccl_transport("tcp", nullptr);
    EXPECT_NCCL(reduce(comm, &value, &tcp));
    EXPECT_NCCL(reduce(comm, &value, &tcp));
    EXPECT_EQ(value, 8);
    EXPECT_GT(tcp_sockets(), before);
    // It is the data that go there, and without the option they do not.
    std::vector<int> large(100000, 1);
    const uint64_t sent = tcp_bytes_sent();
    EXPECT_NCCL(
        ncclAllReduce(large.data(), large.data(), large.size(), ncclInt, ncclSum, comm, nullptr));
    EXPECT_LT(tcp_bytes_sent() - sent, 50000u);
    const ncclCollConfig_t over_tcp = with(&tcp);
    EXPECT_NCCL(ncclAllReduceConfig(large.data(), large.data(), large.size(), ncclInt, ncclSum,
                                    comm, nullptr, &over_tcp));
    if (sent > 0) {  // else this kernel does not count
      EXPECT_GE(tcp_bytes_sent() - sent, 200000u);
    }
    EXPECT_EQ(large, std::vector<int>(100000, 4));
    // Both options, and one in a group with a call without any.
    ncclConfigExt_t exact = weir_nccl_deterministic(1, &tcp);
    int other = 1;
    EXPECT_NCCL(ncclGroupStart());
    EXPECT_NCCL(reduce(comm, &value, &exact));
    EXPECT_NCCL(reduce(comm, &other, nullptr));
    EXPECT_NCCL(ncclGroupEnd());
    EXPECT_EQ(value, 16);
    EXPECT_EQ(other, 2);
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
}

TEST(NcclOptions, OneThreadWithAllRanksAndANonblockingCommunicatorUseThemInGroups) {
  const std::vector<int> statuses = run_processes(1, [](int, ncclComm_t alone) {
    ncclConfigExt_t exact = weir_nccl_deterministic(1, nullptr);
    {
      const AllRanks ranks(3);
      int values[] = {1, 2, 3};
      for (int round = 0; round < 2; ++round) {
        EXPECT_NCCL(ncclGroupStart());
        for (int rank = 0; rank < 3; ++rank)
          EXPECT_NCCL(reduce(ranks[rank], &values[rank], &exact));
        EXPECT_NCCL(ncclGroupEnd());
      }
      EXPECT_EQ(values[2], 18);
    }
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t comm = nullptr;
    const ncclUniqueId id = make_id();
    (void)ncclCommInitRankConfig(&comm, 1, id, 0, &config);
    ASSERT_EQ(settle(comm), ncclSuccess);
    int value = 4;
    EXPECT_EQ(reduce(comm, &value, &exact), ncclInProgress);
    ASSERT_EQ(settle(comm), ncclSuccess);
    EXPECT_EQ(value, 4);
    EXPECT_NCCL(ncclCommDestroy(comm));
    EXPECT_NCCL(ncclCommDestroy(alone));
  });
  EXPECT_EQ(statuses, std::vector<int>{0});
}

TEST(NcclOptions, AWrongOptionIsNamedAndThoseOfOthersAreIgnored) {
  const std::vector<int> statuses = run_processes(1, [](int, ncclComm_t comm) {
    int value = 3;
    const auto refused = [&](ncclConfigExt_t option, const std::vector<std::string>& words) {
      EXPECT_EQ(reduce(comm, &value, &option), ncclInvalidArgument);
      expect_error_with(words);
    };
    refused(weir_nccl_option(4, nullptr), {"no option 4", "nearest is 3, WEIR_NCCL_TRANSPORT"});
    refused(weir_nccl_option(-5, nullptr), {"no option -5", "nearest is 1, WEIR_NCCL_TIMEOUT_MS"});
    refused(weir_nccl_timeout_ms(0, nullptr), {"WEIR_NCCL_TIMEOUT_MS is 0"});
    refused(weir_nccl_deterministic(2, nullptr), {"WEIR_NCCL_DETERMINISTIC is 2"});
    refused(weir_nccl_transport("tpc", nullptr), {"WEIR_NCCL_TRANSPORT", "'tpc'", "tcp"});
    refused(weir_nccl_transport("shm,", nullptr), {"WEIR_NCCL_TRANSPORT"});
    refused(weir_nccl_transport(nullptr, nullptr), {"WEIR_NCCL_TRANSPORT"});
    ncclConfigExt_t circle = weir_nccl_timeout_ms(1000, nullptr);
    circle.next = &circle;
    EXPECT_EQ(reduce(comm, &value, &circle), ncclInvalidArgument);
    expect_error_with({"circle"});
    // Another vendor's, with what would be a wrong number of ours.
    ncclConfigExt_t theirs = weir_nccl_option(4, nullptr);
    theirs.key.vendorId = 12345;
    EXPECT_NCCL(reduce(comm, &value, &theirs));
    // The first of two holds.
    ncclConfigExt_t second = weir_nccl_timeout_ms(-1, &theirs);
    ncclConfigExt_t first = weir_nccl_timeout_ms(60000, &second);
    EXPECT_NCCL(reduce(comm, &value, &first));
    EXPECT_EQ(value, 3);
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
  EXPECT_EQ(statuses, std::vector<int>{0});
}

}  // namespace
}  // namespace weir::nccl::test
