// SPDX-License-Identifier: Apache-2.0
#include "core/topo/print.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <pugixml.hpp>
#include <sstream>

#include "core/topo/cluster.h"
#include "core/topo/svg.h"
#include "unit/topo/topo_support.h"

namespace weir::topo {
namespace {

bool has_line(const std::string& text, const std::string& wanted) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line == wanted) return true;
  }
  return false;
}

TEST(Tree, ShowsOneLineAPartAndFoldsCores) {
  const std::string tree = print_tree(fixture("dgx2.hwloc.xml"));
  EXPECT_TRUE(has_line(tree, "│     ├─ 2 cores: L3 33 MiB per 2 CPUs, L2 2 × 1 MiB, L1 2 × 32 KiB"))
      << tree;
  EXPECT_TRUE(has_line(
      tree,
      "│     │     │  ├─ GPU0  0000:34:00.0  Tesla V100-SXM3-32GB-H  15.8 GB/s (8 GT/s ×16)"));
  EXPECT_TRUE(has_line(tree,
                       "  GPU0   1 × NVLink, 25.0 GB/s to each of NVS0 NVS1 NVS2 NVS3 NVS4 NVS5  "
                       "(150 GB/s together)"));
  const std::string all = print_tree(fixture("dgx2.hwloc.xml"), {.every_port = true});
  EXPECT_NE(all.find("PCIe root port  0000:2b:00.0"), std::string::npos);
  EXPECT_NE(all.find("L2 cache 1 MiB  CPUs 24"), std::string::npos);
}

TEST(Matrix, IsTheTableThatGpuUsersKnow) {
  const std::string matrix = print_matrix(fixture("rccl-8p-rome-n4.nccl.xml"));
  EXPECT_TRUE(has_line(
      matrix,
      "      GPU0  GPU1  GPU2  GPU3  GPU4  GPU5  GPU6  GPU7  NIC0  CPU Affinity  NUMA Affinity"));
  EXPECT_TRUE(has_line(
      matrix, "GPU2  XG1   PHB    X    SYS   SYS   XG1   SYS   SYS   SYS   32-47         2"));
  EXPECT_TRUE(has_line(matrix, "  XG#  = # xGMI links, directly"));
  EXPECT_TRUE(has_line(matrix, "  NIC0: mlx5_0  0000:e1:00.0  200 Gbit/s"));
  EXPECT_EQ(matrix.find("NODE"), std::string::npos) << "the legend has only what the table uses";
}

TEST(Matrix, BandwidthMarksEstimates) {
  const std::string matrix =
      print_matrix(fixture("azure-ndv4-topo.nccl.xml"), MatrixContent::kBandwidth);
  EXPECT_NE(matrix.find("GPU0    X    31.5   ~31.5"), std::string::npos) << matrix;
}

TEST(Json, IsValidAndComplete) {
  for (const char* name : kFixtures) {
    const Topology topology = fixture(name);
    const nlohmann::json json = nlohmann::json::parse(to_json(topology));
    EXPECT_EQ(json["format"], "weir-topology");
    EXPECT_EQ(json["nodes"].size(), topology.node_count());
    EXPECT_EQ(json["links"].size(), topology.links().size());
    const size_t count = topology.count(NodeKind::kGpu) + topology.count(NodeKind::kNic);
    EXPECT_EQ(json["paths"].size(), count * (count - 1) / 2);
    EXPECT_EQ(json["notes"].size(), topology.notes().size());
  }
  const nlohmann::json dgx2 = nlohmann::json::parse(to_json(fixture("dgx2.hwloc.xml")));
  EXPECT_EQ(dgx2["paths"][0]["label"], "NVS6");
  EXPECT_DOUBLE_EQ(dgx2["paths"][0]["bandwidth_gbs"], 150.0);
}

TEST(Json, SaysWhyPathsAreLeftOut) {
  std::vector<Topology> machines;
  while (machines.size() < 40) machines.push_back(fixture("dgx2.hwloc.xml"));
  const auto cluster = join(machines);
  ASSERT_TRUE(cluster.ok()) << cluster.status().text();
  const nlohmann::json json = nlohmann::json::parse(to_json(cluster.value()));
  EXPECT_TRUE(json["paths"].empty());
  EXPECT_NE(json["notes"].dump().find("more than the 512 whose paths are listed"),
            std::string::npos)
      << json["notes"];
}

TEST(Json, BytesThatAreNoTextDoNotStopIt) {
  Topology topology = fixture("azure-ncv4-topo.nccl.xml");
  topology.mutable_node(0).name = "\xff\xfe\x01";
  EXPECT_TRUE(nlohmann::json::accept(to_json(topology)));
}

// A picture is well-formed and everything in it is inside.
void expect_good_picture(const Topology& topology) {
  const std::string svg = to_svg(topology);
  pugi::xml_document document;
  ASSERT_TRUE(document.load_string(svg.c_str()));
  const pugi::xml_node root = document.document_element();
  const double width = root.attribute("width").as_double();
  const double height = root.attribute("height").as_double();
  size_t gpus = 0;
  for (const pugi::xml_node node : root.children()) {
    if (std::string(node.name()) == "rect" && node.attribute("x")) {
      EXPECT_GE(node.attribute("x").as_double(), 0);
      EXPECT_LE(node.attribute("x").as_double() + node.attribute("width").as_double(), width);
      EXPECT_LE(node.attribute("y").as_double() + node.attribute("height").as_double(), height);
    }
    if (std::string(node.name()) == "text") {
      EXPECT_LE(node.attribute("y").as_double(), height);
      if (std::string(node.child_value()).starts_with("GPU")) ++gpus;
    }
  }
  EXPECT_EQ(gpus, topology.count(NodeKind::kGpu));
}

TEST(Svg, IsWellFormedShowsEveryGpuAndFitsItsFrame) {
  for (const char* name : kFixtures) {
    SCOPED_TRACE(name);
    expect_good_picture(fixture(name));
  }
  const Topology parts[] = {fixture(kFixtures[0]), fixture(kFixtures[3])};
  expect_good_picture(join(parts).value());
}

TEST(Svg, NamesCannotBreakOut) {
  Topology topology = fixture("azure-ncv4-topo.nccl.xml");
  topology.mutable_node(0).name = "</text><script>alert(1)</script>\x01";
  expect_good_picture(topology);
  EXPECT_EQ(to_svg(topology).find("<script"), std::string::npos);
}

TEST(Print, AMachineOfThousandsOfLinksIsAnsweredInTime) {
  // 300 GPUs, each with links to 70 others: nothing that a user has, but a file can say it.
  std::string text = "<system><cpu numaid=\"0\">";
  for (int i = 0; i < 300; ++i) {
    text += fmt::format("<pci busid=\"{:04x}:00:00.0\" class=\"0x030200\"><gpu dev=\"{}\">", i, i);
    for (int j = 0; j < 70; ++j) {
      text += fmt::format("<nvlink target=\"{:04x}:00:00.0\" tclass=\"0x030200\"/>", j);
    }
    text += "</gpu></pci>";
  }
  const Topology topology = from_nccl(text + "</cpu></system>");
  EXPECT_EQ(topology.links().size(), 70u * 69 / 2 + 70 * 230);
  expect_good_picture(topology);
  EXPECT_NE(to_svg(topology).find("too many to draw"), std::string::npos);
  EXPECT_NE(print_matrix(topology).find("too many for a table"), std::string::npos);
  EXPECT_TRUE(nlohmann::json::accept(to_json(topology)));
}

TEST(Print, AnEmptyTopologyIsNoCrash) {
  EXPECT_EQ(print_tree(Topology()), "(empty)\n");
  EXPECT_FALSE(to_svg(Topology()).empty());
  EXPECT_FALSE(Topology().find("GPU0").ok());
}

TEST(Print, AnUnknownDeviceIsAnErrorThatListsWhatThereIs) {
  const Result<NodeId> none = fixture("azure-ndv4-topo.nccl.xml").find("GPU9");
  ASSERT_FALSE(none.ok());
  EXPECT_TRUE(none.status().text().starts_with(
      "no device \"GPU9\"; there are GPU0, GPU1, GPU2, GPU3, … GPU7, NIC0"))
      << none.status().text();
}

TEST(Print, SizesAreReadable) {
  EXPECT_EQ(bytes_text(810234351616), "755 GiB");
  EXPECT_EQ(bytes_text(32768), "32 KiB");
  EXPECT_EQ(bytes_text(1572864), "1.5 MiB");
  EXPECT_EQ(bytes_text(17), "17 B");
}

}  // namespace
}  // namespace weir::topo
