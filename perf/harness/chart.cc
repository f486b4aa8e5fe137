// SPDX-License-Identifier: Apache-2.0
#include "perf/harness/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "output/svg_canvas.h"
#include "perf/harness/options.h"

namespace weir::perf {
namespace {

using output::Anchor;
using output::Canvas;
using output::TextStyle;

constexpr double kWidth = 960;
constexpr double kHeight = 540;
constexpr double kLeft = 76;
constexpr double kRight = 200;
constexpr double kTop = 92;
constexpr double kBottom = 68;
constexpr double kLabelGap = 16;

// Dark enough for text on white, and distinguishable for people with red-green colour blindness.
constexpr std::array<const char*, 8> kColours = {"#1f6fb4", "#c8500a", "#1a7f5a", "#8a3d9b",
                                                 "#a5730a", "#b02a4c", "#3c5a70", "#5b6b1f"};

const char* colour_of(const ChartSeries& series) {
  return kColours[series.colour % kColours.size()];
}

constexpr double kTextSize = 13;
constexpr const char* kTextColor = "#333333";
constexpr const char* kPaleTextColor = "#555555";
constexpr const char* kAxisColor = "#999999";

// 1, 2 or 5 times a power of ten, so that about `count` of them reach `top`.
double nice_step(double top, int count) {
  const double raw = top / count;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= raw) return factor * power;
  }
  return 10 * power;
}

struct Label {
  const ChartSeries* series = nullptr;
  double y = 0;
};

// Moves labels apart that would overlap; keeps their order and stays within the plot.
void place_labels(std::vector<Label>& labels) {
  std::stable_sort(labels.begin(), labels.end(),
                   [](const Label& a, const Label& b) { return a.y < b.y; });
  double lowest = kTop;
  for (Label& label : labels) {
    label.y = std::max(label.y, lowest);
    lowest = label.y + kLabelGap;
  }
  double highest = kHeight - kBottom;
  for (size_t i = labels.size(); i-- > 0;) {
    if (labels[i].y <= highest) break;
    labels[i].y = highest;
    highest -= kLabelGap;
  }
}

// The positions of x values, and which of them are labelled.
class XAxis {
 public:
  XAxis(ChartScale scale, double least, double most) : scale_(scale) {
    if (scale == ChartScale::kBytes) {
      least_ = std::log2(least);
      most_ = std::log2(most);
      if (most_ - least_ < 1) {
        least_ = std::floor(least_) - 0.5;
        most_ = least_ + 2;
      }
    } else {
      least_ = least;
      most_ = most > least ? most : least + 1;
    }
  }

  double at(double x) const {
    const double place = scale_ == ChartScale::kBytes ? std::log2(x) : x;
    return kLeft + (place - least_) / (most_ - least_) * (kWidth - kLeft - kRight);
  }

  void draw_ticks(Canvas& canvas) const {
    if (scale_ == ChartScale::kBytes) {
      const int first = static_cast<int>(std::ceil(least_ - 1e-9));
      const int last = static_cast<int>(std::floor(most_ + 1e-9));
      const int step = std::max(1, (last - first + 9) / 10);
      for (int tick = first; tick <= last; tick += step) {
        if (tick >= 0) draw_tick(canvas, std::exp2(tick), format_bytes(size_t{1} << tick));
      }
      return;
    }
    const double step = std::max(1.0, nice_step(most_ - least_, 10));
    for (double x = std::ceil(least_ / step) * step; x <= most_; x += step) {
      draw_tick(canvas, x, fmt::format("{:.0f}", x));
    }
  }

 private:
  void draw_tick(Canvas& canvas, double x, const std::string& text) const {
    canvas.line(at(x), kHeight - kBottom, at(x), kHeight - kBottom + 5, {.color = kAxisColor});
    canvas.text(at(x), kHeight - kBottom + 21, text,
                {.size_px = kTextSize, .color = kTextColor, .anchor = Anchor::kMiddle});
  }

  ChartScale scale_;
  double least_ = 0;
  double most_ = 1;
};

double y_at(double y, double top) {
  return kHeight - kBottom - y / top * (kHeight - kTop - kBottom);
}

void draw_titles(Canvas& canvas, const Chart& chart) {
  const TextStyle pale{.size_px = kTextSize, .color = kPaleTextColor};
  TextStyle centred = pale;
  centred.anchor = Anchor::kMiddle;
  canvas.text(kLeft, 34, chart.title, {.size_px = 20, .bold = true, .color = "#111111"});
  canvas.text(kLeft, 56, chart.subtitle, pale);
  canvas.text(kLeft, kTop - 12, chart.y_label, pale);
  canvas.text(kLeft + (kWidth - kLeft - kRight) / 2, kHeight - 18, chart.x_label, centred);
}

void draw_y_lines(Canvas& canvas, double step, double top) {
  const int decimals = std::max(0, static_cast<int>(-std::floor(std::log10(step) + 1e-9)));
  for (int i = 0; i * step <= top * 1.0001; ++i) {
    const double y = y_at(i * step, top);
    canvas.line(kLeft, y, kWidth - kRight, y, {.color = i == 0 ? kAxisColor : "#e4e4e4"});
    canvas.text(kLeft - 10, y + 4.5, fmt::format("{:.{}f}", i * step, decimals),
                {.size_px = kTextSize, .color = kTextColor, .anchor = Anchor::kEnd});
  }
}

void draw_line(Canvas& canvas, const ChartSeries& series, const XAxis& x_axis, double top) {
  std::string path;
  for (const ChartPoint& p : series.points) {
    path +=
        fmt::format("{}{:.1f},{:.1f}", path.empty() ? "M" : " L", x_axis.at(p.x), y_at(p.y, top));
  }
  canvas.path(path, {.color = colour_of(series), .width_px = 2, .dashed = series.dashed});
  for (const ChartPoint& p : series.points) {
    canvas.circle(x_axis.at(p.x), y_at(p.y, top), 3.5,
                  {.fill = colour_of(series), .stroke = {.color = "#ffffff"}}, p.title);
  }
}

void draw_label_at_end(Canvas& canvas, const Label& label, const XAxis& x_axis, double top) {
  const ChartPoint& end = label.series->points.back();
  const char* colour = colour_of(*label.series);
  const double label_x = kWidth - kRight + 22;
  canvas.line(x_axis.at(end.x) + 6, y_at(end.y, top), label_x - 5, label.y,
              {.color = colour, .opacity = 0.45});
  canvas.text(label_x, label.y + 4.5, label.series->label, {.size_px = kTextSize, .color = colour});
}

}  // namespace

std::string chart_svg(const Chart& chart) {
  double least = 1e300, most = 0, top = 0;
  for (const ChartSeries& series : chart.series) {
    for (const ChartPoint& p : series.points) {
      least = std::min(least, p.x);
      most = std::max(most, p.x);
      top = std::max(top, p.y);
    }
  }
  if (most == 0) least = most = 1;
  if (!(top > 0)) top = 1;
  const double step = nice_step(top, 6);
  top = std::ceil(top / step * 1.0001) * step;
  const XAxis x_axis(chart.x_scale, least, most);

  Canvas canvas;
  draw_titles(canvas, chart);
  draw_y_lines(canvas, step, top);
  x_axis.draw_ticks(canvas);
  std::vector<Label> labels;
  for (const ChartSeries& series : chart.series) {
    if (series.points.empty()) continue;
    draw_line(canvas, series, x_axis, top);
    labels.push_back({&series, y_at(series.points.back().y, top)});
  }
  place_labels(labels);
  for (const Label& label : labels) draw_label_at_end(canvas, label, x_axis, top);
  return canvas.finish(kWidth, kHeight, "");
}

}  // namespace weir::perf
