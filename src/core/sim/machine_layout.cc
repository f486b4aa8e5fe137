// SPDX-License-Identifier: Apache-2.0
#include "core/sim/machine_layout.h"

#include <algorithm>
#include <numeric>
#include <optional>

namespace weir::sim {
namespace {

using graph::kNone;
using graph::LinkGraph;
using graph::LinkId;
using graph::VertexId;
using graph::VertexKind;

constexpr double kGap = 10;
constexpr double kRowGap = 46;
constexpr double kBarHeight = 18;
constexpr double kPadding = 12;
constexpr double kTitle = 20;
constexpr double kHostGap = 24;
constexpr double kNetworkGap = 46;

bool is_above_leaves(VertexKind kind) {
  return kind == VertexKind::kPci || kind == VertexKind::kPciIn || kind == VertexKind::kPciOut ||
         kind == VertexKind::kMemory || kind == VertexKind::kAccelerator;
}

std::vector<VertexId> neighbours(const LinkGraph& graph, VertexId vertex) {
  std::vector<VertexId> all;
  for (const LinkId id : graph.links_from(vertex)) all.push_back(graph.links()[id].to);
  for (const LinkId id : graph.links_to(vertex)) all.push_back(graph.links()[id].from);
  return all;
}

// Places the vertices of one host, from its upper left corner, with the network below.
class HostLayout {
 public:
  HostLayout(const LinkGraph& graph, uint32_t host) : graph_(graph) {
    placed_.host = host;
    for (VertexId vertex = 0; vertex < graph.vertices().size(); ++vertex) {
      if (graph.vertices()[vertex].host == host) add(vertex);
    }
    const bool has_tree = !tree_.empty();
    if (has_tree) {
      leaves_.insert(leaves_.end(), cards_.begin(), cards_.end());
      cards_.clear();
    }
    sort_by_parent(&leaves_);
    const double y = kTitle + kPadding;
    const std::vector<std::vector<VertexId>> rows = tree_rows();
    const bool has_upper_arcs = std::any_of(rows.begin(), rows.end(),
                                            [&](const auto& row) { return has_links_within(row); });
    const double tree_top =
        y + (has_tree ? 0 : switch_height()) + (has_upper_arcs ? kUpperArcDepth * 0.75 : 0);
    const double leaf_y = tree_top + static_cast<double>(rows.size()) * (kVertexHeight + kRowGap);
    place_evenly(leaves_, leaf_y);
    for (size_t i = 0; i < rows.size(); ++i) {
      place_near_lower(rows[i], leaf_y - static_cast<double>(i + 1) * (kVertexHeight + kRowGap));
    }
    double bottom = leaf_y + kVertexHeight;
    if (has_links_within(leaves_)) bottom += kArcDepth * 0.75 + 4;
    if (has_tree) {
      if (!switches_.empty()) bottom += kRowGap / 2;
      bottom = place_switches(bottom);
    } else {
      place_switches(y);
    }
    if (!cards_.empty()) {
      place_near_lower(cards_, bottom + kRowGap);
      bottom += kRowGap + kVertexHeight;
    }
    finish(bottom);
  }

  PlacedHost take() { return std::move(placed_); }

 private:
  void add(VertexId vertex) {
    const VertexKind kind = graph_.vertices()[vertex].kind;
    if (kind == VertexKind::kSwitch) {
      switches_.push_back(vertex);
    } else if (kind == VertexKind::kCard) {
      cards_.push_back(vertex);
    } else if (is_above_leaves(kind)) {
      tree_.push_back(vertex);
    } else {
      leaves_.push_back(vertex);
    }
  }

  bool is_in_tree(VertexId vertex) const {
    const graph::Vertex& it = graph_.vertices()[vertex];
    return it.host == placed_.host && is_above_leaves(it.kind);
  }

  void sort_by_parent(std::vector<VertexId>* leaves) const {
    const auto parent = [&](VertexId leaf) {
      VertexId first = kNone;
      for (const VertexId other : neighbours(graph_, leaf)) {
        if (is_in_tree(other)) first = std::min(first, other);
      }
      return first;
    };
    std::stable_sort(leaves->begin(), leaves->end(),
                     [&](VertexId a, VertexId b) { return parent(a) < parent(b); });
  }

  // The vertices above the leaves by their distance from the nearest leaf, the nearest first.
  std::vector<std::vector<VertexId>> tree_rows() {
    std::vector<std::vector<VertexId>> rows;
    std::vector<VertexId> row = leaves_;
    std::vector<bool> seen(graph_.vertices().size());
    while (!row.empty()) {
      std::vector<VertexId> next;
      for (const VertexId vertex : row) {
        for (const VertexId other : neighbours(graph_, vertex)) {
          if (!is_in_tree(other) || seen[other]) continue;
          seen[other] = true;
          next.push_back(other);
        }
      }
      std::sort(next.begin(), next.end());
      if (!next.empty()) rows.push_back(next);
      row = std::move(next);
    }
    return rows;
  }

  bool has_links_within(const std::vector<VertexId>& row) const {
    return std::any_of(row.begin(), row.end(), [&](VertexId vertex) {
      const std::vector<VertexId> all = neighbours(graph_, vertex);
      return std::any_of(all.begin(), all.end(), [&](VertexId other) {
        return std::find(row.begin(), row.end(), other) != row.end();
      });
    });
  }

  PlacedVertex& place(VertexId vertex, double x, double y) {
    placed_.vertices.push_back({vertex, x, y, kVertexWidth, kVertexHeight, false});
    return placed_.vertices.back();
  }

  const PlacedVertex* find(VertexId vertex) const {
    for (const PlacedVertex& it : placed_.vertices) {
      if (it.vertex == vertex) return &it;
    }
    return nullptr;
  }

  void place_evenly(const std::vector<VertexId>& row, double y) {
    double x = kPadding;
    for (const VertexId vertex : row) {
      place(vertex, x, y);
      x += kVertexWidth + kGap;
    }
  }

  // Each above or below the middle of those of its neighbours that have a place.
  void place_near_lower(const std::vector<VertexId>& row, double y) {
    std::vector<std::pair<double, VertexId>> wanted;
    for (const VertexId vertex : row) {
      double sum = 0;
      double count = 0;
      for (const VertexId other : neighbours(graph_, vertex)) {
        const PlacedVertex* it = find(other);
        if (it == nullptr) continue;
        sum += it->middle();
        ++count;
      }
      wanted.emplace_back(count == 0 ? kPadding : sum / count - kVertexWidth / 2, vertex);
    }
    std::stable_sort(wanted.begin(), wanted.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    // Groups of boxes that would overlap are moved apart around their common middle.
    struct Group {
      double begin;
      size_t first;
      size_t count;
    };
    constexpr double kStep = kVertexWidth + kGap;
    std::vector<Group> groups;
    for (size_t i = 0; i < wanted.size(); ++i) {
      groups.push_back({wanted[i].first, i, 1});
      while (groups.size() > 1) {
        Group& last = groups[groups.size() - 2];
        const Group& added = groups.back();
        if (last.begin + static_cast<double>(last.count) * kStep <= added.begin) break;
        last.count += added.count;
        double sum = 0;
        for (size_t k = 0; k < last.count; ++k) sum += wanted[last.first + k].first;
        last.begin = (sum - kStep * static_cast<double>(last.count * (last.count - 1)) / 2) /
                     static_cast<double>(last.count);
        groups.pop_back();
      }
    }
    for (const Group& group : groups) {
      for (size_t k = 0; k < group.count; ++k) {
        place(wanted[group.first + k].second, group.begin + kStep * static_cast<double>(k), y);
      }
    }
  }

  // Bars above or below their leaves, side by side where they do not overlap.
  struct Bar {
    VertexId vertex;
    double left;
    double right;
    size_t row;
  };

  std::vector<Bar> bars() const {
    std::vector<Bar> bars;
    for (const VertexId vertex : switches_) {
      std::optional<Bar> bar;
      for (const VertexId other : neighbours(graph_, vertex)) {
        const auto at = std::find(leaves_.begin(), leaves_.end(), other);
        if (at == leaves_.end()) continue;
        const double left =
            kPadding + static_cast<double>(at - leaves_.begin()) * (kVertexWidth + kGap);
        if (!bar) bar = Bar{vertex, left, left + kVertexWidth, 0};
        bar->left = std::min(bar->left, left);
        bar->right = std::max(bar->right, left + kVertexWidth);
      }
      if (!bar) bar = Bar{vertex, kPadding, kPadding + kVertexWidth, 0};
      const auto overlaps = [&](const Bar& other) {
        return other.row == bar->row && other.left < bar->right && bar->left < other.right;
      };
      while (std::any_of(bars.begin(), bars.end(), overlaps)) ++bar->row;
      bars.push_back(*bar);
    }
    return bars;
  }

  double switch_height() const {
    size_t rows = 0;
    for (const Bar& bar : bars()) rows = std::max(rows, bar.row + 1);
    return static_cast<double>(rows) * (kBarHeight + kGap) + (rows == 0 ? 0 : kRowGap - kGap);
  }

  // Returns the lower edge.
  double place_switches(double y) {
    double bottom = y;
    for (const Bar& bar : bars()) {
      PlacedVertex& it =
          place(bar.vertex, bar.left, y + static_cast<double>(bar.row) * (kBarHeight + kGap));
      it.width = bar.right - bar.left;
      it.height = kBarHeight;
      it.is_bar = true;
      bottom = std::max(bottom, it.y + it.height);
    }
    return bottom;
  }

  void finish(double bottom) {
    double left = kPadding;
    double right = kPadding + kVertexWidth;
    for (const PlacedVertex& it : placed_.vertices) {
      left = std::min(left, it.x);
      right = std::max(right, it.x + it.width);
    }
    for (PlacedVertex& it : placed_.vertices) it.x += kPadding - left;
    placed_.width = right - left + 2 * kPadding;
    placed_.height = bottom + kPadding;
  }

  const LinkGraph& graph_;
  std::vector<VertexId> leaves_, cards_, switches_, tree_;
  PlacedHost placed_;
};

// The network is on the other side.
void flip(PlacedHost* host) {
  host->flipped = true;
  for (PlacedVertex& it : host->vertices) it.y = host->height - it.y - it.height;
}

void move(PlacedHost* host, double x, double y) {
  host->x = x;
  host->y = y;
  for (PlacedVertex& it : host->vertices) {
    it.x += x;
    it.y += y;
  }
}

// Puts hosts side by side, their lower edges (or upper ones) at `y`; returns the right edge.
double place_row(std::vector<PlacedHost>* hosts, size_t first, size_t end, double y, bool above) {
  double x = 0;
  for (size_t i = first; i < end; ++i) {
    PlacedHost& host = (*hosts)[i];
    move(&host, x, above ? y - host.height : y);
    x += host.width + kHostGap;
  }
  return x - kHostGap;
}

}  // namespace

MachineLayout lay_out(const LinkGraph& graph, double width_max) {
  MachineLayout layout;
  double width = 0;
  // Of two rows.
  for (uint32_t host = 0; host < graph.host_count(); ++host) {
    PlacedHost placed = HostLayout(graph, host).take();
    if (host >= 2 && width + placed.width > 2 * width_max) break;
    width += placed.width + kHostGap;
    layout.hosts.push_back(std::move(placed));
  }
  const size_t count = layout.hosts.size();
  layout.hosts_left_out = graph.host_count() - static_cast<uint32_t>(count);
  const size_t above = width <= width_max ? count : (count + 1) / 2;
  double above_height = 0;
  double below_height = 0;
  for (size_t i = 0; i < count; ++i) {
    double& height = i < above ? above_height : below_height;
    height = std::max(height, layout.hosts[i].height);
  }
  layout.width = place_row(&layout.hosts, 0, above, above_height, true);
  layout.height = above_height;
  for (VertexId vertex = 0; vertex < graph.vertices().size(); ++vertex) {
    if (graph.vertices()[vertex].host != kNone) continue;
    layout.height += kNetworkGap;
    layout.networks.push_back({vertex, 0, layout.height, 0, kBarHeight, true});
    layout.height += kBarHeight;
  }
  if (above < count) {
    for (size_t i = above; i < count; ++i) flip(&layout.hosts[i]);
    layout.height += kNetworkGap;
    layout.width =
        std::max(layout.width, place_row(&layout.hosts, above, count, layout.height, false));
    layout.height += below_height;
  }
  for (PlacedVertex& network : layout.networks) network.width = layout.width;
  return layout;
}

}  // namespace weir::sim
