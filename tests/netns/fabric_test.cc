// SPDX-License-Identifier: Apache-2.0
// Hosts with a made-up /sys that shows cards: ranks that name no transport use ucx and tcp where
// all have a card, and rank 0 says why or why not. UCX itself sees only the ordinary network.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <time.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "netns/lab.h"
#include "support/collective_checks.h"

namespace weir::test {
namespace {

// In place of /sys/class: the host's interfaces, and one card.
const std::vector<std::string> kCard = {
    "mount -t sysfs own /sys",
    "mount -t tmpfs made /mnt && mkdir -p /mnt/net /mnt/infiniband/mlx5_0/device "
    "/mnt/infiniband/mlx5_0/ports/1",
    "mount --bind /sys/class/net /mnt/net && mount --rbind /mnt /sys/class",
    "cd /sys/class/infiniband/mlx5_0 && echo '1: CA' > node_type && "
    "echo InfiniBand > ports/1/link_layer && echo '4: ACTIVE' > ports/1/state"};

class Fabric : public testing::Test {
 protected:
  void SetUp() override {
    static const std::string reason = why_no_lab();
    if (!reason.empty()) GTEST_SKIP() << reason;
    if (std::system("unshare -mn sh -c 'mount -t sysfs own /sys && mount -t tmpfs made /sys/class'"
                    " >/dev/null 2>&1") != 0) {
      GTEST_SKIP() << "this machine does not let a host have a /sys of its own";
    }
    std::string pattern = std::filesystem::temp_directory_path() / "weir-fabric-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override {
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }

  // What rank 0 explains. `more`: run in each host whose number the shell finds in $host.
  std::string explain(const std::vector<std::vector<int>>& hosts, const std::string& more = "true",
                      const Environment& environment = {}) {
    LabOptions options;
    options.hosts = hosts;
    options.own_mounts = true;
    options.commands = kCard;
    options.commands.push_back("host=%i; " + more);
    options.environment = {{"WEIR_EXPLAIN", "1"}, {"UCX_TLS", "tcp"}};
    for (const auto& one : environment) options.environment.push_back(one);
    const std::string output = folder_ + "/output";
    std::filesystem::remove(output);
    options.before = [&output](int rank) {
      if (rank != 0) return;
      ASSERT_NE(freopen(output.c_str(), "w", stderr), nullptr);
    };
    run_in_lab(options, [](int, weir_comm_t comm) {
      for (const size_t count : {size_t{1}, size_t{70'001}}) check_every_collective(comm, count);
      // A child decides anew.
      weir_comm_t child = nullptr;
      ASSERT_EQ(weir_comm_split(comm, 0, 0, nullptr, &child), WEIR_OK) << weir_last_error(comm);
      check_every_collective(child, 100);
      EXPECT_EQ(weir_comm_destroy(child), WEIR_OK);
    });
    std::ifstream file(output);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::string folder_;
};

#define EXPECT_SAYS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST_F(Fabric, UcxAndTcpAreUsedWhereEveryRankHasACard) {
  for (const std::vector<std::vector<int>>& hosts :
       {std::vector<std::vector<int>>{{0}, {1}}, {{0, 1}, {2}}}) {
    const std::string text = explain(hosts);
    EXPECT_SAYS(text,
                "ucx, then tcp: all ranks have active InfiniBand, rank 0: mlx5_0 (InfiniBand); all "
                "can use ucx\n");
    EXPECT_SAYS(text, "failover(ucx,tcp)");
  }
}

TEST_F(Fabric, TcpIsUsedWhereAHostHasNoCard) {
  const std::string text =
      explain({{0, 1}, {2}}, "test $host = 0 || rm -r /sys/class/infiniband/mlx5_0");
  EXPECT_SAYS(text, "not used: no active InfiniBand, RoCE or EFA on rank 2\n");
  EXPECT_EQ(text.find("failover"), std::string::npos) << text;
}

TEST_F(Fabric, TcpIsUsedWhereAPortIsDown) {
  const std::string text = explain(
      {{0}, {1}}, "test $host = 0 || echo '1: DOWN' > /sys/class/infiniband/mlx5_0/ports/1/state");
  EXPECT_SAYS(text,
              "not used: no active InfiniBand, RoCE or EFA on rank 1; rank 1 has mlx5_0 (port 1 is "
              "DOWN)\n");
  EXPECT_EQ(text.find("failover"), std::string::npos) << text;
}

TEST_F(Fabric, AnotherTransportIsUsedWhereAHostHasNoUcx) {
  const std::string text = explain(
      {{0}, {1}}, "test $host = 0 || mount --bind /dev/null " + std::string(WEIR_TEST_UCX_MODULE));
#ifdef WEIR_TEST_OFI
  EXPECT_SAYS(text, "ofi, then tcp: ");
  EXPECT_SAYS(text, "failover(ofi,tcp)");
#else
  EXPECT_SAYS(text, "not used: all ranks have active InfiniBand");
  EXPECT_SAYS(text, "rank 1 cannot use ucx: ");
#endif
}

TEST_F(Fabric, InsideTlsMessagesAreSealed) {
  EXPECT_SAYS(explain({{0, 1}, {2}}, "true", {{"WEIR_TLS", "all"}}), "failover(seal(ucx),tcp)");
}

TEST_F(Fabric, OneVariableRefusesIt) {
  const std::string text = explain({{0}, {1}}, "true", {{"WEIR_FABRIC", "0"}});
  EXPECT_SAYS(text, "not used: WEIR_FABRIC=0 on ranks 0, 1\n");
  EXPECT_EQ(text.find("failover"), std::string::npos) << text;
}

// The ports of ucx are up and carry no packet above 90 bytes: connections are accepted, and nothing
// comes over them. tcp takes all interfaces, as by default, or only the one that works.
class FabricThatDoesNotJoin : public Fabric, public testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(, FabricThatDoesNotJoin, testing::Values("", "=eth0"),
                         [](const auto& one) -> std::string {
                           return *one.param == 0 ? "TcpTakesAll" : "TcpTakesOne";
                         });

TEST_P(FabricThatDoesNotJoin, CostsSecondsNotHalfOfTheTimeout) {
  LabOptions options;
  options.hosts = {{0, 1}, {2}};
  options.interfaces = 2;
  options.own_mounts = true;
  options.commands = kCard;
  options.commands.push_back("tc qdisc add dev eth1 root tbf rate 1mbit burst 90 limit 4000");
  options.environment = {{"UCX_TLS", "tcp"},
                         {"UCX_NET_DEVICES", "eth1"},
                         {"WEIR_IFNAME", GetParam()},
                         {"WEIR_LOG", "warn"},
                         {"WEIR_LOG_FILE", folder_ + "/log-%p"}};
  options.timeout_ms = 120'000;
  timespec began{};
  options.before = [&began](int) { clock_gettime(CLOCK_MONOTONIC, &began); };
  run_in_lab(options, [&began](int, weir_comm_t comm) {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    // The allowance of 2 s and 15 ms for three ranks, and the rest of the start on a busy machine.
    EXPECT_LT(now.tv_sec - began.tv_sec, 30);
    printf("started after %.1f s\n", static_cast<double>(now.tv_sec - began.tv_sec) +
                                         static_cast<double>(now.tv_nsec - began.tv_nsec) / 1e9);
    for (const size_t count : {size_t{1}, size_t{70'001}}) check_every_collective(comm, count);
  });
  size_t without = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    std::ifstream file(entry.path());
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    without += text.find("starts without ucx") != std::string::npos ? 1 : 0;
  }
  EXPECT_EQ(without, 3u);
}

TEST_F(Fabric, NamedTransportsWin) {
  for (const auto& [name, value] :
       Environment{{"WEIR_TRANSPORT", "tcp"}, {"WEIR_FAILOVER", "tcp"}}) {
    const std::string text = explain({{0}, {1}}, "true", {{name, value}});
    EXPECT_SAYS(text,
                "not used: the program, WEIR_TRANSPORT or WEIR_FAILOVER names transports on ranks "
                "0, 1\n");
    EXPECT_EQ(text.find("ucx"), std::string::npos) << text;
  }
}

TEST_F(Fabric, WeirInfoTellsIt) {
  const std::string network =
      "ip link add eth0 type veth peer name v1 && ip addr add 10.77.0.1/24 dev eth0 && "
      "ip link set eth0 up && ip link set v1 up && ";
  std::string commands;
  for (const std::string& one : kCard) commands += "(" + one + ") && ";
  const std::string output = folder_ + "/output";
  const auto choices = [&](const std::string& variable, const std::string& first) {
    const std::string all = "unshare -mn env UCX_TLS=tcp " + variable + " sh -c \"" + first +
                            commands + WEIR_TEST_WEIR_INFO + "\" > " + output;
    EXPECT_EQ(std::system(all.c_str()), 0) << all;
    std::ifstream file(output);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const size_t begin = std::min(text.find("Chosen between ranks"), text.size());
    return text.substr(begin, text.find("Machine", begin) - begin);
  };
  const std::string text = choices("WEIR_FABRIC=auto", network);
  EXPECT_SAYS(text, "on hosts of their own             tcp\n");
  EXPECT_SAYS(text, "several on each, with cards       hosts(failover(ucx,tcp))\n");
  EXPECT_SAYS(text, "on hosts of their own, with cards failover(ucx,tcp)\n");
  EXPECT_EQ(choices("WEIR_FABRIC=0", network).find("cards"), std::string::npos);
  const std::string without = choices("WEIR_FABRIC=auto", "");
  EXPECT_SAYS(without, "on hosts of their own, with cards none\n");
  EXPECT_SAYS(without, "cannot use ucx: tcp cannot take over: no network interface");
}

// Of a made-up machine with two cards: what its ranks log of theirs.
TEST_F(Fabric, RanksOfAHostTakeDifferentCardsAndOneVariableRefusesIt) {
  const std::string machine = folder_ + "/machine.xml";
  std::ofstream(machine) << R"(<system version="1">
<cpu numaid="0" affinity="ffffffff,ffffffff" arch="x86_64" vendor="GenuineIntel" familyid="6"
 modelid="85">
<pci busid="0000:3b:00.0" class="0x020700" link_speed="16 GT/s" link_width="16"><nic>
<net name="mlx5_0" dev="0" speed="200000" port="1"/></nic></pci>
<pci busid="0000:5e:00.0" class="0x020700" link_speed="16 GT/s" link_width="16"><nic>
<net name="mlx5_1" dev="1" speed="200000" port="1"/></nic></pci>
</cpu></system>)";
  for (const char* value : {"auto", "0"}) {
    const std::string log = folder_ + "/log-" + value;
    const std::string text =
        explain({{0, 1}, {2}}, "cp -r /sys/class/infiniband/mlx5_0 /sys/class/infiniband/mlx5_1",
                {{"WEIR_CARDS", value},
                 {"WEIR_LOG", "info"},
                 {"WEIR_LOG_FILE", log},
                 {"WEIR_TOPOLOGY_FILE", machine},
                 {"WEIR_TOPOLOGY_MERGE", "0"}});
    EXPECT_SAYS(text, "failover(ucx,tcp)");
    std::ifstream file(log);
    const std::string lines{std::istreambuf_iterator<char>(file), {}};
    if (std::string(value) == "0") {
      EXPECT_EQ(text.find("sets of them"), std::string::npos) << text;
      EXPECT_EQ(lines.find("has cards"), std::string::npos) << lines;
      continue;
    }
    EXPECT_SAYS(text, ": 3 ranks use 3 sets of them, which send at the same time\n");
    EXPECT_SAYS(lines, "rank 0 has cards mlx5_0 (same host bridge as NUMA0 (PHB))");
    EXPECT_SAYS(lines, "rank 1 has cards mlx5_1 (same host bridge as NUMA0 (PHB))");
    EXPECT_SAYS(lines, "rank 2 has cards mlx5_0,mlx5_1 (same host bridge as NUMA0 (PHB))");
  }
}

TEST_F(Fabric, OnOneHostNothingIsAsked) {
  EXPECT_EQ(explain({{0, 1}}).find("cards of"), std::string::npos);
}

}  // namespace
}  // namespace weir::test
