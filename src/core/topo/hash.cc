// SPDX-License-Identifier: Apache-2.0
// The fingerprint of a Topology. Each node is a line of its own properties followed by the sorted
// fingerprints of its children, so that the order of siblings does not matter; links follow,
// sorted.
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>

#include "core/topo/topology.h"

namespace weir::topo {
namespace {

// Part of the hashed text: raise it when the form below changes, so that old tables are not reused.
constexpr int kFormVersion = 1;

std::string edge_text(const Edge& edge) {
  return fmt::format("{} {:.4g} {:.4g}", name_of(edge.source), edge.bandwidth_gbs, edge.latency_us);
}

std::string node_text(const Node& node) {
  std::string text = fmt::format("{} {} {} [{}]", name_of(node.kind), node.os_index,
                                 node.cpus.list(), edge_text(node.up));
  if (node.cache) text += fmt::format(" cache {} {}", node.cache->level, node.cache->bytes);
  if (node.cpu) {
    text += fmt::format(" cpu {} {} {} {} {}", node.cpu->arch, node.cpu->vendor, node.cpu->model,
                        node.cpu->family_id, node.cpu->model_id);
  }
  if (node.pci) {
    text += fmt::format(" pci {} {:06x} {:04x}:{:04x}", node.pci->address.text(),
                        node.pci->class_code, node.pci->vendor, node.pci->device);
  }
  if (node.kind == NodeKind::kPciBridge) text += fmt::format(" {}", static_cast<int>(node.bridge));
  if (node.gpu) {
    text +=
        fmt::format(" gpu {} {} {}", node.gpu->index, node.gpu->compute_capability, node.gpu->gcn);
  }
  if (node.nic) text += fmt::format(" nic {} {:.6g}", node.nic->index, node.nic->speed_mbps());
  return text;
}

uint64_t fingerprint(const std::string& text) { return XXH3_64bits(text.data(), text.size()); }

}  // namespace

uint64_t Topology::hash() const {
  std::vector<std::vector<uint64_t>> below(nodes_.size());
  uint64_t tree = 0;
  // Children have larger ids than their parents.
  for (size_t id = nodes_.size(); id-- > 0;) {
    std::sort(below[id].begin(), below[id].end());
    std::string text = node_text(nodes_[id]);
    for (const uint64_t child : below[id]) text += fmt::format(" {:016x}", child);
    tree = fingerprint(text);
    if (nodes_[id].parent != kNoNode) below[nodes_[id].parent].push_back(tree);
  }
  std::vector<std::string> lines;
  for (const Link& link : links_) {
    std::string a = label(link.a);
    std::string b = label(link.b);
    if (b < a) std::swap(a, b);
    lines.push_back(fmt::format("{} {} {} {} [{}]\n", a, b, name_of(link.kind), link.count,
                                edge_text(link.edge)));
  }
  std::sort(lines.begin(), lines.end());
  std::string text = fmt::format("weir topology {} {:016x}\n", kFormVersion, tree);
  for (const std::string& line : lines) text += line;
  return fingerprint(text);
}

}  // namespace weir::topo
