// SPDX-License-Identifier: Apache-2.0
#include "perf/harness/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "perf/harness/options.h"

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

const char* colour_of(const ChartSeries& series) {
  return kColours[series.colour % kColours.size()];
}

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

// Where x values lie, and which of them are labelled.
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

  std::string ticks() const {
    std::string svg;
    if (scale_ == ChartScale::kBytes) {
      const int first = static_cast<int>(std::ceil(least_ - 1e-9));
      const int last = static_cast<int>(std::floor(most_ + 1e-9));
      const int step = std::max(1, (last - first + 9) / 10);
      for (int tick = first; tick <= last; tick += step) {
        if (tick >= 0) svg += mark(std::exp2(tick), format_bytes(size_t{1} << tick));
      }
      return svg;
    }
    const double step = std::max(1.0, nice_step(most_ - least_, 10));
    for (double x = std::ceil(least_ / step) * step; x <= most_; x += step)
      svg += mark(x, fmt::format("{:.0f}", x));
    return svg;
  }

 private:
  std::string mark(double x, const std::string& text) const {
    return fmt::format(
        "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\" stroke=\"#999\"/>\n"
        "<text x=\"{0:.1f}\" y=\"{3}\" text-anchor=\"middle\">{4}</text>\n",
        at(x), kHeight - kBottom, kHeight - kBottom + 5, kHeight - kBottom + 21, text);
  }

  ChartScale scale_;
  double least_ = 0;
  double most_ = 1;
};

double y_at(double y, double top) {
  return kHeight - kBottom - y / top * (kHeight - kTop - kBottom);
}

std::string frame(const Chart& chart) {
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\" font-family=\"system-ui, 'DejaVu Sans', Helvetica, Arial, sans-serif\" "
      "font-size=\"13\" fill=\"#333\">\n<rect width=\"{0}\" height=\"{1}\" fill=\"#fff\"/>\n",
      kWidth, kHeight);
  svg += fmt::format(
      "<text x=\"{}\" y=\"34\" font-size=\"20\" font-weight=\"600\" fill=\"#111\">{}"
      "</text>\n",
      kLeft, escape(chart.title));
  svg += fmt::format("<text x=\"{}\" y=\"56\" fill=\"#555\">{}</text>\n", kLeft,
                     escape(chart.subtitle));
  svg += fmt::format("<text x=\"{}\" y=\"{}\" fill=\"#555\">{}</text>\n", kLeft, kTop - 12,
                     escape(chart.y_label));
  svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" fill=\"#555\">{}</text>\n",
                     kLeft + (kWidth - kLeft - kRight) / 2, kHeight - 18, escape(chart.x_label));
  return svg;
}

std::string y_lines(double step, double top) {
  std::string svg;
  const int decimals = std::max(0, static_cast<int>(-std::floor(std::log10(step) + 1e-9)));
  for (int i = 0; i * step <= top * 1.0001; ++i) {
    const double y = y_at(i * step, top);
    svg += fmt::format("<line x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"/>\n",
                       kLeft, kWidth - kRight, y, y, i == 0 ? "#999" : "#e4e4e4");
    svg += fmt::format("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{:.{}f}</text>\n",
                       kLeft - 10, y + 4.5, i * step, decimals);
  }
  return svg;
}

std::string line(const ChartSeries& series, const XAxis& x_axis, double top) {
  std::string path;
  for (const ChartPoint& p : series.points)
    path +=
        fmt::format("{}{:.1f},{:.1f}", path.empty() ? "M" : " L", x_axis.at(p.x), y_at(p.y, top));
  std::string svg = fmt::format(
      "<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\" "
      "stroke-linejoin=\"round\"{}/>\n",
      path, colour_of(series), series.dashed ? " stroke-dasharray=\"6 4\"" : "");
  for (const ChartPoint& p : series.points) {
    svg += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"{}\" stroke=\"#fff\" "
        "stroke-width=\"1\"><title>{}</title></circle>\n",
        x_axis.at(p.x), y_at(p.y, top), colour_of(series), escape(p.title));
  }
  return svg;
}

std::string label_at_end(const Label& label, const XAxis& x_axis, double top) {
  const ChartPoint& end = label.series->points.back();
  const double label_x = kWidth - kRight + 22;
  return fmt::format(
             "<path d=\"M{:.1f},{:.1f} L{:.1f},{:.1f}\" stroke=\"{}\" stroke-opacity=\"0.45\" "
             "fill=\"none\"/>\n",
             x_axis.at(end.x) + 6, y_at(end.y, top), label_x - 5, label.y,
             colour_of(*label.series)) +
         fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"{}\">{}</text>\n", label_x,
                     label.y + 4.5, colour_of(*label.series), escape(label.series->label));
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

  std::string svg = frame(chart) + y_lines(step, top) + x_axis.ticks();
  std::vector<Label> labels;
  for (const ChartSeries& series : chart.series) {
    if (series.points.empty()) continue;
    svg += line(series, x_axis, top);
    labels.push_back({&series, y_at(series.points.back().y, top)});
  }
  place_labels(labels);
  for (const Label& label : labels) svg += label_at_end(label, x_axis, top);
  return svg + "</svg>\n";
}

}  // namespace weir::perf
