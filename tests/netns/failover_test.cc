// SPDX-License-Identifier: Apache-2.0
// Two hosts with two networks: UCX has one, tcp the other. UCX's is cut in the middle of an
// all-reduce, tcp takes over, and later UCX's comes back, with all that was on its way.
#include <gtest/gtest.h>

#include <thread>

#include "netns/lab.h"
#include "support/collective_checks.h"

namespace weir::test {
namespace {

class TwoNetworks : public testing::Test {
 protected:
  void SetUp() override {
    static const std::string reason = why_no_lab();
    if (!reason.empty()) GTEST_SKIP() << reason;
    if (std::system(
            "unshare -n sh -c 'ip link add v0 type veth peer name v1 && ip link add link v0 "
            "name m0 type macvlan mode bridge' >/dev/null 2>&1") != 0) {
      GTEST_SKIP() << "this kernel makes no macvlan interfaces";
    }
  }

  // Weir's own connections keep to the interface that stays.
  static LabOptions options(const std::vector<std::vector<int>>& hosts) {
    LabOptions made = default_options(hosts);
    made.environment.push_back({"WEIR_FAILOVER_MS", "500"});
    made.environment.push_back({"WEIR_IFNAME", "=net0"});
    return made;
  }

  // As a user has it: any interface, the usual patience.
  static LabOptions default_options(const std::vector<std::vector<int>>& hosts) {
    return {
        .hosts = hosts,
        // UCX looks for its devices in /sys, which is that of the first namespace: it finds eth0
        // only.
        .commands = {"ip link set eth0 down", "ip link set eth0 name net0", "ip link set net0 up",
                     "ip link add link net0 name eth0 type macvlan mode bridge",
                     "ip addr add 10.88.0.1%i/24 dev eth0", "ip link set eth0 up", "sleep 0.2"},
        .environment = {{"WEIR_TRANSPORT", hosts[0].size() > 1 ? "shm,ucx" : "ucx"},
                        {"WEIR_FAILOVER", "tcp"},
                        {"UCX_TLS", "tcp"},
                        {"UCX_NET_DEVICES", "eth0"}}};
  }
};

void set_link(bool up) {
  EXPECT_EQ(std::system(up ? "ip link set eth0 up" : "ip link set eth0 down"), 0);
}

int32_t input_at(size_t i, int rank) { return static_cast<int32_t>(i % 1000) + rank; }

size_t count_wrong(const std::vector<int32_t>& data, int rank_count) {
  const int32_t ranks = rank_count * (rank_count - 1) / 2;
  size_t wrong = 0;
  for (size_t i = 0; i < data.size(); ++i) {
    wrong += data[i] != rank_count * static_cast<int32_t>(i % 1000) + ranks;
  }
  return wrong;
}

void reduce_while_the_network_is_cut(int rank, weir_comm_t comm, useconds_t moment_us) {
  int n = 0;
  ASSERT_EQ(weir_comm_size(comm, &n), WEIR_OK);
  constexpr size_t kCount = size_t{8} << 20;  // 32 MiB
  std::vector<int32_t> data(kCount);
  for (size_t i = 0; i < kCount; ++i) data[i] = input_at(i, rank);
  ASSERT_EQ(weir_barrier(comm, nullptr), WEIR_OK) << weir_last_error(comm);
  std::thread cutter;
  if (rank == n - 1) {
    cutter = std::thread([moment_us] {
      usleep(moment_us);
      set_link(false);
      usleep(3'000'000);
      set_link(true);
    });
  }
  ASSERT_EQ(weir_all_reduce(comm, data.data(), data.data(), kCount, WEIR_INT32, WEIR_SUM, nullptr),
            WEIR_OK)
      << weir_last_error(comm);
  EXPECT_EQ(count_wrong(data, n), 0u);
  for (int i = 0; i < 20; ++i) check_every_collective(comm, 2000);
  if (cutter.joinable()) cutter.join();
  // What UCX had under way could arrive by now.
  ASSERT_EQ(weir_barrier(comm, nullptr), WEIR_OK) << weir_last_error(comm);
  usleep(1'500'000);
  check_every_collective(comm, 70'001);
  EXPECT_EQ(count_wrong(data, n), 0u) << "something arrived late";
}

TEST_F(TwoNetworks, TheFirstIsCutAndTheOtherCarriesOn) {
  for (const useconds_t moment_us : {2'000u, 20'000u}) {
    run_in_lab(options({{0}, {1}}), [&](int rank, weir_comm_t comm) {
      reduce_while_the_network_is_cut(rank, comm, moment_us);
    });
    if (HasFailure()) return;
  }
}

TEST_F(TwoNetworks, OneIsCutThatTheSecondTransportUsesToo) {
  for (const std::vector<std::vector<int>>& hosts :
       {std::vector<std::vector<int>>{{0}, {1}}, {{0, 1}, {2, 3}}}) {
    run_in_lab(default_options(hosts), [&](int rank, weir_comm_t comm) {
      reduce_while_the_network_is_cut(rank, comm, 10'000);
    });
    if (HasFailure()) return;
  }
}

TEST_F(TwoNetworks, TheFirstIsCutBetweenHostsOfSeveralRanks) {
  run_in_lab(options({{0, 1}, {2, 3}}), [&](int rank, weir_comm_t comm) {
    reduce_while_the_network_is_cut(rank, comm, 10'000);
  });
}

}  // namespace
}  // namespace weir::test
