// SPDX-License-Identifier: Apache-2.0
#include "core/sim/machine_picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "core/sim/machine_layout.h"
#include "output/svg_canvas.h"

namespace weir::sim {
namespace {

using graph::LinkId;
using graph::VertexId;
using graph::VertexKind;

constexpr double kWidthMax = 2400;
constexpr double kMargin = 20;
constexpr double kTop = 84;
constexpr double kTextSize = 11;
constexpr size_t kBusiestShown = 5;
// Between the two directions of a link.
constexpr double kApart = 2.2;

// How a link is drawn that is busy for more than `above` of the time.
struct Grade {
  double above;
  const char* color;
  double width_px;
  const char* name;
};

// Width and darkness grow with the load, so that colours are not needed to tell it.
constexpr std::array<Grade, 6> kGrades = {{
    {-1, "#cbd5e1", 1, "not used"},
    {0, "#93c5fd", 1.4, "to 25 %"},
    {0.25, "#3b82f6", 1.8, "to 50 %"},
    {0.50, "#f59e0b", 2.2, "to 75 %"},
    {0.75, "#ea580c", 2.8, "to 90 %"},
    {0.90, "#991b1b", 3.4, "more"},
}};

class Picture {
 public:
  Picture(const Report& report, const Machine& machine)
      : report_(report),
        machine_(machine),
        graph_(*machine.graph),
        layout_(lay_out(graph_, kWidthMax)),
        place_of_(graph_.vertices().size(), nullptr),
        flipped_(graph_.vertices().size(), false) {
    for (PlacedHost& host : layout_.hosts) {
      move(&host.x, &host.y);
      for (PlacedVertex& vertex : host.vertices) {
        note(&vertex);
        flipped_[vertex.vertex] = host.flipped;
      }
    }
    for (PlacedVertex& vertex : layout_.networks) note(&vertex);
  }

  std::string draw(const std::string& title) {
    for (const PlacedHost& host : layout_.hosts) draw_host(host);
    // Busy links last, so that others do not hide them.
    for (size_t grade = 0; grade < kGrades.size(); ++grade) {
      for (LinkId id = 0; id < graph_.links().size(); ++id) {
        if (grade_of(id) == grade) draw_link(id);
      }
    }
    for (const PlacedHost& host : layout_.hosts) {
      for (const PlacedVertex& vertex : host.vertices) draw_vertex(vertex);
    }
    for (const PlacedVertex& vertex : layout_.networks) draw_vertex(vertex);
    const double head_width = draw_head(title);
    const double bottom = draw_busiest(kTop + layout_.height + 2 * kMargin);
    return canvas_.finish(std::max(kMargin + layout_.width, head_width) + kMargin, bottom, title);
  }

 private:
  static void move(double* x, double* y) {
    *x += kMargin;
    *y += kTop;
  }
  void note(PlacedVertex* vertex) {
    move(&vertex->x, &vertex->y);
    place_of_[vertex->vertex] = vertex;
  }

  size_t grade_of(LinkId id) const {
    const double share = report_.links[id].messages == 0 ? -0.5 : busy_share(report_, id);
    size_t grade = 0;
    while (grade + 1 < kGrades.size() && share > kGrades[grade + 1].above) ++grade;
    return grade;
  }

  void draw_host(const PlacedHost& host) {
    canvas_.rectangle(host.x, host.y, host.width, host.height,
                      {.fill = "#f8fafc", .stroke = {.color = "#94a3b8"}, .radius_px = 8});
    if (graph_.host_count() == 1) return;
    const double name_y = host.flipped ? host.y + host.height - 8 : host.y + 16;
    canvas_.text(host.x + 10, name_y, fmt::format("host {} (M{})", host.host, host.host),
                 {.size_px = kTextSize, .bold = true});
  }

  void draw_vertex(const PlacedVertex& it) {
    const graph::Vertex& vertex = graph_.vertices()[it.vertex];
    const bool is_rank = vertex.kind == VertexKind::kRank;
    const char* fill = is_rank                               ? "#dbeafe"
                       : vertex.kind == VertexKind::kCard    ? "#dcfce7"
                       : vertex.kind == VertexKind::kNetwork ? "#e2e8f0"
                       : vertex.kind == VertexKind::kSwitch  ? "#ede9fe"
                                                             : "#fef9c3";
    canvas_.rectangle(it.x, it.y, it.width, it.height,
                      {.fill = fill, .stroke = {.color = "#475569"}, .radius_px = 4});
    const output::TextStyle centered{.size_px = kTextSize, .anchor = output::Anchor::kMiddle};
    const auto line = [&](double y, const std::string& text) {
      canvas_.text(it.middle(), y, output::fit(text, it.width - 4, kTextSize), centered);
    };
    std::pair<std::string, std::string> lines = {vertex.name, ""};
    if (is_rank) {
      const std::string rank = fmt::format("rank {}", it.vertex);
      lines = {rank, vertex.name.ends_with(rank) ? "" : vertex.name};
    } else if (!it.is_bar) {
      lines = broken(vertex.name, it.width - 4);
    }
    if (lines.second.empty()) {
      line(it.y + it.height / 2 + 4, lines.first);
    } else {
      line(it.y + it.height / 2 - 3, lines.first);
      line(it.y + it.height / 2 + 11, lines.second);
    }
  }

  // In two lines if it does not fit into one: after the last space or colon that fits.
  static std::pair<std::string, std::string> broken(const std::string& name, double width) {
    if (output::text_width(name, kTextSize) <= width) return {name, ""};
    size_t at = 0;
    for (size_t i = 0; i + 1 < name.size(); ++i) {
      const bool fits = output::text_width(name.substr(0, i + 1), kTextSize) <= width;
      if (fits && (name[i] == ' ' || name[i] == ':')) at = i + 1;
    }
    if (at == 0) return {name, ""};
    return {name.substr(0, at), name.substr(at)};
  }

  // Where a line of `it` towards x ends.
  static double end_x(const PlacedVertex& it, double towards) {
    return it.is_bar ? std::clamp(towards, it.x + 4, it.x + it.width - 4) : it.middle();
  }

  void draw_link(LinkId id) {
    const graph::Link& link = graph_.links()[id];
    const PlacedVertex* from = place_of_[link.from];
    const PlacedVertex* to = place_of_[link.to];
    if (from == nullptr || to == nullptr) return;
    const Grade& grade = kGrades[grade_of(id)];
    const output::StrokeStyle stroke{.color = grade.color,
                                     .width_px = grade.width_px,
                                     .dashed = link.bandwidth == graph::kUnlimited};
    if (std::abs(from->y - to->y) < 1) {
      draw_arc(*from, *to, stroke);
      return;
    }
    const double x1 = end_x(*from, to->is_bar ? from->middle() : to->middle());
    const double x2 = end_x(*to, from->is_bar ? to->middle() : from->middle());
    const bool down = from->y < to->y;
    const double y1 = down ? from->y + from->height : from->y;
    const double y2 = down ? to->y : to->y + to->height;
    // Beside the line of the other direction.
    const double length = std::max(1.0, std::hypot(x2 - x1, y2 - y1));
    const double aside_x = kApart * (y1 - y2) / length;
    const double aside_y = kApart * (x2 - x1) / length;
    canvas_.line(x1 + aside_x, y1 + aside_y, x2 + aside_x, y2 + aside_y, stroke);
  }

  // Between vertices of one row: on the side of the network for ranks, on the other for others.
  void draw_arc(const PlacedVertex& from, const PlacedVertex& to,
                const output::StrokeStyle& stroke) {
    const bool below = graph_.is_rank(from.vertex) != flipped_[from.vertex];
    const double sign = below ? 1 : -1;
    const bool back = from.middle() > to.middle();
    const double aside = (back ? kApart : -kApart) * 2;
    const double x1 = arc_end(from, to) + aside;
    const double x2 = arc_end(to, from) + aside;
    const double y = below ? from.y + from.height : from.y;
    const double most = graph_.is_rank(from.vertex) ? kArcDepth : kUpperArcDepth;
    const double depth = std::min(most, 14 + std::abs(x2 - x1) / 9) + (back ? 4 : 0);
    canvas_.path(fmt::format("M{:.1f} {:.1f}C{:.1f} {:.1f} {:.1f} {:.1f} {:.1f} {:.1f}", x1, y, x1,
                             y + sign * depth, x2, y + sign * depth, x2, y),
                 stroke);
  }

  static double arc_end(const PlacedVertex& it, const PlacedVertex& other) {
    if (!it.is_bar) return it.middle();
    return other.x > it.x ? it.x + it.width - 12 : it.x + 12;
  }

  // Returns the right edge.
  double draw_head(const std::string& title) {
    canvas_.text(kMargin, 24, title, {.size_px = 15, .bold = true});
    std::string result = fmt::format("{} {}", report_.complete ? "finished after" : "stopped at",
                                     text_of_time(report_.total_ps));
    if (machine_.least_ns && report_.complete) {
      result += fmt::format(", {:.2f} times the cut bound",
                            static_cast<double>(report_.total_ps) / 1000 / *machine_.least_ns);
    }
    canvas_.text(kMargin, 43, result, {.size_px = 12});
    std::array<size_t, kGrades.size()> counts{};
    for (LinkId id = 0; id < graph_.links().size(); ++id) ++counts[grade_of(id)];
    double x = kMargin;
    const output::TextStyle text{.size_px = kTextSize};
    const std::string head = "link busy, of the time:";
    canvas_.text(x, 65, head, text);
    x += output::text_width(head, kTextSize) + 10;
    for (size_t i = 0; i < kGrades.size(); ++i) {
      const std::string name = fmt::format("{} ({})", kGrades[i].name, counts[i]);
      canvas_.line(x, 61, x + 22, 61, {.color = kGrades[i].color, .width_px = kGrades[i].width_px});
      canvas_.text(x + 27, 65, name, text);
      x += 27 + output::text_width(name, kTextSize) + 12;
    }
    canvas_.line(x, 61, x + 22, 61, {.color = "#64748b", .dashed = true});
    canvas_.text(x + 27, 65, "no limit", text);
    x += 27 + output::text_width("no limit", kTextSize);
    return std::max(x, kMargin + output::text_width(title, 15, true));
  }

  // Returns the lower edge.
  double draw_busiest(double y) {
    const output::TextStyle text{.size_px = kTextSize};
    if (layout_.hosts_left_out > 0) {
      canvas_.text(kMargin, y, fmt::format("hosts left out: {}", layout_.hosts_left_out), text);
      y += 18;
    }
    for (const LinkId id : busiest_links(report_, kBusiestShown)) {
      const graph::Link& link = graph_.links()[id];
      canvas_.text(kMargin, y,
                   fmt::format("{:.1f} %  {} -> {}, {:.4g} GB/s", 100 * busy_share(report_, id),
                               text_of_vertex(graph_, link.from), text_of_vertex(graph_, link.to),
                               static_cast<double>(link.bandwidth) / 1e6),
                   text);
      y += 16;
    }
    return y + 4;
  }

  const Report& report_;
  const Machine& machine_;
  const graph::LinkGraph& graph_;
  MachineLayout layout_;
  std::vector<const PlacedVertex*> place_of_;  // null: not drawn
  std::vector<bool> flipped_;
  output::Canvas canvas_;
};

}  // namespace

std::string machine_svg(const Report& report, const Machine& machine, const std::string& title) {
  return Picture(report, machine).draw(title);
}

}  // namespace weir::sim
