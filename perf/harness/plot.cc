// SPDX-License-Identifier: Apache-2.0
#include "perf/harness/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <vector>

namespace weir::perf {
namespace {

constexpr double kWidth = 960;
constexpr double kHeight = 540;
constexpr double kLeft = 76;
constexpr double kRight = 200;
constexpr double kTop = 92;
constexpr double kBottom = 68;
constexpr double kLabelGap = 16;

// Dark enough for text on white, and told apart by people who do not see red and green alike.
constexpr std::array<const char*, 8> kColours = {"#1f6fb4", "#c8500a", "#1a7f5a", "#8a3d9b",
                                                 "#a5730a", "#b02a4c", "#3c5a70", "#5b6b1f"};

struct Point {
  double bytes = 0;
  double bus_gbs = 0;
};

struct Series {
  std::string label;
  std::string colour;
  bool dashed = false;
  std::vector<Point> points;
  double label_y = 0;
};

std::string escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::vector<Series> make_series(const std::vector<Row>& rows) {
  struct Sum {
    double total = 0;
    int count = 0;
  };
  // Runs of the same point (several cycles) are averaged.
  std::vector<std::string> order;
  std::map<std::string, std::map<double, Sum>> sums[2];
  bool several_types = false;
  bool several_ops = false;
  bool several_roots = false;
  for (const Row& row : rows) {
    several_types |= row.type != rows[0].type;
    several_ops |= row.reduction != rows[0].reduction;
    several_roots |= row.root != rows[0].root;
  }
  for (const Row& row : rows) {
    std::string key;
    if (several_types) key += std::string(row.type->name) + ' ';
    if (several_ops) key += std::string(reduction_name(row.reduction)) + ' ';
    if (several_roots) key += fmt::format("root {} ", row.root);
    if (std::find(order.begin(), order.end(), key) == order.end()) order.push_back(key);
    for (int place = 0; place < 2; ++place) {
      const std::optional<Measurement>& m = place == 0 ? row.out_of_place : row.in_place;
      if (!m.has_value() || row.bytes == 0) continue;
      Sum& sum = sums[place][key][static_cast<double>(row.bytes)];
      sum.total += m->bus_gbs;
      ++sum.count;
    }
  }
  std::vector<Series> all;
  for (size_t i = 0; i < order.size(); ++i) {
    for (int place = 0; place < 2; ++place) {
      const auto& points = sums[place][order[i]];
      if (points.empty()) continue;
      Series series;
      series.label = order[i] + (place == 0 ? "out of place" : "in place");
      const size_t colour = order.size() == 1 ? static_cast<size_t>(place) : i;
      series.colour = kColours[colour % kColours.size()];
      series.dashed = order.size() > 1 && place == 1;
      for (const auto& [bytes, sum] : points)
        series.points.push_back({bytes, sum.total / sum.count});
      all.push_back(std::move(series));
    }
  }
  return all;
}

// 1, 2 or 5 times a power of ten, so that about `count` of them reach `top`.
double nice_step(double top, int count) {
  const double raw = top / count;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= raw) return factor * power;
  }
  return 10 * power;
}

// Moves labels apart that would overlap; keeps their order and stays within the plot.
void place_labels(std::vector<Series>& series) {
  std::vector<Series*> by_y;
  for (Series& s : series) by_y.push_back(&s);
  std::sort(by_y.begin(), by_y.end(),
            [](const Series* a, const Series* b) { return a->label_y < b->label_y; });
  const double bottom = kHeight - kBottom;
  double lowest = kTop;
  for (Series* s : by_y) {
    s->label_y = std::max(s->label_y, lowest);
    lowest = s->label_y + kLabelGap;
  }
  double highest = bottom;
  for (size_t i = by_y.size(); i-- > 0;) {
    if (by_y[i]->label_y <= highest) break;
    by_y[i]->label_y = highest;
    highest -= kLabelGap;
  }
}

}  // namespace

std::string plot_svg(const Report& report) {
  std::vector<Series> series = make_series(report.rows());
  double bytes_min = 1e300;
  double bytes_max = 0;
  double top = 0;
  for (const Series& s : series) {
    for (const Point& p : s.points) {
      bytes_min = std::min(bytes_min, p.bytes);
      bytes_max = std::max(bytes_max, p.bytes);
      top = std::max(top, p.bus_gbs);
    }
  }
  if (bytes_max == 0) bytes_min = bytes_max = 1;
  if (!(top > 0)) top = 1;
  const double step = nice_step(top, 6);
  top = std::ceil(top / step * 1.0001) * step;

  double log_min = std::log2(bytes_min);
  double log_max = std::log2(bytes_max);
  if (log_max - log_min < 1) {
    log_min = std::floor(log_min) - 0.5;
    log_max = log_min + 2;
  }
  const auto x_of = [&](double bytes) {
    return kLeft + (std::log2(bytes) - log_min) / (log_max - log_min) * (kWidth - kLeft - kRight);
  };
  const auto y_of = [&](double gbs) {
    return kHeight - kBottom - gbs / top * (kHeight - kTop - kBottom);
  };

  const RunInfo& info = report.info();
  std::string what;
  if (!report.rows().empty()) {
    const Row& first = report.rows().front();
    std::string type = first.type->name;
    std::string reduction = reduction_name(first.reduction);
    for (const Row& row : report.rows()) {
      if (row.type != first.type) type = "several types";
      if (row.reduction != first.reduction) reduction = "several reductions";
    }
    what = type + (first.reduction != Reduction::kNone ? ", " + reduction : "") + ", ";
  }
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\" font-family=\"system-ui, 'DejaVu Sans', Helvetica, Arial, sans-serif\" "
      "font-size=\"13\" fill=\"#333\">\n<rect width=\"{0}\" height=\"{1}\" fill=\"#fff\"/>\n",
      kWidth, kHeight);
  svg += fmt::format(
      "<text x=\"{}\" y=\"34\" font-size=\"20\" font-weight=\"600\" fill=\"#111\">{}"
      "</text>\n",
      kLeft, escape(info.program));
  svg += fmt::format("<text x=\"{}\" y=\"56\" fill=\"#555\">{}{} rank{} on {}, {}</text>\n", kLeft,
                     escape(what), info.rank_count, info.rank_count == 1 ? "" : "s",
                     escape(info.machine.processor), timestamp().substr(0, 10));
  svg += fmt::format("<text x=\"{}\" y=\"{}\" fill=\"#555\">bus bandwidth, GB/s</text>\n", kLeft,
                     kTop - 12);

  const int decimals = std::max(0, static_cast<int>(-std::floor(std::log10(step) + 1e-9)));
  for (int i = 0; i * step <= top * 1.0001; ++i) {
    const double y = y_of(i * step);
    svg += fmt::format("<line x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"/>\n",
                       kLeft, kWidth - kRight, y, y, i == 0 ? "#999" : "#e4e4e4");
    svg += fmt::format("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{:.{}f}</text>\n",
                       kLeft - 10, y + 4.5, i * step, decimals);
  }
  const int tick_first = static_cast<int>(std::ceil(log_min - 1e-9));
  const int tick_last = static_cast<int>(std::floor(log_max + 1e-9));
  const int tick_step = std::max(1, (tick_last - tick_first + 9) / 10);
  for (int tick = tick_first; tick <= tick_last; tick += tick_step) {
    if (tick < 0) continue;
    const double x = x_of(std::exp2(tick));
    svg += fmt::format(
        "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\" stroke=\"#999\"/>\n"
        "<text x=\"{0:.1f}\" y=\"{3}\" text-anchor=\"middle\">{4}</text>\n",
        x, kHeight - kBottom, kHeight - kBottom + 5, kHeight - kBottom + 21,
        format_bytes(size_t{1} << tick));
  }
  svg += fmt::format(
      "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" fill=\"#555\">size, bytes</text>\n",
      kLeft + (kWidth - kLeft - kRight) / 2, kHeight - 18);

  for (Series& s : series) s.label_y = y_of(s.points.back().bus_gbs);
  place_labels(series);
  for (const Series& s : series) {
    std::string path;
    for (const Point& p : s.points) {
      path +=
          fmt::format("{}{:.1f},{:.1f}", path.empty() ? "M" : " L", x_of(p.bytes), y_of(p.bus_gbs));
    }
    svg += fmt::format(
        "<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\" "
        "stroke-linejoin=\"round\"{}/>"
        "\n",
        path, s.colour, s.dashed ? " stroke-dasharray=\"6 4\"" : "");
    for (const Point& p : s.points) {
      svg += fmt::format(
          "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"{}\" stroke=\"#fff\" "
          "stroke-width=\"1\"><title>{}: {} B, {:.2f} GB/s</title></circle>\n",
          x_of(p.bytes), y_of(p.bus_gbs), s.colour, escape(s.label), p.bytes, p.bus_gbs);
    }
    const double end_x = x_of(s.points.back().bytes);
    const double end_y = y_of(s.points.back().bus_gbs);
    const double label_x = kWidth - kRight + 22;
    svg += fmt::format(
        "<path d=\"M{:.1f},{:.1f} L{:.1f},{:.1f}\" stroke=\"{}\" stroke-opacity=\"0.45\" "
        "fill=\"none\"/>\n",
        end_x + 6, end_y, label_x - 5, s.label_y, s.colour);
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"{}\">{}</text>\n", label_x,
                       s.label_y + 4.5, s.colour, escape(s.label));
  }
  return svg + "</svg>\n";
}

}  // namespace weir::perf
