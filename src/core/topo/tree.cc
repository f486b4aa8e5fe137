// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/topo/print.h"

namespace weir::topo {

const char* title_of(LinkKind kind) {
  switch (kind) {
    case LinkKind::kNvlink:
      return "NVLink";
    case LinkKind::kXgmi:
      return "xGMI";
    case LinkKind::kXelink:
      return "Xe Link";
    case LinkKind::kC2c:
      return "C2C";
  }
  return "link";
}

std::string bandwidth_text(const Edge& edge) {
  if (edge.source < Source::kEstimated || edge.bandwidth_gbs <= 0) return "";
  return fmt::format("{}{:.{}f} GB/s", edge.source == Source::kEstimated ? "~" : "",
                     edge.bandwidth_gbs, edge.bandwidth_gbs < 100 ? 1 : 0);
}

std::string bytes_text(uint64_t bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(units)) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.{}f} {}", value,
                     value < 10 && value != static_cast<uint64_t>(value) ? 1 : 0, units[unit]);
}

namespace {

std::string plural(size_t count, const char* one, const char* many = nullptr) {
  return fmt::format("{} {}{}", count, count == 1 || many == nullptr ? one : many,
                     count == 1 || many != nullptr ? "" : "s");
}

// Joins the parts of a line by two spaces; empty ones are left out.
std::string join(std::initializer_list<std::string> parts) {
  std::string line;
  for (const std::string& part : parts) {
    if (!part.empty()) line += (line.empty() ? "" : "  ") + part;
  }
  return line;
}

class Printer {
 public:
  Printer(const Topology& topology, const TreeOptions& options)
      : topology_(topology), options_(options) {}

  std::string print() {
    branch(0, "", "");
    links();
    notes();
    return std::move(text_);
  }

 private:
  void branch(NodeId id, const std::string& first_indent, const std::string& indent) {
    text_ += first_indent + line(id) + "\n";
    const std::vector<NodeId> below = children(id);
    std::vector<std::string> extra;
    if (!options_.every_port) extra = folded(id);
    const size_t count = extra.size() + below.size();
    size_t i = 0;
    for (const std::string& one : extra) {
      ++i;
      text_.append(indent).append(i == count ? "└─ " : "├─ ").append(one).append("\n");
    }
    for (const NodeId child : below) {
      ++i;
      branch(child, indent + (i == count ? "└─ " : "├─ "), indent + (i == count ? "   " : "│  "));
    }
  }

  bool is_port(const Node& node) const {
    return node.kind == NodeKind::kPciBridge &&
           (node.bridge == BridgeRole::kRootPort || node.bridge == BridgeRole::kDownstreamPort);
  }

  // Children that get a line: those behind ports, but not caches, cores and bridges that are not
  // shown.
  std::vector<NodeId> children(NodeId id) const {
    std::vector<NodeId> shown;
    for (const NodeId child : topology_.node(id).children) {
      const Node& node = topology_.node(child);
      if (options_.every_port) {
        shown.push_back(child);
        continue;
      }
      const bool core_side = node.kind == NodeKind::kCache || node.kind == NodeKind::kCore;
      const bool empty_bridge =
          (node.kind == NodeKind::kPciBridge || node.kind == NodeKind::kRootComplex) &&
          children(child).empty();
      if (empty_bridge) continue;
      if (is_port(node) || core_side) {
        const std::vector<NodeId> below = children(child);
        shown.insert(shown.end(), below.begin(), below.end());
      } else {
        shown.push_back(child);
      }
    }
    return shown;
  }

  // Caches and cores below a NUMA node (or package) as a few lines: one for each size of cache.
  std::vector<std::string> folded(NodeId id) const {
    struct Fold {
      size_t count = 0;
      size_t cpu_count = 0;
    };
    std::map<std::pair<uint32_t, uint64_t>, Fold> caches;
    size_t core_count = 0;
    std::vector<NodeId> stack = topology_.node(id).children;
    while (!stack.empty()) {
      const NodeId top = stack.back();
      stack.pop_back();
      const Node& node = topology_.node(top);
      if (node.kind != NodeKind::kCache && node.kind != NodeKind::kCore) continue;
      if (node.kind == NodeKind::kCore) ++core_count;
      if (node.cache) {
        Fold& fold = caches[{node.cache->level, node.cache->bytes}];
        ++fold.count;
        fold.cpu_count = std::max(fold.cpu_count, node.cpus.count());
      }
      stack.insert(stack.end(), node.children.begin(), node.children.end());
    }
    std::vector<std::string> lines;
    if (core_count > 0) lines.push_back(plural(core_count, "core"));
    std::string text;
    for (auto it = caches.rbegin(); it != caches.rend(); ++it) {
      const auto& [key, fold] = *it;
      text += fmt::format("{}L{} {}{}{}", text.empty() ? "" : ", ", key.first,
                          fold.count > 1 ? fmt::format("{} × ", fold.count) : "",
                          bytes_text(key.second),
                          fold.cpu_count > 1 ? fmt::format(" per {} CPUs", fold.cpu_count) : "");
    }
    if (!lines.empty() && !text.empty()) lines[0] += ": " + text;
    if (lines.empty() && !text.empty()) lines.push_back(text);
    return lines;
  }

  std::string line(NodeId id) const {
    const Node& node = topology_.node(id);
    const std::string address = node.pci ? node.pci->address.text() : "";
    switch (node.kind) {
      case NodeKind::kNetwork:
        return "Network of " + plural(node.children.size(), "machine");
      case NodeKind::kMachine:
        return machine_line(id);
      case NodeKind::kPackage:
        return join({fmt::format("Package {}", node.os_index), node.cpu ? node.cpu->model : "",
                     node.up.source >= Source::kEstimated
                         ? bandwidth_text(node.up) + " to the other packages"
                         : ""});
      case NodeKind::kNuma:
        return join({fmt::format("NUMA {}", node.os_index),
                     node.memory_bytes > 0 ? bytes_text(node.memory_bytes) : "",
                     node.cpus.empty() ? "" : "CPUs " + node.cpus.list(),
                     node.up.source >= Source::kEstimated
                         ? bandwidth_text(node.up) + " to the other NUMA nodes"
                         : ""});
      case NodeKind::kCache:
        return join({fmt::format("L{} cache {}", node.cache->level, bytes_text(node.cache->bytes)),
                     "CPUs " + node.cpus.list()});
      case NodeKind::kCore:
        return join({"Core", "CPUs " + node.cpus.list()});
      case NodeKind::kRootComplex:
        return join({"PCIe root complex", node.name});
      case NodeKind::kPciBridge:
        return join({bridge_word(node.bridge), address, bandwidth_text(node.up)});
      case NodeKind::kGpu:
        return join({topology_.label(id), address, node.name,
                     node.gpu->memory_bytes > 0 ? bytes_text(node.gpu->memory_bytes) : "",
                     link_text(node)});
      case NodeKind::kNic:
        return nic_line(id);
      case NodeKind::kNvSwitch:
        return join(
            {topology_.label(id), node.pci ? address : node.name, "NVSwitch", link_text(node)});
      case NodeKind::kPciDevice:
        return join({address, node.pci ? pci_class::describe(node.pci->class_code) : "device",
                     node.name, link_text(node)});
    }
    return "";
  }

  static const char* bridge_word(BridgeRole role) {
    switch (role) {
      case BridgeRole::kRootPort:
        return "PCIe root port";
      case BridgeRole::kDownstreamPort:
        return "PCIe switch port";
      default:
        return "PCIe switch";
    }
  }

  // "31.5 GB/s (gen 4 ×16)"
  static std::string link_text(const Node& node) {
    std::string rate = bandwidth_text(node.up);
    if (rate.empty() || !node.pci || node.pci->width_max == 0) return rate;
    return fmt::format("{} ({:g} GT/s ×{})", rate, node.pci->speed_gts_max, node.pci->width_max);
  }

  std::string machine_line(NodeId id) const {
    std::map<NodeKind, size_t> counts;
    for (NodeId other = id; other < topology_.node_count(); ++other) {
      if (topology_.machine_of(other) == id) ++counts[topology_.node(other).kind];
    }
    std::string text;
    const auto add = [&](NodeKind kind, const char* one, const char* many = nullptr) {
      if (counts[kind] > 0) text += (text.empty() ? "" : ", ") + plural(counts[kind], one, many);
    };
    add(NodeKind::kPackage, "package");
    add(NodeKind::kNuma, "NUMA node");
    add(NodeKind::kCore, "core");
    add(NodeKind::kGpu, "GPU");
    add(NodeKind::kNic, "NIC");
    add(NodeKind::kNvSwitch, "NVSwitch", "NVSwitches");
    const std::string& name = topology_.node(id).name;
    const bool several = topology_.node(0).kind == NodeKind::kNetwork;
    return join({several ? "Machine " + topology_.label(id) : "Machine", name, text});
  }

  std::string nic_line(NodeId id) const {
    const Node& node = topology_.node(id);
    std::string ports;
    for (const NetPort& port : node.nic->ports) {
      ports += (ports.empty() ? "" : ", ") + port.name;
      if (port.infiniband && port.port > 0) ports += fmt::format(" port {}", port.port);
      if (port.speed_mbps > 0) ports += fmt::format(" {:g} Gbit/s", port.speed_mbps / 1000);
    }
    return join({topology_.label(id), node.pci ? node.pci->address.text() : "",
                 node.pci ? pci_class::describe(node.pci->class_code) : "network", ports,
                 link_text(node)});
  }

  // Equal links of one node share a line.
  void links() {
    if (topology_.links().empty()) return;
    text_ += "\nLinks between devices (both ends listed)\n";
    struct Group {
      std::vector<NodeId> targets;
      Edge total;
      uint32_t count = 0;
    };
    std::map<NodeId, std::map<std::tuple<LinkKind, uint32_t, Source, std::string>, Group>> by_node;
    for (const Link& link : topology_.links()) {
      for (const auto& [from, to] : {std::pair(link.a, link.b), std::pair(link.b, link.a)}) {
        Group& group =
            by_node[from][{link.kind, link.count, link.edge.source, bandwidth_text(link.edge)}];
        group.targets.push_back(to);
        group.total.bandwidth_gbs += link.edge.bandwidth_gbs;
        group.total.source = link.edge.source;
      }
    }
    std::vector<NodeId> order = topology_.all(NodeKind::kGpu);
    for (const NodeId id : topology_.all(NodeKind::kNvSwitch)) order.push_back(id);
    for (const NodeId from : order) {
      for (auto& [key, group] : by_node[from]) {
        const auto& [kind, count, source, rate] = key;
        std::string to;
        std::stable_sort(group.targets.begin(), group.targets.end(),
                         [&](NodeId x, NodeId y) { return number(x) < number(y); });
        for (const NodeId target : group.targets) {
          to += (to.empty() ? "" : " ") + topology_.label(target);
        }
        const bool several = group.targets.size() > 1;
        text_ +=
            fmt::format("  {:<6} {} × {}{} to{} {}{}\n", topology_.label(from), count,
                        title_of(kind), rate.empty() ? "" : ", " + rate, several ? " each of" : "",
                        to, several ? "  (" + bandwidth_text(group.total) + " together)" : "");
      }
    }
  }

  // GPUs and switches in the order of their numbers.
  std::pair<NodeKind, int64_t> number(NodeId id) const {
    const Node& node = topology_.node(id);
    return {node.kind, node.gpu ? int64_t{node.gpu->index} : int64_t{node.os_index}};
  }

  void notes() {
    if (topology_.notes().empty()) return;
    text_ += "\nNotes\n";
    for (const Note& note : topology_.notes()) {
      text_ += fmt::format("  {}: {}\n", note.where, note.text);
    }
  }

  const Topology& topology_;
  const TreeOptions options_;
  std::string text_;
};

}  // namespace

std::string print_tree(const Topology& topology, const TreeOptions& options) {
  if (topology.empty()) return "(empty)\n";
  return Printer(topology, options).print();
}

std::string print_path(const Topology& topology, NodeId a, NodeId b) {
  const Path path = find_path(topology, a, b);
  std::string text =
      fmt::format("{} to {}: {}", topology.label(a), topology.label(b), path.label());
  const Edge whole{path.bandwidth_gbs, path.latency_us,
                   path.estimated ? Source::kEstimated : Source::kStated};
  const std::string rate = bandwidth_text(whole);
  text += rate.empty() ? ", bandwidth not known" : ", " + rate;
  text += fmt::format(", ~{:.2f} us\n", path.latency_us);
  for (size_t i = 0; i < path.way.size(); ++i) {
    const NodeId id = path.way[i];
    const Node& node = topology.node(id);
    const std::string address =
        node.pci && topology.label(id) != node.pci->address.text() ? node.pci->address.text() : "";
    std::string word = name_of(node.kind);
    std::replace(word.begin(), word.end(), '_', ' ');
    text += fmt::format("  {} {}\n", i == 0 ? " " : "→", join({topology.label(id), address, word}));
  }
  if (path.path_class == PathClass::kNvSwitch && path.link_count > 1) {
    text += fmt::format("  (one of the ways that {} links share)\n", path.link_count);
  }
  return text;
}

}  // namespace weir::topo
