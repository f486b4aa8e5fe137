// SPDX-License-Identifier: Apache-2.0
#include "core/sim/lane_picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <vector>

#include "output/svg_canvas.h"

namespace weir::sim {
namespace {

constexpr double kWidth = 1100;
constexpr double kTop = 84;
constexpr double kRow = 22;
constexpr double kBar = 16;
constexpr double kTextSize = 11;
constexpr double kLabelMax = 220;

struct Kind {
  const char* name;
  const char* fill;
  const char* text;
};
// By Span::Kind, then transfers out and in.
constexpr std::array<Kind, 6> kKinds = {{
    {"send", "#1d4ed8", "#ffffff"},
    {"receive", "#15803d", "#ffffff"},
    {"copy or reduce", "#b45309", "#ffffff"},
    {"wait", "#e2e8f0", "#334155"},
    {"message out", "#93c5fd", "#0f172a"},
    {"message in", "#86efac", "#0f172a"},
}};
constexpr size_t kOut = 4;
constexpr size_t kIn = 5;
constexpr auto kCompute = static_cast<size_t>(Span::Kind::kCompute);

struct Bar {
  size_t kind;
  Rank peer;
  uint64_t begin_ps;
  uint64_t end_ps;
};

struct Row {
  std::string label;
  std::vector<Bar> bars;
};

// 1, 2 or 5 times a power of ten, such that there are at most ten ticks.
double tick_of(double whole_ns) {
  double tick = std::pow(10, std::floor(std::log10(std::max(whole_ns, 1e-3))) - 1);
  for (const double factor : {2.0, 2.5, 2.0, 2.0, 2.5, 2.0}) {
    if (whole_ns / tick <= 10) break;
    tick *= factor;
  }
  return tick;
}

std::string label_of(const Transfer& transfer, const Machine& machine) {
  if (transfer.link == graph::kNone || machine.graph == nullptr) {
    return transfer.out ? "port out" : "port in";
  }
  const graph::Link& link = machine.graph->links()[transfer.link];
  return transfer.out ? "to " + text_of_vertex(*machine.graph, link.to)
                      : "from " + text_of_vertex(*machine.graph, link.from);
}

std::vector<Row> rows_of(const Report& report, const Machine& machine) {
  std::vector<Row> rows;
  for (const Span& span : report.lanes) {
    while (rows.size() <= span.lane) rows.push_back({fmt::format("lane {}", rows.size()), {}});
    rows[span.lane].bars.push_back(
        {static_cast<size_t>(span.kind), span.peer, span.begin_ps, span.end_ps});
  }
  // Out before in.
  std::map<std::pair<bool, graph::LinkId>, Row> links;
  for (const Transfer& it : report.transfers) {
    Row& row = links[{!it.out, it.link}];
    if (row.label.empty()) row.label = label_of(it, machine);
    row.bars.push_back({it.out ? kOut : kIn, it.peer, it.begin_ps, it.end_ps});
  }
  for (auto& [key, row] : links) rows.push_back(std::move(row));
  return rows;
}

}  // namespace

std::string lanes_svg(const Report& report, Rank rank, const Machine& machine,
                      const std::string& title) {
  const std::vector<Row> rows = rows_of(report, machine);
  const output::TextStyle text{.size_px = kTextSize};
  const auto filled = [](const char* color) {
    return output::ShapeStyle{.fill = color, .stroke = {.width_px = 0}, .radius_px = 2};
  };
  double left = 60;
  for (const Row& row : rows) {
    left = std::max(left, std::min(kLabelMax, output::text_width(row.label, kTextSize)) + 24);
  }
  output::Canvas canvas;
  canvas.text(16, 24, fmt::format("rank {} of {}", rank, title), {.size_px = 15, .bold = true});
  double x = 16;
  for (const Kind& kind : kKinds) {
    canvas.rectangle(x, 36, 12, 12, filled(kind.fill));
    canvas.text(x + 17, 46, kind.name, text);
    x += 17 + output::text_width(kind.name, kTextSize) + 14;
  }
  const double bottom = kTop + static_cast<double>(rows.size()) * kRow;
  const double whole_ns = static_cast<double>(report.total_ps) / 1000;
  const double scale = report.total_ps == 0 ? 0 : kWidth / static_cast<double>(report.total_ps);
  const double tick_ns = tick_of(whole_ns);
  for (double at_ns = 0; at_ns <= whole_ns * (1 + 1e-9); at_ns += tick_ns) {
    const double at = left + at_ns * 1000 * scale;
    canvas.line(at, kTop - 6, at, bottom, {.color = "#cbd5e1"});
    const auto at_ps = static_cast<uint64_t>(std::llround(at_ns * 1000));
    canvas.text(at, kTop - 11, at_ps == 0 ? "0" : text_of_time(at_ps),
                {.size_px = 10, .color = "#475569", .anchor = output::Anchor::kMiddle});
    if (tick_ns <= 0) break;
  }
  double y = kTop;
  for (const Row& row : rows) {
    canvas.text(left - 8, y + 13, output::fit(row.label, kLabelMax, kTextSize),
                {.size_px = kTextSize, .anchor = output::Anchor::kEnd});
    for (const Bar& bar : row.bars) {
      const Kind& kind = kKinds[bar.kind];
      const double begin = left + static_cast<double>(bar.begin_ps) * scale;
      const double width =
          std::max(0.4, static_cast<double>(bar.end_ps - bar.begin_ps) * scale - 0.5);
      canvas.rectangle(begin, y + 1, width, kBar, filled(kind.fill));
      const std::string peer = fmt::format("{}", bar.peer);
      if (bar.kind == kCompute || output::text_width(peer, 10) + 3 > width) continue;
      canvas.text(begin + width / 2, y + 13, peer,
                  {.size_px = 10, .color = kind.text, .anchor = output::Anchor::kMiddle});
    }
    y += kRow;
  }
  canvas.text(left, bottom + 18,
              fmt::format("finished after {}; numbers are the ranks at the other end",
                          text_of_time(report.finish_ps[rank])),
              text);
  return canvas.finish(left + kWidth + 40, bottom + 30, title);
}

}  // namespace weir::sim
