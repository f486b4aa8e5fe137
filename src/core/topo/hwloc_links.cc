// SPDX-License-Identifier: Apache-2.0
#include "core/topo/hwloc_links.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/topo/estimates.h"

namespace weir::topo {
namespace {

constexpr int64_t kObjectCountMax = 512;
constexpr uint64_t kBandwidthMaxMbs = 1'000'000'000;

// The numbers in the text of all children `tag`, each after its last colon ("OSDev:802" is 802).
Status read_numbers(const XmlReader& xml, pugi::xml_node element, const char* tag, size_t count_max,
                    std::vector<uint64_t>* numbers) {
  for (const pugi::xml_node child : element.children(tag)) {
    std::string_view text = child.child_value();
    while (true) {
      const size_t start = text.find_first_not_of(" \t\r\n");
      if (start == std::string_view::npos) break;
      text.remove_prefix(start);
      std::string_view word = text.substr(0, text.find_first_of(" \t\r\n"));
      text.remove_prefix(word.size());
      const size_t colon = word.rfind(':');
      if (colon != std::string_view::npos) word.remove_prefix(colon + 1);
      uint64_t value = 0;
      const char* last = word.data() + word.size();
      const auto [end, failure] = std::from_chars(word.data(), last, value);
      if (failure != std::errc() || end != last) {
        return xml.error(child, fmt::format("\"{:.40}\" in <{}> is not a number", word, tag));
      }
      numbers->push_back(value);
      if (numbers->size() > count_max) {
        return xml.error(child, fmt::format("more than {} numbers in <{}>", count_max, tag));
      }
    }
  }
  return Status();
}

// hwloc gives the sum of all links between two devices: the number of links is that sum divided by
// the rate of one link of a known generation.
uint32_t link_count(LinkKind kind, uint64_t total_mbs) {
  if (kind != LinkKind::kNvlink) return 1;
  for (const uint64_t one_mbs : {25000u, 26562u, 20000u, 19531u, 25781u, 53125u}) {
    if (total_mbs % one_mbs == 0) return static_cast<uint32_t>(total_mbs / one_mbs);
  }
  return 1;
}

bool may_end_link(NodeKind kind) {
  return kind == NodeKind::kGpu || kind == NodeKind::kNvSwitch || kind == NodeKind::kMachine ||
         kind == NodeKind::kPackage || kind == NodeKind::kNuma || kind == NodeKind::kCache ||
         kind == NodeKind::kCore;
}

// A GPU and anything that may end a link, or two switches.
bool may_be_joined(NodeKind a, NodeKind b) {
  return a == NodeKind::kGpu || b == NodeKind::kGpu ||
         (a == NodeKind::kNvSwitch && b == NodeKind::kNvSwitch);
}

// hwloc names a CPU by the package or group that is near the device: the link ends at its memory.
NodeId end_at_memory(const Topology& topology, NodeId end, NodeId device) {
  const NodeKind kind = topology.node(end).kind;
  if (kind == NodeKind::kCache || kind == NodeKind::kCore) {
    const NodeId numa = topology.ancestor(end, NodeKind::kNuma);
    return numa == kNoNode ? topology.machine_of(end) : numa;
  }
  if (kind != NodeKind::kPackage && kind != NodeKind::kMachine) return end;
  const auto is_inside = [&](NodeId id) {
    while (id != kNoNode && id != end) id = topology.node(id).parent;
    return id == end;
  };
  const NodeId nearest = topology.ancestor(device, NodeKind::kNuma);
  if (nearest != kNoNode && is_inside(nearest)) return nearest;
  NodeId only = kNoNode;
  for (const NodeId numa : topology.all(NodeKind::kNuma)) {
    if (!is_inside(numa)) continue;
    if (only != kNoNode) return end;
    only = numa;
  }
  return only == kNoNode ? end : only;
}

}  // namespace

Status read_hwloc_links(const XmlReader& xml, pugi::xml_node element,
                        const std::map<uint64_t, NodeId>& node_of_gp_index, Topology* topology) {
  const std::string_view name = XmlReader::text(element, "name").value_or("");
  LinkKind kind;
  if (name == "NVLinkBandwidth") {
    kind = LinkKind::kNvlink;
  } else if (name == "XGMIBandwidth") {
    kind = LinkKind::kXgmi;
  } else if (name == "XeLinkBandwidth") {
    kind = LinkKind::kXelink;
  } else {
    return Status();
  }
  WEIR_TOPO_ASSIGN(count, xml.integer(element, "nbobjs", 1, kObjectCountMax));
  if (!count) return xml.error(element, fmt::format("matrix {} has no nbobjs", name));
  const size_t n = static_cast<size_t>(*count);
  std::vector<uint64_t> objects;
  std::vector<uint64_t> values;
  WEIR_RETURN_IF_ERROR(read_numbers(xml, element, "indexes", n, &objects));
  WEIR_RETURN_IF_ERROR(read_numbers(xml, element, "u64values", n * n, &values));
  if (objects.size() != n || values.size() != n * n) {
    return xml.error(element,
                     fmt::format("matrix {} of {} objects has {} indexes and {} values instead of "
                                 "{} and {}",
                                 name, n, objects.size(), values.size(), n, n * n));
  }
  if (XmlReader::text(element, "indexing").value_or("gp") == "os") {
    topology->add_note(xml.where(element),
                       fmt::format("matrix {} names its objects by operating "
                                   "system index, which devices do not have; it "
                                   "is left out",
                                   name));
    return Status();
  }
  std::vector<NodeId> nodes;
  for (const uint64_t object : objects) {
    const auto found = node_of_gp_index.find(object);
    nodes.push_back(found == node_of_gp_index.end() ? kNoNode : found->second);
    if (nodes.back() == kNoNode) {
      topology->add_note(
          xml.where(element),
          fmt::format("matrix {}: object {} is not a device of this file", name, object));
    } else if (!may_end_link(topology->node(nodes.back()).kind)) {
      topology->add_note(
          xml.where(element),
          fmt::format("matrix {}: object {} is neither an accelerator nor a CPU; its "
                      "links are left out",
                      name, object));
      nodes.back() = kNoNode;
    }
  }
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = i + 1; j < n; ++j) {
      const uint64_t there = values[i * n + j];
      const uint64_t back = values[j * n + i];
      const uint64_t total_mbs = std::max(there, back);
      if (total_mbs == 0 || nodes[i] == kNoNode || nodes[j] == kNoNode || nodes[i] == nodes[j]) {
        continue;
      }
      if (total_mbs > kBandwidthMaxMbs) {
        return xml.error(
            element, fmt::format("matrix {}: {} MB/s is not a valid bandwidth", name, total_mbs));
      }
      if (there != back) {
        topology->add_note(xml.where(element),
                           fmt::format("matrix {}: {} MB/s from object {} to {}, {} MB/s back; the "
                                       "larger is used",
                                       name, there, objects[i], objects[j], back));
      }
      if (!may_be_joined(topology->node(nodes[i]).kind, topology->node(nodes[j]).kind)) {
        topology->add_note(
            xml.where(element),
            fmt::format("matrix {}: objects {} and {} are a {} and a {}, which no "
                        "such link joins; it is left out",
                        name, objects[i], objects[j], name_of(topology->node(nodes[i]).kind),
                        name_of(topology->node(nodes[j]).kind)));
        continue;
      }
      const NodeId a = end_at_memory(*topology, nodes[i], nodes[j]);
      const NodeId b = end_at_memory(*topology, nodes[j], nodes[i]);
      if (a == b) continue;
      const double latency_us = nvlink_edge(0).latency_us;
      topology->add_link({a,
                          b,
                          kind,
                          link_count(kind, total_mbs),
                          {static_cast<double>(total_mbs) / 1000, latency_us, Source::kStated}});
    }
  }
  return Status();
}

}  // namespace weir::topo
