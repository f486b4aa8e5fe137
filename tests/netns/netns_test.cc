// SPDX-License-Identifier: Apache-2.0
// Communicators whose ranks are on several hosts, through the ordinary unique id.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "netns/lab.h"
#include "support/collective_checks.h"
#include "support/promises.h"
#include "support/shared_counter.h"

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

// No transport is named: one that can is found.
TEST_F(Hosts, InsideTlsTheResultsAreTheSame) {
  for (const char* mode : {"control", "all"}) {
    run_in_lab(
        {.hosts = {{0, 2}, {1}}, .environment = {{"WEIR_TRANSPORT", "tcp"}, {"WEIR_TLS", mode}}},
        [](int, weir_comm_t comm) {
          for (const size_t count : {size_t{255}, size_t{70'001}}) {
            check_every_collective(comm, count);
          }
        });
  }
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

// What one host sends is slow; it is found, and the trees that pass it seldom can be forced (which
// fails where hosts are alike), and are among what is chosen from.
TEST_F(Hosts, OneThatIsSlowerGivesTreesAndTheSameResults) {
  if (std::system("tc -V >/dev/null 2>&1") != 0) GTEST_SKIP() << "the program tc is missing";
  const std::string shape =
      "tc qdisc add dev eth0 root tbf burst 64kb latency 50ms rate $(test %i = 2 && echo 25mbit || "
      "echo 400mbit)";
  for (const char* forced :
       {"",
        "all_reduce=forest,reduce_scatter=forest,all_gather=forest,broadcast=forest,"
        "reduce=forest,reduce_scatter_v=forest,all_gather_v=forest"}) {
    run_in_lab({.hosts = {{0}, {1, 3}, {2, 4}, {5}},
                .commands = {shape},
                .environment = {{"WEIR_PROBE", "1"}, {"WEIR_ALGORITHM", forced}}},
               [](int, weir_comm_t comm) {
                 for (const size_t count : {size_t{3}, size_t{20'001}}) {
                   check_every_collective(comm, count);
                 }
               });
  }
}

// Between hosts that are alike: the ring in the order of ranks would go from host to host at every
// hop. (Forcing `rings` fails where that order is as good.)
TEST_F(Hosts, WhoseRanksTakeTurnsGiveARingByHostAndTheSameResults) {
  for (const char* forced :
       {"",
        "all_reduce=rings,reduce_scatter=rings,all_gather=rings,reduce_scatter_v=rings,"
        "all_gather_v=rings"}) {
    run_in_lab({.hosts = {{0, 2, 4}, {1, 3}}, .environment = {{"WEIR_ALGORITHM", forced}}},
               [](int, weir_comm_t comm) {
                 for (const size_t count : {size_t{3}, size_t{20'001}}) {
                   check_every_collective(comm, count);
                 }
               });
  }
}

TEST_F(Hosts, TheFiguresOfALinkAreMeasuredOnIt) {
  if (std::system("tc -V >/dev/null 2>&1") != 0) GTEST_SKIP() << "the program tc is missing";
  std::string log = std::filesystem::temp_directory_path() / "weir-link-XXXXXX";
  const int fd = mkstemp(log.data());
  ASSERT_GE(fd, 0);
  close(fd);
  run_in_lab({.hosts = {{0, 2}, {1}},
              .commands = {"tc qdisc add dev eth0 root tbf rate 200mbit burst 64kb latency 50ms"},
              .environment = {{"WEIR_LOG", "info"}, {"WEIR_LOG_FILE", log}, {"WEIR_PROBE", "1"}}},
             [](int, weir_comm_t comm) { ASSERT_EQ(weir_barrier(comm, nullptr), WEIR_OK); });
  std::ifstream file(log);
  double within = 0;
  double between = 0;
  for (std::string line; std::getline(file, line);) {
    const size_t comma = line.rfind(", ");
    if (line.find(" within a host, measured by ranks 0 and 2") != std::string::npos) {
      within = std::stod(line.substr(comma + 2));
    } else if (line.find(" between hosts, measured by ranks 0 and 1") != std::string::npos) {
      between = std::stod(line.substr(comma + 2));
    }
  }
  // 200 Mbit/s are 40 ns per byte, and headers.
  EXPECT_GT(between, 35);
  EXPECT_GT(within, 0);
  EXPECT_LT(within, between);
  std::filesystem::remove(log);
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

// Of the host that the calling rank is on.
void set_link(bool up) {
  EXPECT_EQ(std::system(up ? "ip link set eth0 up" : "ip link set eth0 down"), 0);
}

enum LinkState : int { kWhole = 0, kCut, kCutLate };

TEST_F(Hosts, AHostWhoseLinkIsCutIsNamedByTheOthersWithinTwiceTheTimeout) {
  for (const std::vector<std::vector<int>>& hosts :
       {std::vector<std::vector<int>>{{0}, {1}, {2}}, {{0}, {1, 2}, {3}}, {{1, 2}, {0}, {3}}}) {
    // The last rank of the second host cuts it off.
    const std::vector<int>& cut = hosts[1];
    Promises promises;
    promises.hold([&] {
      const SharedCounter link;
      run_in_lab({.hosts = hosts}, [&](int rank, weir_comm_t comm) {
        const int timeout_ms = 1500 * promises.scale();
        std::vector<float> data(50'000, 1.0f);
        ASSERT_EQ(weir_comm_set_timeout(comm, timeout_ms), WEIR_OK);
        const bool is_cut = std::find(cut.begin(), cut.end(), rank) != cut.end();
        weir_result_t result = WEIR_OK;
        Clock::time_point start;
        for (int i = 0; result == WEIR_OK; ++i) {
          start = Clock::now();
          if (rank == cut.back() && i == 20) {
            set_link(false);
            // A machine that takes so long for this takes it from the others' timeout.
            int before = kWhole;
            const bool soon = seconds_since(start) < 0.25e-3 * timeout_ms;
            (void)link.get().compare_exchange_strong(before, soon ? kCut : kCutLate);
            start = Clock::now();
          }
          result = weir_all_reduce(comm, data.data(), data.data(), data.size(), WEIR_FLOAT32,
                                   WEIR_MAX, nullptr);
        }
        promises.within(2e-3 * timeout_ms, start);
        // A rank that stood still for the whole timeout may have failed before that.
        int state = kWhole;
        (void)link.get().compare_exchange_strong(state, kCutLate);
        if (link.get() == kCutLate) promises.miss();
        if (is_cut || link.get() == kCutLate) return;
        EXPECT_EQ(result, WEIR_ERROR_TIMEOUT) << weir_last_error(comm);
        int lost[4];
        int count = 0;
        ASSERT_EQ(weir_comm_lost_ranks(comm, lost, 4, &count), WEIR_OK);
        ASSERT_EQ(std::vector<int>(lost, lost + count), cut) << weir_last_error(comm);
        weir_comm_config_t config = WEIR_COMM_CONFIG_INIT;
        config.timeout_ms = 60'000;
        weir_comm_t rest = nullptr;
        ASSERT_EQ(weir_comm_shrink(comm, lost, count, &config, &rest), WEIR_OK)
            << weir_last_error(comm);
        check_every_collective(rest, 1000);
        ASSERT_EQ(weir_comm_destroy(rest), WEIR_OK);
      });
    });
    if (HasFailure()) return;
  }
}

TEST_F(Hosts, ALinkThatIsCutAndComesBackGivesTheRightResult) {
  run_in_lab({.hosts = {{0}, {1}}}, [](int rank, weir_comm_t comm) {
    constexpr size_t kCount = size_t{16} << 20;  // 64 MiB
    std::vector<int32_t> data(kCount);
    for (size_t i = 0; i < kCount; ++i) data[i] = static_cast<int32_t>(i % 1000) + rank;
    ASSERT_EQ(weir_barrier(comm, nullptr), WEIR_OK) << weir_last_error(comm);
    std::thread cutter;
    if (rank == 1) {
      cutter = std::thread([] {
        usleep(15'000);
        set_link(false);
        usleep(300'000);
        set_link(true);
      });
    }
    EXPECT_EQ(
        weir_all_reduce(comm, data.data(), data.data(), kCount, WEIR_INT32, WEIR_SUM, nullptr),
        WEIR_OK)
        << weir_last_error(comm);
    if (cutter.joinable()) cutter.join();
    size_t wrong = 0;
    for (size_t i = 0; i < kCount; ++i) wrong += data[i] != 2 * static_cast<int32_t>(i % 1000) + 1;
    EXPECT_EQ(wrong, 0u);
  });
}

}  // namespace
}  // namespace weir::test
