// SPDX-License-Identifier: Apache-2.0
#include "core/graph/machine_graph.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "core/graph/cut_bound.h"
#include "unit/graph/graph_support.h"

namespace weir::graph {
namespace {

size_t count(const LinkGraph& graph, VertexKind kind) {
  return static_cast<size_t>(std::count_if(graph.vertices().begin(), graph.vertices().end(),
                                           [&](const Vertex& it) { return it.kind == kind; }));
}

TEST(MachineGraph, SwitchesWithTheSameNeighboursAreOne) {
  const auto graph = graph_of_gpus("dgx2.hwloc.xml", 1);
  ASSERT_TRUE(graph.ok()) << graph.status().text();
  EXPECT_EQ(graph.value().rank_count(), 16u);
  EXPECT_EQ(count(graph.value(), VertexKind::kSwitch), 2u) << "one of each board";
  EXPECT_EQ(graph.value().vertices().size(), 18u) << "PCIe carries nothing here";
  // Six NVLinks of 25 GB/s into the switches.
  EXPECT_EQ(cut_bound(graph.value()).bandwidth, 150'000'000);
}

TEST(MachineGraph, LinksOfOneDirectionHaveTwins) {
  for (const char* file : {"dgx2.hwloc.xml", "azure-ndv4-topo.nccl.xml", "azure-ncv4-topo.nccl.xml",
                           "rccl-8p-rome-n4.nccl.xml"}) {
    const auto graph = graph_of_gpus(file, 3);
    ASSERT_TRUE(graph.ok()) << file << ": " << graph.status().text();
    // Of a card, one vertex sends and one receives; their names begin alike.
    std::map<std::tuple<std::string, std::string>, int64_t> bandwidths;
    const auto name = [&](VertexId id) {
      const Vertex& vertex = graph.value().vertices()[id];
      std::string text =
          vertex.name.substr(0, vertex.name.find(vertex.kind == VertexKind::kCard ? " " : "\n"));
      return std::to_string(vertex.host) + " " + text +
             (vertex.kind == VertexKind::kCard ? "" : " " + std::to_string(id));
    };
    for (const Link& link : graph.value().links()) {
      bandwidths[{name(link.from), name(link.to)}] += link.bandwidth;
    }
    for (const auto& [ends, bandwidth] : bandwidths) {
      const auto twin = bandwidths.find({std::get<1>(ends), std::get<0>(ends)});
      ASSERT_NE(twin, bandwidths.end()) << file << ": " << std::get<0>(ends);
      EXPECT_EQ(twin->second, bandwidth) << file << ": " << std::get<0>(ends);
    }
  }
}

TEST(MachineGraph, DifferentMachinesDiffer) {
  const auto a = graph_of_gpus("azure-ndv4-topo.nccl.xml", 1, 4);
  const auto b = graph_of_gpus("azure-ncv4-topo.nccl.xml", 1, 4);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_NE(a.value().hash(), b.value().hash());
  EXPECT_EQ(a.value().hash(), graph_of_gpus("azure-ndv4-topo.nccl.xml", 1, 4).value().hash());
}

TEST(MachineGraph, RanksOnProcessorsHangFromTheirNumaNode) {
  const std::vector<topo::Topology> kinds = {recorded("dgx2.hwloc.xml")};
  const std::vector<uint32_t> kind_of_host = {0, 0};
  std::vector<RankPlace> places;
  for (uint32_t host = 0; host < 2; ++host) {
    for (const topo::NodeId numa : kinds[0].all(topo::NodeKind::kNuma)) {
      places.push_back({host, topo::kNoNode, kinds[0].node(numa).cpus});
    }
  }
  ASSERT_EQ(places.size(), 4u);
  const auto graph = machine_graph({kinds, kind_of_host, places});
  ASSERT_TRUE(graph.ok()) << graph.status().text();
  const auto neighbour = [&](Rank rank) {
    return graph.value().links()[graph.value().links_from(rank)[0]].to;
  };
  EXPECT_NE(neighbour(0), neighbour(1));
  EXPECT_EQ(graph.value().vertices()[neighbour(0)].kind, VertexKind::kMemory);
  EXPECT_GE(count(graph.value(), VertexKind::kCard), 2u);
  EXPECT_EQ(count(graph.value(), VertexKind::kNetwork), 1u);
}

TEST(MachineGraph, SeveralRanksOnOneDeviceShareIt) {
  const std::vector<topo::Topology> kinds = {recorded("dgx2.hwloc.xml")};
  const std::vector<uint32_t> kind_of_host = {0};
  const std::vector<topo::NodeId> gpus = kinds[0].all(topo::NodeKind::kGpu);
  const std::vector<RankPlace> places = {{0, gpus[0], {}}, {0, gpus[0], {}}, {0, gpus[1], {}}};
  const auto graph = machine_graph({kinds, kind_of_host, places});
  ASSERT_TRUE(graph.ok()) << graph.status().text();
  EXPECT_EQ(count(graph.value(), VertexKind::kAccelerator), 1u);
}

TEST(MachineGraph, OutsidePlacesAreRefused) {
  const std::vector<topo::Topology> kinds = {recorded("azure-ncv4-topo.nccl.xml")};
  const std::vector<uint32_t> kind_of_host = {0};
  const std::vector<uint32_t> wrong_kind = {1};
  const std::vector<RankPlace> wrong_host = {{1, topo::kNoNode, {}}};
  const std::vector<RankPlace> wrong_device = {{0, 0, {}}};
  const std::vector<RankPlace> right = {{0, topo::kNoNode, {}}};
  EXPECT_FALSE(machine_graph({kinds, kind_of_host, {}}).ok());
  EXPECT_FALSE(machine_graph({kinds, wrong_kind, right}).ok());
  EXPECT_NE(machine_graph({kinds, kind_of_host, wrong_host}).status().text().find("host 1 of 1"),
            std::string::npos);
  EXPECT_NE(machine_graph({kinds, kind_of_host, wrong_device}).status().text().find("no GPU"),
            std::string::npos);
}

}  // namespace
}  // namespace weir::graph
