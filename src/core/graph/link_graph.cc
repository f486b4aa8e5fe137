// SPDX-License-Identifier: Apache-2.0
#include "core/graph/link_graph.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>

#include "core/base/check.h"

namespace weir::graph {
namespace {

// The vertices that rank 0 reaches or, `backwards`, that reach it.
std::vector<bool> reached(const LinkGraph& graph, bool backwards) {
  std::vector<bool> seen(graph.vertices().size());
  std::vector<VertexId> open = {0};
  seen[0] = true;
  while (!open.empty()) {
    const VertexId vertex = open.back();
    open.pop_back();
    for (const LinkId id : backwards ? graph.links_to(vertex) : graph.links_from(vertex)) {
      const VertexId next = backwards ? graph.links()[id].from : graph.links()[id].to;
      if (seen[next]) continue;
      seen[next] = true;
      open.push_back(next);
    }
  }
  return seen;
}

}  // namespace

LinkGraph::LinkGraph(uint32_t rank_count)
    : rank_count_(rank_count), vertices_(rank_count), from_(rank_count), to_(rank_count) {
  WEIR_CHECK(rank_count > 0, "a graph has at least one rank");
}

void LinkGraph::set_rank(Rank rank, uint32_t host, std::string name) {
  WEIR_CHECK(rank < rank_count_, "no such rank");
  vertices_[rank].host = host;
  vertices_[rank].name = std::move(name);
}

VertexId LinkGraph::add_vertex(VertexKind kind, uint32_t host, std::string name) {
  vertices_.push_back({kind, host, std::move(name)});
  from_.emplace_back();
  to_.emplace_back();
  return static_cast<VertexId>(vertices_.size() - 1);
}

LinkId LinkGraph::find_link(VertexId from, VertexId to) const {
  for (const LinkId id : from_[from]) {
    if (links_[id].to == to) return id;
  }
  return kNone;
}

void LinkGraph::add_link(const Link& link) {
  WEIR_CHECK(link.from < vertices_.size() && link.to < vertices_.size() && link.from != link.to,
             "a link has two ends");
  WEIR_CHECK(link.bandwidth >= 0 && link.bandwidth <= kBandwidthMax, "bandwidth out of range");
  const LinkId known = find_link(link.from, link.to);
  if (known != kNone) {
    Link& first = links_[known];
    const bool limited = first.bandwidth != kUnlimited && link.bandwidth != kUnlimited;
    first.bandwidth =
        limited ? std::min(kBandwidthMax, first.bandwidth + link.bandwidth) : kUnlimited;
    first.latency_ns = std::min(first.latency_ns, link.latency_ns);
    return;
  }
  const auto id = static_cast<LinkId>(links_.size());
  links_.push_back(link);
  from_[link.from].push_back(id);
  to_[link.to].push_back(id);
}

void LinkGraph::add_links(VertexId a, VertexId b, KilobytesPerSecond bandwidth, double latency_ns) {
  add_link({a, b, bandwidth, latency_ns});
  add_link({b, a, bandwidth, latency_ns});
}

Status LinkGraph::finish() {
  host_count_ = 0;
  for (Rank rank = 0; rank < rank_count_; ++rank) {
    if (vertices_[rank].host == kNone) {
      return invalid_argument(fmt::format("link graph: rank {} is on no host", rank));
    }
    host_count_ = std::max(host_count_, vertices_[rank].host + 1);
  }
  const std::vector<bool> from_0 = reached(*this, false);
  const std::vector<bool> to_0 = reached(*this, true);
  for (Rank rank = 1; rank < rank_count_; ++rank) {
    if (!from_0[rank] || !to_0[rank]) {
      return invalid_argument(fmt::format(
          "link graph: ranks 0 ({}) and {} ({}) cannot reach each other; does the file of the "
          "machine lack network cards or links?",
          vertices_[0].name, rank, vertices_[rank].name));
    }
  }
  return {};
}

uint64_t LinkGraph::hash() const {
  std::vector<uint64_t> words = {rank_count_, vertices_.size(), links_.size()};
  for (const Vertex& vertex : vertices_) {
    words.push_back(static_cast<uint64_t>(vertex.kind) << 32 | vertex.host);
  }
  for (const Link& link : links_) {
    words.push_back(uint64_t{link.from} << 32 | link.to);
    words.push_back(static_cast<uint64_t>(link.bandwidth));
    words.push_back(std::bit_cast<uint64_t>(link.latency_ns));
  }
  return XXH64(words.data(), words.size() * sizeof words[0], 0);
}

std::string LinkGraph::text() const {
  std::string text;
  for (VertexId vertex = 0; vertex < vertices_.size(); ++vertex) {
    const Vertex& it = vertices_[vertex];
    text += fmt::format("{} {}", name_of(it.kind), vertex);
    if (it.host != kNone) text += fmt::format(" host {}", it.host);
    text += " " + it.name + ":";
    for (const LinkId id : from_[vertex]) {
      const Link& link = links_[id];
      text += fmt::format(" {}", vertices_[link.to].name);
      if (link.bandwidth != kUnlimited) {
        text += fmt::format(" ({:.4g} GB/s)", static_cast<double>(link.bandwidth) / 1e6);
      }
    }
    text += "\n";
  }
  return text;
}

const char* name_of(VertexKind kind) {
  switch (kind) {
    case VertexKind::kRank:
      return "rank";
    case VertexKind::kAccelerator:
      return "accelerator";
    case VertexKind::kMemory:
      return "memory";
    case VertexKind::kPciOut:
      return "pci_out";
    case VertexKind::kPciIn:
      return "pci_in";
    case VertexKind::kPci:
      return "pci";
    case VertexKind::kSwitch:
      return "switch";
    case VertexKind::kCard:
      return "card";
    case VertexKind::kNetwork:
      return "network";
  }
  return "?";
}

}  // namespace weir::graph
