// SPDX-License-Identifier: Apache-2.0
#include "core/topo/pci.h"

#include <gtest/gtest.h>

namespace weir::topo {
namespace {

TEST(PciAddress, ReadsAndWritesItsForms) {
  EXPECT_EQ(PciAddress::parse("0000:3b:00.0")->text(), "0000:3b:00.0");
  EXPECT_EQ(PciAddress::parse("3B:1f.7")->text(), "0000:3b:1f.7");
  EXPECT_EQ(PciAddress::parse("ffff:ff:01.0")->domain, 0xffffu);
  EXPECT_EQ(PciAddress::parse("00010000:e1:00.0")->text(), "10000:e1:00.0");
  for (const char* text : {"", "x", "0000:3b:00", "0000:3b:20.0", "0000:3b:00.8", "0000:3bb:00.0",
                           "0000::00.0", "123456789:00:00.0", "fffffff:ffff:ff", "0000:3b:00.0x"}) {
    EXPECT_FALSE(PciAddress::parse(text).has_value()) << text;
  }
}

TEST(PcieBandwidth, IsThePayloadRateOfTheLineCode) {
  EXPECT_DOUBLE_EQ(pcie_bandwidth_gbs(2.5, 4), 1.0);
  EXPECT_DOUBLE_EQ(pcie_bandwidth_gbs(5, 16), 8.0);
  EXPECT_NEAR(pcie_bandwidth_gbs(8, 16), 15.754, 1e-3);
  EXPECT_NEAR(pcie_bandwidth_gbs(32, 16), 63.015, 1e-3);
  EXPECT_NEAR(pcie_bandwidth_gbs(64, 16), 121.0, 1e-9);
  EXPECT_EQ(pcie_bandwidth_gbs(7, 16), 0);
  EXPECT_EQ(pcie_bandwidth_gbs(8, 3), 0);
  EXPECT_EQ(pcie_bandwidth_gbs(8, 0), 0);
}

TEST(PcieBandwidth, ARateIsFoundForEveryLinkThereIs) {
  for (const double speed : {2.5, 5.0, 8.0, 16.0, 32.0, 64.0}) {
    for (const uint32_t width : {1u, 2u, 4u, 8u, 12u, 16u, 32u}) {
      const double gbs = pcie_bandwidth_gbs(speed, width);
      const PcieRate rate = pcie_rate(gbs);
      EXPECT_NEAR(pcie_bandwidth_gbs(rate.speed_gts, rate.width_lanes), gbs, gbs * 1e-3);
    }
  }
  EXPECT_EQ(pcie_rate(3.3).width_lanes, 0u);
}

TEST(PcieSpeed, ReadsTheTextsOfSysfsAndNccl) {
  EXPECT_DOUBLE_EQ(parse_pcie_speed_gts("16 GT/s"), 16);
  EXPECT_DOUBLE_EQ(parse_pcie_speed_gts("16.0 GT/s PCIe"), 16);
  EXPECT_DOUBLE_EQ(parse_pcie_speed_gts("2.5 GT/s PCIe"), 2.5);
  for (const char* text : {"", "Unknown speed", "16", "16 Gb/s", "17 GT/s", "nan GT/s"}) {
    EXPECT_EQ(parse_pcie_speed_gts(text), 0) << text;
  }
}

}  // namespace
}  // namespace weir::topo
