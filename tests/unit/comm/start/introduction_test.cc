// SPDX-License-Identifier: Apache-2.0
// What ranks tell of themselves passes through its bytes, and what follows from it does not depend
// on how it is computed.
#include "core/comm/start/introduction.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "weir/plugin.h"

namespace weir::comm {
namespace {

Introduction example() {
  Introduction it;
  it.machine = "a machine";
  it.host = std::string("\0host\xff", 6);
  it.place = "place";
  it.cpus = {0, 1, 2, 5, 7, 8, 4095};
  it.cpu_place = {4, topo::CpuPlace::kSeveral, 0};
  it.cards.stance = FabricStance::kNamed;
  it.cards.cards = {topo::kCardKindsAll, "mlx5_0 (RoCE)"};
  it.settings = "hooks= WEIR_TLS=off";
  it.network = "network";
  it.address = std::string(WEIR_TRANSPORT_ADDRESS_BYTES_MAX, 'a');
  return it;
}

TEST(Introduction, PassesThroughItsBytes) {
  for (const bool empty : {true, false}) {
    const Introduction it = empty ? Introduction() : example();
    const Result<Introduction> read = Introduction::unpack(it.pack(), 1);
    ASSERT_TRUE(read.ok()) << read.status().text();
    EXPECT_EQ(read.value().machine, it.machine);
    EXPECT_EQ(read.value().host, it.host);
    EXPECT_EQ(read.value().place, it.place);
    EXPECT_EQ(read.value().cpus, it.cpus);
    EXPECT_EQ(read.value().cpu_place, it.cpu_place);
    EXPECT_EQ(read.value().cards.pack(), it.cards.pack());
    EXPECT_EQ(read.value().settings, it.settings);
    EXPECT_EQ(read.value().network, it.network);
    EXPECT_EQ(read.value().address, it.address);
  }
  const Introduction own = introduce_this_process();
  EXPECT_EQ(Introduction::unpack(own.pack(), 0).value().cpus, own.cpus);
}

TEST(Introduction, TellsThisRunOfTheMachineAndThePlaceOfTheProcessorsThatTheProcessMayUseNow) {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot_id;
  std::getline(file, boot_id);
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  std::vector<int> all;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &before)) all.push_back(cpu);
  }
  // The latter twice: what is known of some processors does not stand for others.
  for (const std::vector<int>& cpus : {all, {all.front()}, {all.back()}, {all.back()}, all}) {
    cpu_set_t set;
    CPU_ZERO(&set);
    topo::CpuSet expected;
    for (const int cpu : cpus) {
      CPU_SET(cpu, &set);
      expected.add(static_cast<uint32_t>(cpu));
    }
    ASSERT_EQ(sched_setaffinity(0, sizeof set, &set), 0);
    const Introduction own = introduce_this_process();
    EXPECT_EQ(own.machine, boot_id);
    EXPECT_EQ(own.cpus, cpus);
    EXPECT_EQ(own.cpu_place, topo::place_of(expected, "/sys"));
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
}

TEST(Introduction, WhatIsCutOrLongerOrOfAnotherVersionIsRefusedWithTheNameOfTheRank) {
  Introduction it = example();
  const std::string bytes = it.pack();
  std::vector<std::string> bad = {bytes + "x", "", std::string("\xa6 CBOR of another version")};
  for (size_t size = 0; size < bytes.size(); size += 1 + size / 50) {
    bad.push_back(bytes.substr(0, size));
  }
  bad.push_back(bytes);
  bad.back()[4] = 9;  // the version
  it.address += 'a';
  bad.push_back(it.pack());
  for (const std::string& text : bad) {
    const Status status = Introduction::unpack(text, 12).status();
    EXPECT_EQ(status.code(), Code::kRefused);
    EXPECT_NE(status.text().find("rank 12"), std::string::npos) << status.text();
  }
}

TEST(Introduction, CoresThatAreNotAscendingAreRefused) {
  for (const std::vector<int>& cpus :
       {std::vector<int>{3, 1}, std::vector<int>{1, 1}, std::vector<int>{70'000}}) {
    Introduction it = example();
    it.cpus = cpus;
    EXPECT_EQ(Introduction::unpack(it.pack(), 0).status().code(), Code::kRefused);
  }
}

TEST(Introduction, CardsThatCannotBeReadAreRefused) {
  Introduction it = example();
  it.cards.cards.kinds = topo::kCardKindsAll + 1;
  EXPECT_EQ(Introduction::unpack(it.pack(), 0).status().code(), Code::kRefused);
}

// Compared with all others, one by one.
std::vector<bool> shared_cores_by_pairs(const std::vector<Introduction>& all) {
  std::vector<bool> result;
  for (const Introduction& mine : all) {
    size_t confined = 0;
    for (const Introduction& other : all) {
      const bool inside =
          std::includes(mine.cpus.begin(), mine.cpus.end(), other.cpus.begin(), other.cpus.end());
      if (other.machine == mine.machine && inside) ++confined;
    }
    result.push_back(!mine.cpus.empty() && confined > mine.cpus.size());
  }
  return result;
}

TEST(Introduction, SharedCoresAreThoseOfAComparisonWithAllOthers) {
  const char* text = getenv("WEIR_TEST_SEED");
  const uint64_t seed = text != nullptr ? strtoull(text, nullptr, 0) : std::random_device()();
  std::printf("WEIR_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 300; ++round) {
    std::vector<Introduction> all(1 + random() % 20);
    const size_t cpu_count = 1 + random() % 8;
    for (Introduction& it : all) {
      it.machine = std::to_string(random() % 3);
      const bool some = random() % 4 != 0;
      for (size_t cpu = 0; cpu < cpu_count; ++cpu) {
        if (!some || random() % 2 == 0) it.cpus.push_back(static_cast<int>(cpu));
      }
    }
    EXPECT_EQ(shared_cores(all), shared_cores_by_pairs(all)) << "round " << round;
  }
}

TEST(Introduction, HostsAreNumberedInTheOrderOfTheirFirstRank) {
  std::vector<Introduction> all(5);
  for (size_t i = 0; i < all.size(); ++i) all[i].host = std::string(1, "zazbz"[i]);
  EXPECT_EQ(host_of_rank(all), (std::vector<uint32_t>{0, 1, 0, 2, 0}));
  EXPECT_EQ(hosts_of(all), "1 z1 a1 b");
  for (Introduction& it : all) it.host = "one";
  EXPECT_TRUE(host_of_rank(all).empty());
}

}  // namespace
}  // namespace weir::comm
