// SPDX-License-Identifier: Apache-2.0
#include "core/topo/svg_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/topo/print.h"
#include "output/svg_canvas.h"

namespace weir::topo {
namespace {

using output::fit;
using output::text_width;

constexpr double kCardWidthMin = 78;
constexpr double kTitleWidthMax = 420;
constexpr size_t kAlikeMin = 2;  // this many equal devices side by side become one card

std::string short_address(const Node& node) {
  if (!node.pci) return "";
  const std::string text = node.pci->address.text();
  return text.starts_with("0000:") ? text.substr(5) : text;
}

class Builder {
 public:
  explicit Builder(const Topology& topology) : topology_(topology) {}

  std::vector<Box> below(NodeId id) const {
    std::vector<Box> boxes;
    std::map<std::pair<NodeKind, std::string>, std::vector<NodeId>> alike;
    for (const NodeId child : seen_below(id)) {
      const Node& node = topology_.node(child);
      switch (node.kind) {
        case NodeKind::kPciBridge:
        case NodeKind::kRootComplex: {
          std::vector<Box> inner = below(child);
          if (!inner.empty()) boxes.push_back(container(child, std::move(inner)));
          break;
        }
        case NodeKind::kPackage:
        case NodeKind::kNuma:
          boxes.push_back(container(child, below(child)));
          break;
        case NodeKind::kNvSwitch:
          // Switches directly under the machine are known from their links only.
          if (topology_.node(id).kind != NodeKind::kMachine)
            alike[{node.kind, ""}].push_back(child);
          break;
        case NodeKind::kPciDevice:
          alike[{node.kind, pci_class::describe(node.pci->class_code)}].push_back(child);
          break;
        default:
          boxes.push_back(card(child));
      }
    }
    for (const auto& [key, ids] : alike) {
      boxes.push_back(ids.size() >= kAlikeMin ? card_of_several(ids, key.second) : card(ids[0]));
    }
    return boxes;
  }

 private:
  // The children, with ports, caches and cores replaced by their children.
  std::vector<NodeId> seen_below(NodeId id) const {
    std::vector<NodeId> seen;
    for (const NodeId child : topology_.node(id).children) {
      const Node& node = topology_.node(child);
      const bool port =
          node.kind == NodeKind::kPciBridge &&
          (node.bridge == BridgeRole::kRootPort || node.bridge == BridgeRole::kDownstreamPort);
      if (!port && node.kind != NodeKind::kCache && node.kind != NodeKind::kCore) {
        seen.push_back(child);
        continue;
      }
      const std::vector<NodeId> inner = seen_below(child);
      seen.insert(seen.end(), inner.begin(), inner.end());
    }
    return seen;
  }

  Box container(NodeId id, std::vector<Box> children) const {
    const Node& node = topology_.node(id);
    Box box;
    box.nodes = {id};
    box.kind = node.kind;
    box.children = std::move(children);
    const std::string rate = bandwidth_text(node.up);
    switch (node.kind) {
      case NodeKind::kPackage:
        box.titles.push_back(fmt::format("Package {}", node.os_index));
        if (node.cpu && !node.cpu->model.empty()) box.titles.push_back(node.cpu->model);
        if (!rate.empty()) box.titles.push_back(rate + " to other packages");
        break;
      case NodeKind::kNuma:
        box.titles.push_back(
            fmt::format("NUMA {}{}", node.os_index,
                        node.memory_bytes > 0 ? "  ·  " + bytes_text(node.memory_bytes) : ""));
        if (!node.cpus.empty()) box.titles.push_back(cpu_text(id));
        if (const std::string caches = cache_text(id); !caches.empty())
          box.titles.push_back(caches);
        if (!rate.empty()) box.titles.push_back(rate + " to other NUMA nodes");
        break;
      case NodeKind::kRootComplex:
        box.titles.push_back("PCIe root complex" + (node.name.empty() ? "" : " " + node.name));
        break;
      default:
        box.titles.push_back("PCIe switch");
        box.titles.push_back(short_address(node) + (rate.empty() ? "" : "  ·  " + rate));
    }
    return measured(std::move(box));
  }

  std::string cpu_text(NodeId id) const {
    const std::string cpus = "CPUs " + topology_.node(id).cpus.list();
    const size_t cores = core_count(id);
    return cores > 0 ? fmt::format("{}  ·  {} core{}", cpus, cores, cores == 1 ? "" : "s") : cpus;
  }

  size_t core_count(NodeId id) const {
    size_t count = 0;
    for (const NodeId child : topology_.node(id).children) {
      const NodeKind kind = topology_.node(child).kind;
      if (kind == NodeKind::kCore) ++count;
      if (kind == NodeKind::kCache) count += core_count(child);
    }
    return count;
  }

  // The outermost caches: "L3 2 × 33 MiB".
  std::string cache_text(NodeId id) const {
    size_t count = 0;
    CacheInfo info;
    for (const NodeId child : topology_.node(id).children) {
      const Node& node = topology_.node(child);
      if (!node.cache || node.cache->level < info.level) continue;
      if (node.cache->level > info.level) count = 0;
      info = *node.cache;
      ++count;
    }
    if (count == 0) return "";
    return fmt::format("L{} {}{}", info.level, count > 1 ? fmt::format("{} × ", count) : "",
                       bytes_text(info.bytes));
  }

  Box card(NodeId id) const {
    const Node& node = topology_.node(id);
    Box box;
    box.nodes = {id};
    box.kind = node.kind;
    box.card = true;
    if (node.kind == NodeKind::kPciDevice) {
      box.titles = {pci_class::describe(node.pci->class_code)};
      if (!node.name.empty()) box.titles.push_back(node.name);
      box.titles.push_back(short_address(node));
    } else {
      box.titles = {topology_.label(id)};
      // The machine's name is in its frame.
      if (topology_.node(0).kind == NodeKind::kNetwork) {
        box.titles[0] = box.titles[0].substr(box.titles[0].find('.') + 1);
      }
      if (node.nic && !node.nic->ports.empty()) {
        box.titles.push_back(node.nic->ports[0].name);
        if (const double speed = node.nic->speed_mbps(); speed > 0) {
          box.titles.push_back(fmt::format("{:g} Gbit/s", speed / 1000));
        }
      }
      if (node.pci) box.titles.push_back(short_address(node));
    }
    if (const std::string rate = bandwidth_text(node.up); !rate.empty()) box.titles.push_back(rate);
    return measured(std::move(box));
  }

  Box card_of_several(const std::vector<NodeId>& ids, const std::string& word) const {
    Box box;
    box.nodes = ids;
    box.kind = topology_.node(ids[0]).kind;
    box.card = true;
    if (box.kind == NodeKind::kNvSwitch) {
      box.titles = {
          fmt::format("{} NVSwitches", ids.size()),
          fmt::format("{} – {}", topology_.label(ids.front()), topology_.label(ids.back())),
          "control only"};
    } else {
      box.titles = {fmt::format("{} × {}", ids.size(), word)};
      std::string names;
      for (const NodeId id : ids) {
        const Node& node = topology_.node(id);
        names +=
            (names.empty() ? "" : ", ") + (node.name.empty() ? short_address(node) : node.name);
      }
      box.titles.push_back(fit(names, 140, kTitleSize));
    }
    return measured(std::move(box));
  }

  static Box measured(Box box) {
    double text = 0;
    for (size_t i = 0; i < box.titles.size(); ++i) {
      text = std::max(text, text_width(box.titles[i], kTitleSize, i == 0));
    }
    box.width = std::min(text, kTitleWidthMax) + 2 * kPadding;
    box.height = kPadding + kTitleLine * static_cast<double>(box.titles.size());
    if (box.card) {
      box.width = std::max(box.width, kCardWidthMin);
      box.height += kPadding;
      return box;
    }
    double row = 0;
    double tallest = 0;
    for (const Box& child : box.children) {
      row += child.width + (row > 0 ? kGap : 0);
      tallest = std::max(tallest, child.height);
    }
    box.width = std::max(box.width, row + 2 * kPadding);
    box.height += kPadding + tallest;
    return box;
  }

  const Topology& topology_;
};

}  // namespace

std::vector<Box> machine_boxes(const Topology& topology, NodeId machine) {
  return Builder(topology).below(machine);
}

void place(Box* box, double x, double y, double height, bool flipped) {
  box->x = x;
  box->y = y;
  box->flipped = flipped;
  if (box->card) {
    // Cards keep their height and are placed at the edge from which the lines come.
    if (!flipped) box->y = y + std::max(0.0, height - box->height);
    return;
  }
  box->height = std::max(height, box->height);
  double row = 0;
  for (const Box& child : box->children) row += child.width + (row > 0 ? kGap : 0);
  const double head = kPadding + kTitleLine * static_cast<double>(box->titles.size());
  double child_x = x + (box->width - row) / 2;
  for (Box& child : box->children) {
    place(&child, child_x, flipped ? y + kPadding : y + head, box->height - head - kPadding,
          flipped);
    child_x += child.width + kGap;
  }
}

void collect_cards(const Box& box, std::vector<const Box*>* cards) {
  if (box.card) cards->push_back(&box);
  for (const Box& child : box.children) collect_cards(child, cards);
}

}  // namespace weir::topo
