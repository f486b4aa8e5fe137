// SPDX-License-Identifier: Apache-2.0
// NVML through a stand-in for NVIDIA's library, and what happens without one.
#include "core/topo/nvml.h"

#include <stdlib.h>

#include "unit/topo/topo_support.h"

namespace weir::topo {
namespace {

// GPU 2 of the stand-in is known from PCI, the others are not (a container).
Topology machine() {
  return from_nccl(R"(<system version="1"><cpu numaid="0" affinity="f">
<pci busid="0000:21:00.0" class="0x030200" link_speed="8 GT/s" link_width="16"/></cpu></system>)");
}

TEST(Nvml, AddsModelsNumbersMemoryAndMissingGpus) {
  Topology topology = machine();
  ASSERT_TRUE(enrich_from_nvml(WEIR_FAKE_NVML, &topology).ok());
  EXPECT_TRUE(topology.notes().empty());
  ASSERT_EQ(topology.count(NodeKind::kGpu), 4u);
  const Node& gpu = topology.node(find(topology, "0000:21:00.0"));
  EXPECT_EQ(gpu.gpu->index, 2u);
  EXPECT_EQ(gpu.name, "NVIDIA A100-SXM4-80GB");
  EXPECT_EQ(gpu.gpu->uuid, "GPU-0000-2");
  EXPECT_EQ(gpu.gpu->memory_bytes, 80ull << 30);
  EXPECT_EQ(gpu.gpu->compute_capability, 80);
  EXPECT_NEAR(gpu.up.bandwidth_gbs, 15.754, 1e-3) << "what was stated before stays";
  EXPECT_NEAR(topology.node(find(topology, "GPU0")).up.bandwidth_gbs, 31.508, 1e-3);
}

TEST(Nvml, DirectLinksAndSwitchesAreFound) {
  Topology topology = machine();
  ASSERT_TRUE(enrich_from_nvml(WEIR_FAKE_NVML, &topology).ok());
  const Path direct = path(topology, "GPU0", "GPU1");
  EXPECT_EQ(direct.label(), "NV4");
  EXPECT_NEAR(direct.bandwidth_gbs, 4 * 25.781, 1e-9);
  EXPECT_FALSE(direct.estimated);
  EXPECT_EQ(topology.count(NodeKind::kNvSwitch), 1u);
  EXPECT_EQ(label(topology, "GPU2", "GPU3"), "NVS3");
  EXPECT_NEAR(path(topology, "GPU2", "GPU3").bandwidth_gbs, 3 * 25.781, 1e-9);
}

TEST(Nvml, LinksThatAreKnownAlreadyAreNotCountedTwice) {
  Topology topology = machine();
  ASSERT_TRUE(enrich_from_nvml(WEIR_FAKE_NVML, &topology).ok());
  const uint64_t hash = topology.hash();
  ASSERT_TRUE(enrich_from_nvml(WEIR_FAKE_NVML, &topology).ok());
  EXPECT_EQ(topology.hash(), hash);
  EXPECT_EQ(label(topology, "GPU0", "GPU1"), "NV4");
}

TEST(Nvml, WithoutTheLibraryANoteSaysWhy) {
  Topology topology = machine();
  ASSERT_TRUE(enrich_from_nvml("libno-such-nvml.so.1", &topology).ok());
  EXPECT_EQ(topology.count(NodeKind::kGpu), 1u);
  ASSERT_EQ(topology.notes().size(), 1u);
  EXPECT_EQ(topology.notes()[0].where, "nvml");
  EXPECT_NE(topology.notes()[0].text.find("libno-such-nvml.so.1"), std::string::npos);
}

TEST(Nvml, ALibraryThatIsAnotherIsANote) {
  Topology topology = machine();
  ASSERT_TRUE(enrich_from_nvml("libm.so.6", &topology).ok());
  ASSERT_EQ(topology.notes().size(), 1u);
  EXPECT_NE(topology.notes()[0].text.find("lacks functions"), std::string::npos);
}

TEST(Nvml, ADriverThatFailsIsANoteWithItsWords) {
  Topology topology = machine();
  setenv("WEIR_FAKE_NVML_FAULT", "init", 1);
  const Status status = enrich_from_nvml(WEIR_FAKE_NVML, &topology);
  unsetenv("WEIR_FAKE_NVML_FAULT");
  ASSERT_TRUE(status.ok());
  ASSERT_EQ(topology.notes().size(), 1u);
  EXPECT_NE(topology.notes()[0].text.find("Driver Not Loaded"), std::string::npos);
}

}  // namespace
}  // namespace weir::topo
