// SPDX-License-Identifier: Apache-2.0
// Graphs that several tests use: recorded machines with a rank on each GPU or on each core, and
// networks made by hand. Test code; one thread.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/graph/link_graph.h"
#include "core/graph/machine_graph.h"
#include "core/topo/discover.h"
#include "core/topo/topology.h"

namespace weir::graph {

inline topo::Topology recorded(const std::string& file) {
  auto topology = topo::read_file(WEIR_FIXTURES "/topologies/" + file);
  EXPECT_TRUE(topology.ok()) << topology.status().text();
  return std::move(topology.value());
}

// `hosts` machines of the file, a rank on each of the first `gpus` GPUs of each (0: all); the last
// `lacking` ranks are left out.
inline Result<LinkGraph> graph_of_gpus(const std::string& file, uint32_t hosts, size_t gpus = 0,
                                       size_t lacking = 0) {
  const std::vector<topo::Topology> kinds = {recorded(file)};
  const std::vector<uint32_t> kind_of_host(hosts, 0);
  std::vector<topo::NodeId> devices = kinds[0].all(topo::NodeKind::kGpu);
  if (gpus != 0) devices.resize(gpus);
  std::vector<RankPlace> places;
  for (uint32_t host = 0; host < hosts; ++host) {
    for (const topo::NodeId device : devices) places.push_back({host, device, {}});
  }
  places.resize(places.size() - lacking);
  return machine_graph({kinds, kind_of_host, places});
}

// Every rank has a link to every other.
inline LinkGraph full_mesh(uint32_t ranks, KilobytesPerSecond bandwidth) {
  LinkGraph graph(ranks);
  for (Rank a = 0; a < ranks; ++a) {
    graph.set_rank(a, 0, "rank" + std::to_string(a));
    for (Rank b = a + 1; b < ranks; ++b) graph.add_links(a, b, bandwidth, 500);
  }
  EXPECT_TRUE(graph.finish().ok());
  return graph;
}

// Each rank hangs from one switch, with a bandwidth of its own.
inline LinkGraph star(const std::vector<KilobytesPerSecond>& bandwidths) {
  LinkGraph graph(static_cast<uint32_t>(bandwidths.size()));
  const VertexId hub = graph.add_vertex(VertexKind::kNetwork, kNone, "network");
  for (Rank rank = 0; rank < bandwidths.size(); ++rank) {
    graph.set_rank(rank, rank, "rank" + std::to_string(rank));
    graph.add_links(rank, hub, bandwidths[rank], 1000);
  }
  EXPECT_TRUE(graph.finish().ok());
  return graph;
}

}  // namespace weir::graph
