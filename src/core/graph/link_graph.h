// SPDX-License-Identifier: Apache-2.0
// LinkGraph: what the ranks of a job can send over, as a value: vertices (ranks, switches, memory,
// network cards, the network) and directed links between them. What several messages share, such as
// a PCIe uplink, the port of a card or the memory of a NUMA node, is a link that all of their ways
// go through. machine_graph.h makes it from Topologies; cut_bound.h, forest.h and ring.h find in it
// what a collective should use.
//
// Ranks are vertices 0 to rank_count() - 1. A way never goes through the vertex of a third rank:
// such a rank takes part by receiving and sending. Other vertices only pass on.
//
// Thread rule: a const LinkGraph may be read by any number of threads; changes need exclusion.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/base/types.h"

namespace weir::graph {

using VertexId = uint32_t;
using LinkId = uint32_t;
inline constexpr uint32_t kNone = UINT32_MAX;

enum class VertexKind : uint8_t {
  kRank,
  kAccelerator,  // that several ranks share
  kMemory,       // of a NUMA node or a machine
  kPciOut,       // PCIe towards cards and memory
  kPciIn,        // PCIe from cards and memory
  kPci,          // PCIe both ways: where accelerators reach each other through it
  kSwitch,       // NVSwitches with the same neighbours
  kCard,
  kNetwork,
};

struct Vertex {
  VertexKind kind = VertexKind::kRank;
  uint32_t host = kNone;  // kNetwork: none
  std::string name;       // for people; unique within its host
};

// Bandwidths are integers, so that a search gives the same answer on every machine.
using KilobytesPerSecond = int64_t;
inline constexpr KilobytesPerSecond kUnlimited = 0;
inline constexpr KilobytesPerSecond kBandwidthMax = int64_t{1} << 40;

struct Link {
  VertexId from = kNone;
  VertexId to = kNone;
  KilobytesPerSecond bandwidth = kUnlimited;
  double latency_ns = 0;
};

class LinkGraph {
 public:
  explicit LinkGraph(uint32_t rank_count);

  // ---- Making one
  // A rank's vertex exists from the start; this says where it is.
  void set_rank(Rank rank, uint32_t host, std::string name);
  VertexId add_vertex(VertexKind kind, uint32_t host, std::string name);
  // One more link of the same ends adds to the bandwidth of the first.
  void add_link(const Link& link);
  // One each way.
  void add_links(VertexId a, VertexId b, KilobytesPerSecond bandwidth, double latency_ns);
  // Checks that every two ranks can reach each other. Call it when all has been added.
  Status finish();

  // ---- Reading
  uint32_t rank_count() const { return rank_count_; }
  uint32_t host_count() const { return host_count_; }
  uint32_t host_of(Rank rank) const { return vertices_[rank].host; }
  bool is_rank(VertexId vertex) const { return vertex < rank_count_; }
  std::span<const Vertex> vertices() const { return vertices_; }
  std::span<const Link> links() const { return links_; }
  std::span<const LinkId> links_from(VertexId vertex) const { return from_[vertex]; }
  std::span<const LinkId> links_to(VertexId vertex) const { return to_[vertex]; }
  // kNone where there is none.
  LinkId find_link(VertexId from, VertexId to) const;

  // A fingerprint of all that decides: the same for equal graphs on every machine. Names do not
  // count.
  uint64_t hash() const;
  // One line a vertex with its links.
  std::string text() const;

 private:
  uint32_t rank_count_;
  uint32_t host_count_ = 0;
  std::vector<Vertex> vertices_;
  std::vector<Link> links_;
  std::vector<std::vector<LinkId>> from_, to_;
};

const char* name_of(VertexKind kind);

}  // namespace weir::graph
