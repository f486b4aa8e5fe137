// SPDX-License-Identifier: Apache-2.0
// Files for NCCL that are wrong, each with the line and the reason that the user is told.
#include <fmt/format.h>

#include "unit/topo/topo_support.h"

namespace weir::topo {
namespace {

struct Case {
  const char* name;
  std::string text;
  std::string error;  // begins the text of the Status
};

std::string pci(const std::string& attributes, const std::string& inside = "") {
  return "<system version=\"1\">\n<cpu numaid=\"0\" affinity=\"f\">\n<pci " + attributes + ">\n" +
         inside + "\n</pci>\n</cpu>\n</system>\n";
}

const std::string kGpu = "busid=\"0000:01:00.0\" class=\"0x030200\"";

std::vector<Case> cases() {
  std::string deep = "<system><cpu numaid=\"0\">\n";
  for (int i = 0; i < 200; ++i) {
    deep += fmt::format("<pci busid=\"{:04x}:00:00.0\" class=\"0x060400\">\n", i);
  }
  std::string many = "<system>\n";
  for (int i = 0; i < 120'000; ++i) many += "<cpu/>";
  return {
      {"Empty", "", "f.xml: the file is empty"},
      {"NoXml", "hello", "f.xml:1: there is no XML element"},
      {"Binary", std::string("<system>\0</system>", 18), "f.xml: a binary file, not XML"},
      {"CutOff", "<system version=\"1\">\n<cpu numaid=\"0\">\n<pci", "f.xml:3: "},
      {"NotClosed", "<system version=\"1\">\n<cpu numaid=\"0\">\n",
       "f.xml:2: the file ends before all elements are closed"},
      {"WrongNesting", "<system>\n<cpu numaid=\"0\">\n</system>\n</cpu>\n",
       "f.xml:3: an end tag does not match its start tag"},
      {"WrongRoot", "\n\n<topology/>", "f.xml:3: the root element is <topology>"},
      {"TwoRoots", "<system/>\n<system/>", "f.xml:2: a second root element <system>"},
      {"Quotes", "<system>\n<cpu numaid=0/>\n</system>",
       "f.xml:2: Error parsing element attribute"},
      {"AttributeTwice", "<system>\n<cpu numaid=\"0\" numaid=\"1\"/></system>",
       "f.xml:2: <cpu> has the attribute numaid twice"},
      {"NoNumaId", "<system>\n\n<cpu affinity=\"f\"/></system>", "f.xml:3: <cpu> has no numaid"},
      {"NumaIdTwice", "<system>\n<cpu numaid=\"0\"/>\n<cpu numaid=\"0\"/></system>",
       "f.xml:3: a second <cpu> with numaid 0; the first is on line 2"},
      {"SeveralMachines",
       "<system>\n<cpu numaid=\"0\" host_hash=\"0x1\"/>\n<cpu numaid=\"0\" host_hash=\"0x2\"/>"
       "</system>",
       "f.xml:3: host_hash=\"0x2\": the <cpu> on line 2 is of another machine; give a file of one"},
      {"NumaIdNoNumber", "<system>\n<cpu numaid=\"zero\"/></system>",
       "f.xml:2: numaid=\"zero\" of <cpu> is not a whole number"},
      {"NumaIdHuge", "<system>\n<cpu numaid=\"99999999999999999999999\"/></system>",
       "f.xml:2: numaid=\"99999999999999999999999\" of <cpu> is not between -1 and 65535"},
      {"Affinity", "<system>\n<cpu numaid=\"0\" affinity=\"xyz\"/></system>",
       "f.xml:2: affinity: \"xyz\" is not a processor mask"},
      {"AffinityHuge",
       "<system>\n<cpu numaid=\"0\" affinity=\"" + std::string(5000, ',') + "\"/></system>",
       "f.xml:2: affinity: processor mask has more than 65536 bits"},
      {"NoBusId", pci("class=\"0x030200\""), "f.xml:3: <pci> has no busid"},
      {"BusIdForm", pci("busid=\"0000:zz:00.0\" class=\"0x030200\""),
       "f.xml:3: busid=\"0000:zz:00.0\" is not a PCI address"},
      {"BusIdTwice", pci(kGpu, "<pci " + kGpu + "/>"),
       "f.xml:4: busid 0000:01:00.0 is used twice; the first is on line 3"},
      {"BusIdTwiceSpelledDifferently", pci(kGpu, "<pci busid=\"01:00.0\" class=\"0x030200\"/>"),
       "f.xml:4: busid 0000:01:00.0 is used twice"},
      {"ClassRange", pci("busid=\"0000:01:00.0\" class=\"0x1ffffff\""),
       "f.xml:3: class=\"0x1ffffff\" of <pci> is not between 0 and 16777215"},
      {"ClassNoNumber", pci("busid=\"0000:01:00.0\" class=\"gpu\""),
       "f.xml:3: class=\"gpu\" of <pci> is not a whole number"},
      {"Width", pci(kGpu + " link_width=\"-4\""),
       "f.xml:3: link_width=\"-4\" of <pci> is not between 0 and 255"},
      {"TwoGpus", pci(kGpu, "<gpu dev=\"0\"/>\n<gpu dev=\"1\"/>"),
       "f.xml:5: a second <gpu> in a <pci>"},
      {"GpuAndNic", pci(kGpu, "<gpu dev=\"0\"/><nic/>"),
       "f.xml:4: a <pci> holds either a <gpu> or a <nic>"},
      {"Dev", pci(kGpu, "<gpu dev=\"first\"/>"),
       "f.xml:4: dev=\"first\" of <gpu> is not a whole number"},
      {"LinkCount",
       pci(kGpu, "<gpu dev=\"0\"><nvlink target=\"0000:02:00.0\" count=\"1e9\"/></gpu>"),
       "f.xml:4: count=\"1e9\" of <nvlink> is not a whole number"},
      {"NetSpeed",
       pci("busid=\"0000:01:00.0\" class=\"0x020000\"", "<nic><net speed=\"fast\"/></nic>"),
       "f.xml:4: speed=\"fast\" of <net> is not a number"},
      {"NetSpeedInfinite",
       pci("busid=\"0000:01:00.0\" class=\"0x020000\"", "<nic><net speed=\"1e999\"/></nic>"),
       "f.xml:4: speed=\"1e999\" of <net> is not between"},
      {"NetLatencyNan",
       pci("busid=\"0000:01:00.0\" class=\"0x020000\"", "<nic><net latency=\"nan\"/></nic>"),
       "f.xml:4: latency=\"nan\" of <net> is not a number"},
      {"Deep", deep, "f.xml:201: "},
      {"ManyElements", many + "</system>", "f.xml: more than 50000 elements"},
      {"Large", std::string((8u << 20) + 1, ' '), "f.xml: 8388609 bytes are more than the limit"},
  };
}

TEST(NcclMalformed, EveryFaultIsAnErrorWithLineAndReason) {
  for (const Case& one : cases()) {
    const Result<Topology> topology = parse_nccl_xml(one.text, "f.xml");
    ASSERT_FALSE(topology.ok()) << one.name;
    EXPECT_EQ(topology.status().code(), Code::kInvalidArgument) << one.name;
    EXPECT_TRUE(topology.status().text().starts_with(one.error))
        << one.name << "\n  is:     " << topology.status().text() << "\n  wanted: " << one.error;
  }
}

TEST(NcclMalformed, NestingDeeperThanTheLimitIsRefused) {
  std::string text = "<system><cpu numaid=\"0\">\n";
  std::string end;
  for (int i = 0; i < 70; ++i) {
    text += fmt::format("<pci busid=\"{:04x}:00:00.0\" class=\"0x060400\">\n", i);
    end += "</pci>";
  }
  const Result<Topology> topology = parse_nccl_xml(text + end + "</cpu></system>", "f.xml");
  ASSERT_FALSE(topology.ok());
  EXPECT_EQ(topology.status().text(), "f.xml:64: elements are nested more than 64 deep");
}

TEST(NcclMalformed, CuttingAFixtureAnywhereIsAnErrorThatNamesTheFile) {
  const std::string whole = text_of(fixture_path("rccl-8p-rome-n4.nccl.xml"));
  const size_t last = whole.rfind("</system>");
  for (size_t length = 0; length < last; length += 7) {
    const Result<Topology> topology = parse_nccl_xml(whole.substr(0, length), "cut.xml");
    ASSERT_FALSE(topology.ok()) << length;
    EXPECT_TRUE(topology.status().text().starts_with("cut.xml:")) << topology.status().text();
  }
}

struct NoteCase {
  std::string text;
  std::string where;
  std::string part;
};

TEST(NcclNotes, WhatIsNotKnownIsReportedByLineAndTheRestIsRead) {
  const NoteCase cases[] = {
      {"<system version=\"7\"/>", "f.xml:1", "version 7 of the format is not known"},
      {"<system>\n<gadget/></system>", "f.xml:2", "<gadget> in <system> is not known"},
      {"<system color=\"red\"/>", "f.xml:1", "attribute color of <system> is not known"},
      {pci(kGpu, "<gpu dev=\"0\"><warp/></gpu>"), "f.xml:4", "<warp> in <gpu> is not known"},
      {pci(kGpu + " link_speed=\"ludicrous\""), "f.xml:3", "is not a PCIe speed"},
      {pci(kGpu + " link_speed=\"16 GT/s\" link_width=\"13\""), "f.xml:3", "is not a PCIe width"},
      {pci("busid=\"0000:01:00.0\"", "<gpu dev=\"0\"/>"), "f.xml:3", "has no class"},
      {pci(kGpu, "<pcilink target=\"0000:02:00.0\"/>"), "f.xml:4", "<pcilink> is known"},
      {pci(kGpu,
           "<gpu dev=\"0\"><nvlink target=\"0000:77:00.0\" count=\"1\" "
           "tclass=\"0x030200\"/></gpu>"),
       "f.xml:4", "is not a device of this file"},
      {pci(kGpu, "<gpu dev=\"0\"><nvlink target=\"0000:01:00.0\" count=\"1\"/></gpu>"), "f.xml:4",
       "has itself as its target"},
  };
  for (const NoteCase& one : cases) {
    const Result<Topology> topology = parse_nccl_xml(one.text, "f.xml");
    ASSERT_TRUE(topology.ok()) << topology.status().text();
    ASSERT_EQ(topology.value().notes().size(), 1u) << one.part;
    EXPECT_EQ(topology.value().notes()[0].where, one.where) << one.part;
    EXPECT_NE(topology.value().notes()[0].text.find(one.part), std::string::npos)
        << topology.value().notes()[0].text;
  }
}

TEST(NcclMalformed, AMissingFileOrADirectoryIsAnErrorWithItsPath) {
  const Result<Topology> missing = read_file("/nonexistent/topo.xml");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.status().code(), Code::kSystem);
  EXPECT_NE(missing.status().text().find("/nonexistent/topo.xml"), std::string::npos);
  const TemporaryFolder folder;
  const Result<Topology> directory = read_file(folder.path());
  ASSERT_FALSE(directory.ok());
  EXPECT_NE(directory.status().text().find("a directory"), std::string::npos);
}

TEST(NcclMalformed, AFileOfAnotherKindIsNamed) {
  const Result<TopologyFormat> html = detect_format("<!-- x --><?p?>\n<html/>", "f.html");
  ASSERT_FALSE(html.ok());
  EXPECT_NE(html.status().text().find("f.html: starts with <html>"), std::string::npos);
  EXPECT_FALSE(detect_format("no xml here", "f").ok());
  EXPECT_FALSE(detect_format("<!-- never closed", "f").ok());
  EXPECT_EQ(detect_format("<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n<topology>", "f").value(),
            TopologyFormat::kHwloc);
  EXPECT_EQ(detect_format("<system/>", "f").value(), TopologyFormat::kNccl);
}

}  // namespace
}  // namespace weir::topo
