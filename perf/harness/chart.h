// SPDX-License-Identifier: Apache-2.0
// A line chart as a whole SVG document: lines labelled at their ends, and each point with a title
// that is shown when the pointer is over it. Pure; thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace weir::perf {

struct ChartPoint {
  double x = 0;
  double y = 0;
  std::string title = {};
};

struct ChartSeries {
  std::string label;
  size_t colour = 0;  // index; wraps around the palette
  bool dashed = false;
  std::vector<ChartPoint> points = {};  // ascending x
};

enum class ChartScale : uint8_t {
  kBytes,   // x is logarithmic and labelled 64K, 1M, …
  kLinear,  // x begins at 0 or at the first point
};

struct Chart {
  std::string title;
  std::string subtitle;
  std::string x_label;
  std::string y_label;
  ChartScale x_scale = ChartScale::kBytes;
  std::vector<ChartSeries> series = {};  // without points: not drawn
};

// The y axis begins at 0. A chart without points has axes without lines.
std::string chart_svg(const Chart& chart);

}  // namespace weir::perf
