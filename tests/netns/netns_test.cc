// SPDX-License-Identifier: Apache-2.0
// Communicators whose ranks are on several hosts, through the ordinary unique id.
#include <gtest/gtest.h>

#include <chrono>

#include "netns/lab.h"
#include "support/collective_checks.h"

namespace weir::test {
namespace {

class Hosts : public testing::Test {
 protected:
  void SetUp() override {
    static const std::string reason = why_no_lab();
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
};

void check_some_sizes(weir_comm_t comm) {
  for (const size_t count : {size_t{0}, size_t{1}, size_t{255}, size_t{5000}, size_t{70'001}}) {
    check_every_collective(comm, count);
  }
}

TEST_F(Hosts, CollectivesHoldBetweenTwo) {
  run_in_lab({.hosts = {{0}, {1}}}, [](int, weir_comm_t comm) { check_some_sizes(comm); });
}

TEST_F(Hosts, UnevenInterleavedAndReversedLayoutsGiveTheSame) {
  for (const std::vector<std::vector<int>>& hosts : std::vector<std::vector<std::vector<int>>>{
           {{0, 1, 2}, {3}}, {{0, 3}, {1}, {2, 4}}, {{3, 2}, {1, 0}}, {{3}, {2}, {1}, {0}}}) {
    run_in_lab({.hosts = hosts}, [](int, weir_comm_t comm) {
      for (const size_t count : {size_t{1}, size_t{5000}}) check_every_collective(comm, count);
    });
    if (HasFailure()) return;
  }
}

TEST_F(Hosts, ChildrenOfACommunicatorFindEachOther) {
  // Two hosts; the halves of the split lie across them, and rank 0 is not in what shrink leaves.
  run_in_lab({.hosts = {{0, 3}, {1, 2}}}, [](int rank, weir_comm_t comm) {
    weir_comm_t half = nullptr;
    ASSERT_EQ(weir_comm_split(comm, rank % 2, -rank, nullptr, &half), WEIR_OK)
        << weir_last_error(comm);
    check_every_collective(half, 1000);
    ASSERT_EQ(weir_comm_destroy(half), WEIR_OK);
    const int excluded = 0;
    if (rank != 0) {
      weir_comm_t rest = nullptr;
      ASSERT_EQ(weir_comm_shrink(comm, &excluded, 1, nullptr, &rest), WEIR_OK)
          << weir_last_error(comm);
      check_every_collective(rest, 1000);
      ASSERT_EQ(weir_comm_destroy(rest), WEIR_OK);
    }
    ASSERT_EQ(weir_barrier(comm, nullptr), WEIR_OK) << weir_last_error(comm);
  });
}

TEST_F(Hosts, AnInterfaceThatLeadsNowhereIsPassedOver) {
  // Each host has a second interface whose name comes first and whose subnet seems to be shared.
  run_in_lab({.hosts = {{0}, {1}},
              .commands = {"ip link add aaa0 type veth peer name aaa1", "ip link set aaa1 up",
                           "ip addr add 10.99.0.1%i/24 dev aaa0", "ip link set aaa0 up"}},
             [](int, weir_comm_t comm) { check_every_collective(comm, 1000); });
}

TEST_F(Hosts, TheSettingChoosesTheInterface) {
  run_in_lab({.hosts = {{0}, {1}},
              .commands = {"ip link add aaa0 type veth peer name aaa1", "ip link set aaa1 up",
                           "ip addr add 10.99.0.1%i/24 dev aaa0", "ip link set aaa0 up"},
              .environment = {{"NCCL_SOCKET_IFNAME", "=eth0"}}},
             [](int, weir_comm_t comm) { check_every_collective(comm, 1000); });
}

TEST_F(Hosts, ASlowLinkGivesTheSameResults) {
  if (std::system("tc -V >/dev/null 2>&1") != 0) GTEST_SKIP() << "the program tc is missing";
  run_in_lab({.hosts = {{0}, {1, 2}},
              .commands = {"tc qdisc add dev eth0 root tbf rate 200mbit burst 64kb latency 50ms"}},
             [](int, weir_comm_t comm) {
               for (const size_t count : {size_t{255}, size_t{70'001}}) {
                 check_every_collective(comm, count);
               }
             });
}

TEST_F(Hosts, ADeadRankIsNamedByTheSurvivors) {
  const std::vector<int> statuses =
      run_in_lab_status({.hosts = {{0}, {1}, {2}}}, [](int rank, weir_comm_t comm) {
        ASSERT_EQ(weir_barrier(comm, nullptr), WEIR_OK) << weir_last_error(comm);
        std::vector<float> data(100'000, 1.0f);
        weir_result_t result = WEIR_OK;
        for (int i = 0; i < 1000 && result == WEIR_OK; ++i) {
          if (rank == 1 && i == 5) kill(getpid(), SIGKILL);
          result = weir_all_reduce(comm, data.data(), data.data(), data.size(), WEIR_FLOAT32,
                                   WEIR_MAX, nullptr);
        }
        EXPECT_EQ(result, WEIR_ERROR_PEER_LOST) << weir_last_error(comm);
        EXPECT_NE(std::string(weir_last_error(comm)).find("rank 1"), std::string::npos)
            << weir_last_error(comm);
        int lost[3];
        int count = 0;
        ASSERT_EQ(weir_comm_lost_ranks(comm, lost, 3, &count), WEIR_OK);
        ASSERT_EQ(count, 1);
        EXPECT_EQ(lost[0], 1);
        weir_comm_t rest = nullptr;
        ASSERT_EQ(weir_comm_shrink(comm, lost, 1, nullptr, &rest), WEIR_OK)
            << weir_last_error(comm);
        check_every_collective(rest, 1000);
        ASSERT_EQ(weir_comm_destroy(rest), WEIR_OK);
      });
  EXPECT_EQ(statuses, (std::vector<int>{0, 128 + SIGKILL, 0}));
}

}  // namespace
}  // namespace weir::test
