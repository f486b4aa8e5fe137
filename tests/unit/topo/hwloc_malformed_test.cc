// SPDX-License-Identifier: Apache-2.0
// hwloc files that are wrong, each with the line and the reason that the user is told.
#include "core/topo/hwloc_xml.h"
#include "unit/topo/topo_support.h"

namespace weir::topo {
namespace {

std::string machine(const std::string& inside, const std::string& after = "") {
  return "<topology version=\"2.0\">\n<object type=\"Machine\" cpuset=\"0x3\">\n" + inside +
         "\n</object>\n" + after + "\n</topology>\n";
}

std::string device(const std::string& busid, const std::string& gp) {
  return "<object type=\"PCIDev\" gp_index=\"" + gp + "\" pci_busid=\"" + busid +
         "\" pci_type=\"0302 [10de:1db8] [10de:131d] a1\"/>";
}

std::string matrix(const std::string& attributes, const std::string& indexes,
                   const std::string& values) {
  return "<distances2hetero " + attributes + " name=\"NVLinkBandwidth\">\n<indexes>" + indexes +
         "</indexes>\n<u64values>" + values + "</u64values>\n</distances2hetero>";
}

TEST(HwlocMalformed, EveryFaultIsAnErrorWithLineAndReason) {
  const std::string two = device("0000:01:00.0", "7") + device("0000:02:00.0", "8");
  const std::pair<std::string, std::string> cases[] = {
      {"", "f.xml: the file is empty"},
      {"<system/>", "f.xml:1: the root element is <system>"},
      {"<topology>\n</topology>", "f.xml:1: version \"1\" of hwloc's format is not read"},
      {"<topology version=\"4.0\"/>", "f.xml:1: version \"4.0\""},
      {"<topology version=\"2.0\"/>", "f.xml:1: the first <object> is not of type Machine"},
      {"<topology version=\"2.0\"><object type=\"Core\"/></topology>",
       "f.xml:1: the first <object> is not of type Machine"},
      {machine("<object type=\"Machine\"/>"), "f.xml:3: a Machine inside another object"},
      {machine("", "<object type=\"Machine\"/>"), "f.xml:5: a second root object"},
      {machine("<object type=\"NUMANode\"/>"), "f.xml:3: a NUMANode needs an os_index"},
      {machine("<object type=\"Core\" cpuset=\"0xzz\"/>"), "f.xml:3: cpuset: \"0xzz\" is no"},
      {machine("<object type=\"Core\" os_index=\"-1\"/>"),
       "f.xml:3: os_index=\"-1\" of <object> is not"},
      {machine("<object type=\"L3Cache\" cache_size=\"big\"/>"), "f.xml:3: cache_size=\"big\""},
      {machine("<object type=\"L3Cache\" cache_type=\"9\"/>"), "f.xml:3: cache_type=\"9\""},
      {machine("<object type=\"PCIDev\"/>"), "f.xml:3: pci_busid=\"\" is not a PCI address"},
      {machine(device("0000:01:00.0", "1") + "\n" + device("0000:01:00.0", "2")),
       "f.xml:4: pci_busid 0000:01:00.0 is used twice; the first is on line 3"},
      {machine("<object type=\"PCIDev\" pci_busid=\"0000:01:00.0\" pci_type=\"0302\"/>"),
       "f.xml:3: pci_type=\"0302\" is not of the form"},
      {machine("<object type=\"PCIDev\" pci_busid=\"0000:01:00.0\" pci_link_speed=\"-3\"/>"),
       "f.xml:3: pci_link_speed=\"-3\" of <object> is not between"},
      {machine(
           "<object type=\"NUMANode\" os_index=\"0\"/><object type=\"NUMANode\" os_index=\"0\"/>"),
       "f.xml:1: two NUMA nodes have the number 0"},
      {machine(two, matrix("", "PCIDev:7 PCIDev:8", "0 1 1 0")),
       "f.xml:5: matrix NVLinkBandwidth has no"},
      {machine(two, matrix("nbobjs=\"2\"", "PCIDev:7", "0 1 1 0")),
       "f.xml:5: matrix NVLinkBandwidth of 2 objects has 1 indexes and 4 values instead of 2 and "
       "4"},
      {machine(two, matrix("nbobjs=\"2\"", "PCIDev:7 PCIDev:8", "0 1 1")), "f.xml:5: matrix"},
      {machine(two, matrix("nbobjs=\"2\"", "PCIDev:7 PCIDev:8", "0 1 1 0 5")),
       "f.xml:7: more than 4 numbers in <u64values>"},
      {machine(two, matrix("nbobjs=\"2\"", "PCIDev:7 PCIDev:x", "0 1 1 0")),
       "f.xml:6: \"x\" in <indexes> is not a number"},
      {machine(two, matrix("nbobjs=\"2\"", "PCIDev:7 PCIDev:8", "0 9999999999999 0 0")),
       "f.xml:5: matrix NVLinkBandwidth: 9999999999999 MB/s is not a valid bandwidth"},
      {machine(two, matrix("nbobjs=\"100000\"", "", "")), "f.xml:5: nbobjs=\"100000\""},
  };
  for (const auto& [text, error] : cases) {
    const Result<Topology> topology = parse_hwloc_xml(text, "f.xml");
    ASSERT_FALSE(topology.ok()) << error;
    EXPECT_TRUE(topology.status().text().starts_with(error))
        << "  is:     " << topology.status().text() << "\n  wanted: " << error;
  }
}

TEST(HwlocNotes, WhatIsNotKnownIsReportedAndTheRestIsRead) {
  const Result<Topology> topology =
      parse_hwloc_xml(machine("<object type=\"Flux\"/>\n" + device("0000:01:00.0", "7"),
                              matrix("nbobjs=\"2\"", "PCIDev:7 PCIDev:99", "0 25000 25000 0")),
                      "f.xml");
  ASSERT_TRUE(topology.ok()) << topology.status().text();
  ASSERT_EQ(topology.value().notes().size(), 2u);
  EXPECT_EQ(topology.value().notes()[0].where, "f.xml:3");
  EXPECT_NE(topology.value().notes()[0].text.find("\"Flux\""), std::string::npos);
  EXPECT_NE(topology.value().notes()[1].text.find("object 99 is not a device"), std::string::npos);
  EXPECT_EQ(topology.value().count(NodeKind::kGpu), 1u);
}

TEST(HwlocXml, LinksBetweenGpusComeFromTheMatrixWithTheirCount) {
  const Result<Topology> topology =
      parse_hwloc_xml(machine(device("0000:01:00.0", "7") + device("0000:02:00.0", "8"),
                              matrix("nbobjs=\"2\"", "PCIDev:7 PCIDev:8", "0 100000 100000 0")),
                      "f.xml");
  ASSERT_TRUE(topology.ok()) << topology.status().text();
  EXPECT_EQ(label(topology.value(), "GPU0", "GPU1"), "NV4");
  EXPECT_DOUBLE_EQ(path(topology.value(), "GPU0", "GPU1").bandwidth_gbs, 100);
}

TEST(HwlocXml, ADisplayThatOnlyAServiceProcessorDrawsOnIsNoGpu) {
  const std::string vga =
      "<object type=\"PCIDev\" pci_busid=\"0000:01:00.0\" pci_type=\"0300 [1a03:2000] [1a03:2000] "
      "41\">"
      "<object type=\"OSDev\" name=\"card0\" osdev_type=\"1\"/></object>";
  const Result<Topology> topology = parse_hwloc_xml(machine(vga), "f.xml");
  ASSERT_TRUE(topology.ok());
  EXPECT_EQ(topology.value().count(NodeKind::kGpu), 0u);
  EXPECT_EQ(topology.value().count(NodeKind::kPciDevice), 1u);
}

TEST(HwlocXml, TheVerbsAndTheKernelNameOfOneAdapterAreOneNic) {
  const std::string nic =
      "<object type=\"PCIDev\" pci_busid=\"0000:01:00.0\" pci_type=\"0207 [15b3:101b] [15b3:0007] "
      "00\">"
      "<object type=\"OSDev\" name=\"ib0\" osdev_type=\"2\"/>"
      "<object type=\"OSDev\" name=\"mlx5_0\" osdev_type=\"3\"/></object>";
  const Result<Topology> topology = parse_hwloc_xml(machine(nic), "f.xml");
  ASSERT_TRUE(topology.ok());
  EXPECT_EQ(topology.value().count(NodeKind::kNic), 1u);
  EXPECT_EQ(find(topology.value(), "ib0"), find(topology.value(), "mlx5_0"));
}

TEST(HwlocXml, MemoryOfTwoKindsOnOnePackageMakesTwoNumaNodes) {
  const Result<Topology> topology =
      parse_hwloc_xml(machine("<object type=\"Package\" os_index=\"0\" cpuset=\"0x3\">"
                              "<object type=\"MemCache\"><object type=\"NUMANode\" os_index=\"0\" "
                              "cpuset=\"0x3\"/></object>"
                              "<object type=\"NUMANode\" os_index=\"1\" cpuset=\"0x3\"/>"
                              "<object type=\"Core\" os_index=\"0\" cpuset=\"0x3\"/></object>"),
                      "f.xml");
  ASSERT_TRUE(topology.ok()) << topology.status().text();
  EXPECT_EQ(topology.value().count(NodeKind::kNuma), 2u);
  const NodeId core = topology.value().all(NodeKind::kCore)[0];
  EXPECT_EQ(topology.value().numa_of(core), 0);
}

}  // namespace
}  // namespace weir::topo
