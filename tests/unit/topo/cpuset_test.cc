// SPDX-License-Identifier: Apache-2.0
#include "core/topo/cpuset.h"

#include <gtest/gtest.h>

#include <random>

namespace weir::topo {
namespace {

TEST(CpuSet, ReadsTheNotationsOfLinuxHwlocAndNccl) {
  EXPECT_EQ(CpuSet::parse_mask("00000000,0000ffff,ff000000").value().list(), "24-47");
  EXPECT_EQ(CpuSet::parse_mask("0x03000003").value().list(), "0-1,24-25");
  EXPECT_EQ(CpuSet::parse_mask("0x1,,0x0").value().list(), "64");
  EXPECT_EQ(CpuSet::parse_mask("0x00000001,0x80000000").value().list(), "31-32");
  EXPECT_TRUE(CpuSet::parse_mask("0x0").value().empty());
  EXPECT_TRUE(CpuSet::parse_mask("").value().empty());
  EXPECT_EQ(CpuSet::parse_list("0-3,8,10-11\n").value().count(), 7u);
  EXPECT_TRUE(CpuSet::parse_list("").value().empty());
}

TEST(CpuSet, RefusesWhatIsNoSet) {
  for (const char* text : {"g", "0x", "123456789", "1 2", "-1", "0xf...f", "0x0x1"}) {
    const bool zero = std::string(text) == "0x";  // an empty group after the prefix
    EXPECT_EQ(CpuSet::parse_mask(text).ok(), zero) << text;
  }
  for (const char* text : {"a", "3-1", "1-", "-1", "1,,2", "65536", "0-99999999999", "1;2"}) {
    EXPECT_FALSE(CpuSet::parse_list(text).ok()) << text;
  }
  EXPECT_FALSE(CpuSet::parse_mask(std::string(100000, ',')).ok());
}

TEST(CpuSet, BothNotationsRoundTrip) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    CpuSet set;
    for (uint32_t i = 0; i < random() % 20; ++i) set.add(random() % 300);
    EXPECT_EQ(CpuSet::parse_list(set.list()).value(), set);
    EXPECT_EQ(CpuSet::parse_mask(set.mask()).value(), set);
    EXPECT_EQ(set.cpus().size(), set.count());
    for (const uint32_t cpu : set.cpus()) EXPECT_TRUE(set.contains(cpu));
  }
}

TEST(CpuSet, ContainsAndIntersectsAreThoseOfSets) {
  const CpuSet some = CpuSet::parse_list("0-70").value();
  const CpuSet part = CpuSet::parse_list("64-66").value();
  const CpuSet other = CpuSet::parse_list("66-200").value();
  EXPECT_TRUE(some.contains(part));
  EXPECT_FALSE(part.contains(some));
  EXPECT_TRUE(some.contains(CpuSet()));
  EXPECT_TRUE(some.intersects(other));
  EXPECT_FALSE(CpuSet::parse_list("1").value().intersects(other));
  CpuSet sum = part;
  sum.add(other);
  EXPECT_EQ(sum.list(), "64-200");
}

}  // namespace
}  // namespace weir::topo
