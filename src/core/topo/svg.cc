// SPDX-License-Identifier: Apache-2.0
#include "core/topo/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "core/topo/print.h"
#include "core/topo/svg_layout.h"
#include "output/svg_canvas.h"

namespace weir::topo {
namespace {

using output::Anchor;
using output::Canvas;
using output::fit;
using output::ShapeStyle;
using output::StrokeStyle;
using output::text_width;
using output::TextStyle;

constexpr double kMargin = 16;
constexpr double kRowWidthMax = 1150;  // wider machines get two rows
constexpr size_t kWiresMax = 1000;     // more would only be a grey area
constexpr double kLane = 22;
constexpr double kBarHeight = 26;
constexpr double kHeadHeight = 46;
constexpr double kSmall = 10;
constexpr const char* kSwitchColor = "#9333ea";
constexpr const char* kLinkColor = "#16a34a";

ShapeStyle style_of(const Box& box) {
  switch (box.kind) {
    case NodeKind::kPackage:
      return {"#eef2ff", {"#818cf8", 1.2, false}, 9};
    case NodeKind::kNuma:
      return {"#f8fafc", {"#94a3b8", 1, false}, 8};
    case NodeKind::kRootComplex:
      return {"#f1f5f9", {"#cbd5e1", 1, false}, 6};
    case NodeKind::kPciBridge:
      return {"#fff7ed", {"#fdba74", 1, false}, 6};
    case NodeKind::kGpu:
      return {"#dcfce7", {"#16a34a", 1.4, false}, 5};
    case NodeKind::kNic:
      return {"#dbeafe", {"#2563eb", 1.4, false}, 5};
    case NodeKind::kNvSwitch:
      return {"#f3e8ff", {kSwitchColor, 1, true}, 5};
    default:
      return {"#f1f5f9", {"#94a3b8", 1, false}, 5};
  }
}

// Thicker for faster links, but limited so that the fastest do not hide the picture.
double stroke_width(double bandwidth_gbs) {
  return std::clamp(0.8 + 0.35 * std::log2(1 + bandwidth_gbs / 8), 1.0, 4.0);
}

void draw(Canvas* canvas, const Box& box) {
  canvas->rectangle(box.x, box.y, box.width, box.height, style_of(box));
  const double head = kTitleLine * static_cast<double>(box.titles.size());
  double y =
      (box.flipped && !box.card ? box.y + box.height - head - kPadding / 2 : box.y + kPadding / 2) +
      kTitleLine - 3;
  for (size_t i = 0; i < box.titles.size(); ++i) {
    TextStyle style{kTitleSize, i == 0, i == 0 ? "#0f172a" : "#475569", Anchor::kStart, false};
    if (box.card) style.anchor = Anchor::kMiddle;
    const double width = box.width - (box.card ? 4 : 2 * kPadding);
    canvas->text(box.card ? box.x + box.width / 2 : box.x + kPadding,
                 y + (box.card ? kPadding / 2 : 0), fit(box.titles[i], width, kTitleSize, i == 0),
                 style);
    y += kTitleLine;
  }
  for (const Box& child : box.children) draw(canvas, child);
}

// NVSwitches that are linked to the same GPUs.
struct SwitchGroup {
  std::vector<NodeId> switches;
  std::set<NodeId> gpus;
  double per_gpu_gbs = 0;
  uint32_t per_gpu_count = 0;
  bool estimated = false;
  bool below = false;  // in the lower of two rows
  size_t level = 0;    // bars that would overlap are stacked
  double x1 = 0;
  double x2 = 0;
  double y = 0;
};

// A direct link, drawn down from one card, along a lane and up (or down) to the other.
struct Wire {
  const Link* link;
  const Box* a;
  const Box* b;
  double x1 = 0;
  double x2 = 0;
  size_t lane = 0;
};

class MachinePicture {
 public:
  MachinePicture(const Topology& topology, NodeId machine)
      : topology_(topology), machine_(machine) {
    boxes_ = machine_boxes(topology, machine);
    split_rows();
    find_switch_groups();
  }

  // Lays everything out with the upper left corner at (x, y) and draws it.
  void draw_at(Canvas* canvas, double x, double y) {
    x_ = x;
    y_ = y;
    lay_out_rows();
    lay_out_wires();
    place_rows();
    draw_frame(canvas);
    for (const Box& box : boxes_) draw(canvas, box);
    draw_switch_groups(canvas);
    draw_wires(canvas);
  }

  double width() const { return width_; }
  double height() const { return height_; }

 private:
  double row_width(size_t from, size_t to) const {
    double width = 0;
    for (size_t i = from; i < to; ++i) width += boxes_[i].width + (i > from ? 2 * kGap : 0);
    return width;
  }

  void split_rows() {
    split_ = boxes_.size();
    const double whole = row_width(0, boxes_.size());
    if (whole <= kRowWidthMax || boxes_.size() < 2) return;
    double best = whole;
    for (size_t at = 1; at < boxes_.size(); ++at) {
      const double widest = std::max(row_width(0, at), row_width(at, boxes_.size()));
      if (widest < best) {
        best = widest;
        split_ = at;
      }
    }
  }

  void find_switch_groups() {
    std::map<NodeId, std::set<NodeId>> gpus_of;
    for (const Link& link : topology_.links()) {
      for (const auto& [end, other] : {std::pair(link.a, link.b), std::pair(link.b, link.a)}) {
        if (topology_.node(end).kind == NodeKind::kNvSwitch &&
            topology_.machine_of(end) == machine_ && topology_.node(other).kind == NodeKind::kGpu) {
          gpus_of[end].insert(other);
        }
      }
    }
    std::map<std::set<NodeId>, size_t> index;
    for (const NodeId id : topology_.all(NodeKind::kNvSwitch)) {
      const auto found = gpus_of.find(id);
      if (found == gpus_of.end()) continue;
      const auto [place, is_new] = index.try_emplace(found->second, groups_.size());
      if (is_new) groups_.emplace_back();
      SwitchGroup& group = groups_[place->second];
      group.switches.push_back(id);
      group.gpus = found->second;
      group_of_[id] = place->second;
    }
    for (const Link& link : topology_.links()) {
      for (const auto& [end, other] : {std::pair(link.a, link.b), std::pair(link.b, link.a)}) {
        const auto found = group_of_.find(end);
        if (found == group_of_.end() || topology_.node(other).kind != NodeKind::kGpu) continue;
        SwitchGroup& group = groups_[found->second];
        const double share = 1.0 / static_cast<double>(group.gpus.size());
        group.per_gpu_gbs += link.edge.bandwidth_gbs * share;
        if (other == *group.gpus.begin()) group.per_gpu_count += link.count;
        group.estimated = group.estimated || link.edge.source != Source::kStated;
      }
    }
  }

  // Horizontal positions, on which the lanes depend, and cards by node.
  void lay_out_rows() {
    width_ = 0;
    for (const auto& [from, to] : {std::pair<size_t, size_t>(0, split_), {split_, boxes_.size()}}) {
      width_ = std::max(width_, row_width(from, to));
    }
    width_ = std::max(width_ + 2 * kMargin, 580.0);
    for (const auto& [from, to] : {std::pair<size_t, size_t>(0, split_), {split_, boxes_.size()}}) {
      double box_x = x_ + (width_ - row_width(from, to)) / 2;
      for (size_t i = from; i < to; ++i) {
        place(&boxes_[i], box_x, 0, 0, i >= split_);
        box_x += boxes_[i].width + 2 * kGap;
      }
    }
    cards_.clear();
    std::vector<const Box*> cards;
    for (const Box& box : boxes_) collect_cards(box, &cards);
    for (const Box* card : cards) {
      for (const NodeId id : card->nodes) cards_[id] = card;
    }
    for (SwitchGroup& group : groups_) {
      group.x1 = 1e9;
      group.x2 = 0;
      size_t below = 0;
      for (const NodeId id : group.gpus) {
        const auto card = cards_.find(id);
        if (card == cards_.end()) continue;
        group.x1 = std::min(group.x1, card->second->x);
        group.x2 = std::max(group.x2, card->second->x + card->second->width);
        below += card->second->flipped ? 1 : 0;
      }
      group.below = below * 2 > group.gpus.size();
    }
    for (size_t i = 0; i < groups_.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        const bool overlap = groups_[i].x1 < groups_[j].x2 && groups_[j].x1 < groups_[i].x2;
        if (overlap && groups_[i].below == groups_[j].below) {
          groups_[i].level = std::max(groups_[i].level, groups_[j].level + 1);
        }
      }
    }
  }

  // Each end of a wire gets its own place at the edge of its card, and each wire a lane in which it
  // crosses no other.
  void lay_out_wires() {
    wires_.clear();
    for (const Link& link : topology_.links()) {
      const auto a = cards_.find(link.a);
      const auto b = cards_.find(link.b);
      if (a == cards_.end() || b == cards_.end()) continue;
      if (a->second->kind != NodeKind::kGpu || b->second->kind != NodeKind::kGpu) continue;
      const bool ordered = a->second->x <= b->second->x;
      wires_.push_back({&link, ordered ? a->second : b->second, ordered ? b->second : a->second});
    }
    if (wires_.size() > kWiresMax) {
      left_out_count_ = wires_.size();
      wires_.clear();
    }
    std::map<const Box*, std::vector<std::pair<double, double*>>>
        ends;  // by where the other end is
    for (Wire& wire : wires_) {
      ends[wire.a].push_back({wire.b->x, &wire.x1});
      ends[wire.b].push_back({wire.a->x, &wire.x2});
    }
    for (auto& [card, list] : ends) {
      std::sort(list.begin(), list.end());
      const double step = card->width / static_cast<double>(list.size() + 1);
      for (size_t i = 0; i < list.size(); ++i) {
        *list[i].second = card->x + step * static_cast<double>(i + 1);
      }
    }
    std::sort(wires_.begin(), wires_.end(), [](const Wire& p, const Wire& q) {
      return std::abs(p.x2 - p.x1) < std::abs(q.x2 - q.x1);
    });
    // Each lane holds its wires, keyed by where they begin; wires in a lane do not overlap.
    std::vector<std::map<double, double>> lanes;
    for (Wire& wire : wires_) {
      const double begin = std::min(wire.x1, wire.x2);
      const double end = std::max(wire.x1, wire.x2) + 8;
      const auto is_free = [&](const std::map<double, double>& lane) {
        const auto next = lane.lower_bound(end);
        return next == lane.begin() || std::prev(next)->second <= begin;
      };
      while (wire.lane < lanes.size() && !is_free(lanes[wire.lane])) ++wire.lane;
      if (wire.lane == lanes.size()) lanes.emplace_back();
      lanes[wire.lane].emplace(begin, end);
    }
    lane_count_ = lanes.size();
  }

  // Vertical positions, now that the height of the lanes between the rows is known.
  void place_rows() {
    const auto tallest = [&](size_t from, size_t to) {
      double height = 0;
      for (size_t i = from; i < to; ++i) height = std::max(height, boxes_[i].height);
      return height;
    };
    const double upper = tallest(0, split_);
    const double lower = tallest(split_, boxes_.size());
    const auto bars = [&](bool below) {
      size_t levels = 0;
      for (const SwitchGroup& group : groups_) {
        if (group.below == below) levels = std::max(levels, group.level + 1);
      }
      return static_cast<double>(levels) * (kBarHeight + kLane);
    };
    const double top = y_ + kHeadHeight;
    const double first_bar = top + upper + kLane;
    lanes_y_ = first_bar + bars(false) + kLane / 2;
    double end = lanes_y_ + static_cast<double>(lane_count_) * kLane;
    if (groups_.empty() && wires_.empty()) end = top + upper;
    for (SwitchGroup& group : groups_) {
      const double offset = static_cast<double>(group.level) * (kBarHeight + kLane);
      group.y = group.below ? end + kLane + offset : first_bar + offset;
    }
    end += bars(true);
    if (lower > 0) end += groups_.empty() && wires_.empty() ? 2 * kGap : kLane;
    for (size_t i = 0; i < boxes_.size(); ++i) {
      const bool second = i >= split_;
      place(&boxes_[i], boxes_[i].x, second ? end : top, second ? lower : upper, second);
    }
    height_ = end + lower + kMargin - y_;
  }

  void draw_frame(Canvas* canvas) const {
    canvas->rectangle(x_, y_, width_, height_, {"#ffffff", {"#475569", 1.4, false}, 12});
    const Node& node = topology_.node(machine_);
    std::string title = node.name.empty() ? "Machine" : node.name;
    if (topology_.node(0).kind == NodeKind::kNetwork)
      title = topology_.label(machine_) + "  " + title;
    canvas->text(x_ + kMargin, y_ + 21, fit(title, width_ - 2 * kMargin, 15, true),
                 {15, true, "#0f172a", Anchor::kStart, false});
    std::map<NodeKind, size_t> counts;
    for (NodeId id = 0; id < topology_.node_count(); ++id) {
      if (topology_.machine_of(id) == machine_) ++counts[topology_.node(id).kind];
    }
    std::string summary;
    const auto add = [&](NodeKind kind, const char* one, const char* many) {
      if (counts[kind] == 0) return;
      summary += fmt::format("{}{} {}", summary.empty() ? "" : ", ", counts[kind],
                             counts[kind] == 1 ? one : many);
    };
    add(NodeKind::kPackage, "package", "packages");
    add(NodeKind::kNuma, "NUMA node", "NUMA nodes");
    add(NodeKind::kGpu, "GPU", "GPUs");
    add(NodeKind::kNic, "NIC", "NICs");
    add(NodeKind::kNvSwitch, "NVSwitch", "NVSwitches");
    if (left_out_count_ > 0) {
      summary += fmt::format("  ·  {} direct links, too many to draw", left_out_count_);
    }
    const std::string gpu = gpu_models();
    if (!gpu.empty()) summary += "  ·  " + gpu;
    canvas->text(x_ + kMargin, y_ + 37, fit(summary, width_ - 2 * kMargin, 11),
                 {11, false, "#475569", Anchor::kStart, false});
  }

  std::string gpu_models() const {
    std::set<std::string> models;
    for (const NodeId id : topology_.all(NodeKind::kGpu)) {
      if (topology_.machine_of(id) == machine_ && !topology_.node(id).name.empty()) {
        models.insert(topology_.node(id).name);
      }
    }
    std::string text;
    for (const std::string& model : models) text += (text.empty() ? "" : ", ") + model;
    return text;
  }

  // The point where a line leaves a card.
  static double edge_y(const Box& card) { return card.flipped ? card.y : card.y + card.height; }

  void draw_switch_groups(Canvas* canvas) const {
    for (const SwitchGroup& group : groups_) {
      for (const NodeId id : group.gpus) {
        const auto found = cards_.find(id);
        if (found == cards_.end()) continue;
        const Box& card = *found->second;
        const double x = card.x + card.width / 2;
        const double y = edge_y(card);
        canvas->line(x, y, x, y < group.y ? group.y : group.y + kBarHeight,
                     {kSwitchColor, stroke_width(group.per_gpu_gbs), group.estimated});
      }
    }
    draw_trunks(canvas);
    for (const SwitchGroup& group : groups_) {
      canvas->rectangle(group.x1, group.y, group.x2 - group.x1, kBarHeight,
                        {"#f3e8ff", {kSwitchColor, 1.4, false}, 5});
      const std::string names = group.switches.size() == 1
                                    ? topology_.label(group.switches[0])
                                    : fmt::format("{} NVSwitches {} – {}", group.switches.size(),
                                                  topology_.label(group.switches.front()),
                                                  topology_.label(group.switches.back()));
      const Edge edge{group.per_gpu_gbs, 0, group.estimated ? Source::kEstimated : Source::kStated};
      const std::string text = fmt::format("{}  ·  {} NVLinks of each GPU, {} together", names,
                                           group.per_gpu_count, bandwidth_text(edge));
      canvas->text((group.x1 + group.x2) / 2, group.y + 17,
                   fit(text, group.x2 - group.x1 - 10, kTitleSize, true),
                   {kTitleSize, true, "#581c87", Anchor::kMiddle, false});
    }
  }

  // The links between the groups.
  void draw_trunks(Canvas* canvas) const {
    struct Trunk {
      double bandwidth_gbs = 0;
      uint32_t count = 0;
      Source source = Source::kStated;
    };
    std::map<std::pair<size_t, size_t>, Trunk> trunks;
    for (const Link& link : topology_.links()) {
      const auto a = group_of_.find(link.a);
      const auto b = group_of_.find(link.b);
      if (a == group_of_.end() || b == group_of_.end() || a->second == b->second) continue;
      Trunk& trunk = trunks[std::minmax(a->second, b->second)];
      trunk.bandwidth_gbs += link.edge.bandwidth_gbs;
      trunk.count += link.count;
      trunk.source = std::min(trunk.source, link.edge.source);
    }
    for (const auto& [key, trunk] : trunks) {
      const SwitchGroup& p = groups_[key.first];
      const SwitchGroup& q = groups_[key.second];
      const StrokeStyle stroke{kSwitchColor, 5, trunk.source != Source::kStated};
      const std::string text = fmt::format("{} NVLinks, {}{}", trunk.count,
                                           bandwidth_text({trunk.bandwidth_gbs, 0, trunk.source}),
                                           trunk.source == Source::kStated ? "" : " (assumed)");
      double x = 0;
      double y = 0;
      if (p.y == q.y) {
        x = (std::min(p.x2, q.x2) + std::max(p.x1, q.x1)) / 2;
        y = p.y + kBarHeight / 2;
        canvas->line(std::min(p.x2, q.x2), y, std::max(p.x1, q.x1), y, stroke);
        y += kBarHeight;
      } else {
        x = (std::max(p.x1, q.x1) + std::min(p.x2, q.x2)) / 2;
        canvas->line(x, p.y, x, q.y, stroke);
        y = (p.y + q.y + kBarHeight) / 2 + 4;
        x += 10;
      }
      canvas->text(x, y, text,
                   {kSmall, true, "#581c87", p.y == q.y ? Anchor::kMiddle : Anchor::kStart, true});
    }
  }

  void draw_wires(Canvas* canvas) const {
    for (const Wire& wire : wires_) {
      const double y = lanes_y_ + (static_cast<double>(wire.lane) + 0.5) * kLane;
      const double y1 = edge_y(*wire.a);
      const double y2 = edge_y(*wire.b);
      const double r = 6;
      const double direction = wire.x2 >= wire.x1 ? 1 : -1;
      const bool short_wire = std::abs(wire.x2 - wire.x1) < 2 * r;
      const std::string data =
          short_wire
              ? fmt::format("M{:.1f} {:.1f}V{:.1f}H{:.1f}V{:.1f}", wire.x1, y1, y, wire.x2, y2)
              : fmt::format(
                    "M{:.1f} {:.1f}V{:.1f}Q{:.1f} {:.1f} {:.1f} {:.1f}H{:.1f}"
                    "Q{:.1f} {:.1f} {:.1f} {:.1f}V{:.1f}",
                    wire.x1, y1, y1 < y ? y - r : y + r, wire.x1, y, wire.x1 + direction * r, y,
                    wire.x2 - direction * r, wire.x2, y, wire.x2, y2 < y ? y - r : y + r, y2);
      canvas->path(data, {kLinkColor, stroke_width(wire.link->edge.bandwidth_gbs),
                          wire.link->edge.source != Source::kStated});
    }
    for (const Wire& wire : wires_) {
      const double y = lanes_y_ + (static_cast<double>(wire.lane) + 0.5) * kLane;
      const double length = std::abs(wire.x2 - wire.x1);
      std::string text = fmt::format("{} × {}, {}", wire.link->count, title_of(wire.link->kind),
                                     bandwidth_text(wire.link->edge));
      if (text_width(text, kSmall) > length - 16) text = bandwidth_text(wire.link->edge);
      if (text_width(text, kSmall) > length - 8) continue;
      canvas->text((wire.x1 + wire.x2) / 2, y + 3.5, text,
                   {kSmall, false, "#14532d", Anchor::kMiddle, true});
    }
  }

  const Topology& topology_;
  const NodeId machine_;
  std::vector<Box> boxes_;
  size_t split_ = 0;  // boxes from here on are in the lower row
  std::vector<SwitchGroup> groups_;
  std::map<NodeId, size_t> group_of_;
  std::map<NodeId, const Box*> cards_;
  std::vector<Wire> wires_;
  size_t lane_count_ = 0;
  size_t left_out_count_ = 0;  // direct links that are not drawn
  double lanes_y_ = 0;
  double x_ = 0;
  double y_ = 0;
  double width_ = 0;
  double height_ = 0;
};

// The bar at the left that joins several machines.
constexpr double kNetworkBar = 30;
constexpr double kNetworkArm = 120;

void draw_network_arm(Canvas* canvas, const Topology& topology, NodeId machine, double x,
                      double y) {
  double total_mbps = 0;
  size_t count = 0;
  for (const NodeId id : topology.all(NodeKind::kNic)) {
    if (topology.machine_of(id) != machine) continue;
    ++count;
    total_mbps += topology.node(id).nic->speed_mbps();
  }
  if (count == 0) {
    canvas->text(x + kNetworkArm / 2, y - 6, "no NIC",
                 {kSmall, false, "#b91c1c", Anchor::kMiddle, false});
    return;
  }
  canvas->line(x, y, x + kNetworkArm, y, {"#2563eb", stroke_width(total_mbps / 8000), false});
  const std::string rate = total_mbps > 0 ? fmt::format(", {:g} Gbit/s", total_mbps / 1000) : "";
  canvas->text(x + kNetworkArm / 2, y - 6,
               fmt::format("{} NIC{}{}", count, count == 1 ? "" : "s", rate),
               {kSmall, false, "#1e3a8a", Anchor::kMiddle, false});
}

}  // namespace

std::string to_svg(const Topology& topology) {
  Canvas canvas;
  if (topology.empty()) return canvas.finish(10, 10, "empty topology");
  const std::vector<NodeId> machines = topology.all(NodeKind::kMachine);
  const bool network = topology.node(0).kind == NodeKind::kNetwork;
  const double x = kMargin + (network ? kNetworkBar + kNetworkArm : 0);
  double y = kMargin;
  double width = 0;
  for (const NodeId machine : machines) {
    MachinePicture picture(topology, machine);
    picture.draw_at(&canvas, x, y);
    if (network) {
      draw_network_arm(&canvas, topology, machine, kMargin + kNetworkBar, y + picture.height() / 2);
    }
    width = std::max(width, picture.width());
    y += picture.height() + kMargin;
  }
  if (network) {
    canvas.rectangle(kMargin, kMargin, kNetworkBar, y - 2 * kMargin,
                     {"#dbeafe", {"#2563eb", 1.4, false}, 6});
    for (double letter_y = kMargin + 24; const char letter : std::string_view("Network")) {
      canvas.text(kMargin + kNetworkBar / 2, letter_y, std::string_view(&letter, 1),
                  {12, true, "#1e3a8a", Anchor::kMiddle, false});
      letter_y += 15;
    }
  }
  const std::string footer = fmt::format(
      "GB/s of payload in one direction; ~ and dashed lines: not stated, an estimate.  weir-topo, "
      "topology {:016x}",
      topology.hash());
  canvas.text(x, y + 6, footer, {kSmall, false, "#64748b", Anchor::kStart, false});
  width = std::max(width, text_width(footer, kSmall) + kMargin);
  return canvas.finish(x + width + kMargin, y + 20, "Topology of the machine");
}

}  // namespace weir::topo
