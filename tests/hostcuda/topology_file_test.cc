// SPDX-License-Identifier: Apache-2.0
// The devices are where WEIR_TOPOLOGY_FILE has GPUs. The program runs with switches.nccl.xml and
// WEIR_HOSTCUDA_DEVICES=4.
#include "hostcuda/core/topology_file.h"

#include <fstream>
#include <iterator>
#include <random>
#include <string>

#include "hostcuda/nvml/functions.h"
#include "hostcuda/support.h"

namespace weir::test {
namespace {

class Placed : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(nvmlInit_v2(), NVML_SUCCESS); }
  void TearDown() override { ASSERT_EQ(nvmlShutdown(), NVML_SUCCESS); }

  static nvmlDevice_t device(unsigned index) {
    nvmlDevice_t found = nullptr;
    EXPECT_EQ(nvmlDeviceGetHandleByIndex_v2(index, &found), NVML_SUCCESS);
    return found;
  }
  static int level(unsigned a, unsigned b) {
    int found = -1;
    EXPECT_EQ(nvmlDeviceGetTopologyCommonAncestor(device(a), device(b), &found), NVML_SUCCESS);
    return found;
  }
  static bool linked(unsigned a, unsigned b) {
    constexpr int kNvLink = 2;
    int status = -1;
    EXPECT_EQ(nvmlDeviceGetP2PStatus(device(a), device(b), kNvLink, &status), NVML_SUCCESS);
    return status == 0;
  }
};

TEST_F(Placed, DevicesHaveTheAddressesOfTheFileInItsOrder) {
  const char* const addresses[] = {"0000:12:00.0", "0000:13:00.0", "0000:22:00.0", "0001:40:00.0"};
  for (int i = 0; i < 4; ++i) {
    char text[32];
    ASSERT_CUDA(cudaDeviceGetPCIBusId(text, sizeof text, i));
    EXPECT_STREQ(text, addresses[i]);
    int index = -1;
    ASSERT_CUDA(cudaDeviceGetByPCIBusId(&index, addresses[i]));
    EXPECT_EQ(index, i);
    nvmlPciInfo_t info{};
    ASSERT_EQ(nvmlDeviceGetPciInfo_v3(device(static_cast<unsigned>(i)), &info), NVML_SUCCESS);
    EXPECT_EQ(std::string(info.busId), std::string("0000") + addresses[i]);
    EXPECT_STREQ(info.busIdLegacy, addresses[i]);
    nvmlDevice_t found = nullptr;
    ASSERT_EQ(nvmlDeviceGetHandleByPciBusId_v2(info.busId, &found), NVML_SUCCESS);
    EXPECT_EQ(found, device(static_cast<unsigned>(i)));
  }
  cudaDeviceProp properties{};
  ASSERT_CUDA(cudaGetDeviceProperties(&properties, 3));
  EXPECT_EQ(properties.pciDomainID, 1);
  EXPECT_EQ(properties.pciBusID, 0x40);
  int index = -1;
  EXPECT_CUDA_ERROR(101, cudaDeviceGetByPCIBusId(&index, "0000:01:00.0"));
}

TEST_F(Placed, WhatTwoDevicesShareIsTheFiles) {
  EXPECT_EQ(level(0, 0), 0);
  EXPECT_EQ(level(0, 1), 10);
  EXPECT_EQ(level(0, 2), 20);
  EXPECT_EQ(level(0, 3), 50);
  unsigned long words[2] = {};
  ASSERT_EQ(nvmlDeviceGetCpuAffinity(device(0), 2, words), NVML_SUCCESS);
  EXPECT_EQ(words[0], 0x00ff00ffUL);
  EXPECT_EQ(words[1], 0UL);
  ASSERT_EQ(nvmlDeviceGetCpuAffinity(device(3), 2, words), NVML_SUCCESS);
  EXPECT_EQ(words[0], 0x0000ffff00000000UL);
}

TEST_F(Placed, LinksAreTheFiles) {
  EXPECT_TRUE(linked(1, 3));
  EXPECT_TRUE(linked(3, 1));
  EXPECT_TRUE(linked(0, 2));  // by the switch
  EXPECT_FALSE(linked(0, 1));
  EXPECT_FALSE(linked(0, 3));
  for (unsigned link = 0; link < 18; ++link) {
    int active = -1;
    ASSERT_EQ(nvmlDeviceGetNvLinkState(device(1), link, &active), NVML_SUCCESS);
    EXPECT_EQ(active, link < 2 ? 1 : 0);
    ASSERT_EQ(nvmlDeviceGetNvLinkState(device(0), link, &active), NVML_SUCCESS);
    EXPECT_EQ(active, link < 4 ? 1 : 0);
  }
  int active = -1;
  EXPECT_EQ(nvmlDeviceGetNvLinkState(device(1), 18, &active), NVML_ERROR_INVALID_ARGUMENT);
  nvmlPciInfo_t remote{};
  ASSERT_EQ(nvmlDeviceGetNvLinkRemotePciInfo_v2(device(1), 1, &remote), NVML_SUCCESS);
  EXPECT_STREQ(remote.busId, "00000001:40:00.0");
  EXPECT_EQ(nvmlDeviceGetNvLinkRemotePciInfo_v2(device(1), 2, &remote), NVML_ERROR_NOT_SUPPORTED);
  int type = -1;
  ASSERT_EQ(nvmlDeviceGetNvLinkRemoteDeviceType(device(1), 0, &type), NVML_SUCCESS);
  EXPECT_EQ(type, 0);
  ASSERT_EQ(nvmlDeviceGetNvLinkRemoteDeviceType(device(0), 3, &type), NVML_SUCCESS);
  EXPECT_EQ(type, 2);
  unsigned can = 0;
  ASSERT_EQ(nvmlDeviceGetNvLinkCapability(device(1), 0, 0, &can), NVML_SUCCESS);
  EXPECT_EQ(can, 1U);
}

TEST(TopologyFile, GpusWithoutNumbersAreInTheOrderOfTheirAddresses) {
  const auto gpus = hostcuda::read_topology(
      R"(<system><cpu affinity="f"><pci busid="0000:09:00.0" class="0x030200"/>
         <pci busid="0000:02:00.0" class="0x030200"></pci><pci busid="x" class="0x030200"/>
         <pci busid="0000:05:00.0" class="0x020000"/></cpu></system>)");
  ASSERT_EQ(gpus.size(), 2U);
  EXPECT_EQ(gpus[0].address.bus, 2U);
  EXPECT_EQ(gpus[1].address.bus, 9U);
  EXPECT_EQ(gpus[0].affinity, "f");
  EXPECT_EQ(gpus[0].above.size(), 2U);
}

TEST(TopologyFile, AnyTextIsReadToItsEnd) {
  EXPECT_TRUE(hostcuda::read_topology("").empty());
  EXPECT_TRUE(hostcuda::read_topology("<").empty());
  EXPECT_TRUE(hostcuda::read_topology("<pci busid=").empty());
  EXPECT_TRUE(hostcuda::read_topology("<!-- <pci busid='0:1:0' class='0x0302'/>").empty());
  EXPECT_TRUE(hostcuda::read_topology("</pci></pci><nvlink count='1'/><gpu/>").empty());
  EXPECT_TRUE(hostcuda::read_topology("<a =\"\" ==/>").empty());
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += "<pci busid='0:1:0' class='0x0302'>";
  EXPECT_TRUE(hostcuda::read_topology(deep).empty());
  // Bytes of the real file changed at random: nothing but that it ends is expected.
  std::ifstream file(WEIR_TEST_SWITCHES);
  const std::string good((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  ASSERT_EQ(hostcuda::read_topology(good).size(), 4U);
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    std::string text = good;
    for (int i = 0; i < 5; ++i) text[random() % text.size()] = "<>/='\" !-x"[random() % 10];
    EXPECT_LE(hostcuda::read_topology(text.substr(0, random() % text.size())).size(), 8U);
  }
}

}  // namespace
}  // namespace weir::test
