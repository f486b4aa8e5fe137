// SPDX-License-Identifier: Apache-2.0
#include "perf/harness/chart.h"

#include <gtest/gtest.h>

namespace weir::perf {
namespace {

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++count;
  return count;
}

Chart chart_of(ChartScale scale, std::vector<ChartPoint> points) {
  Chart chart;
  chart.title = "a < b";
  chart.x_scale = scale;
  chart.series = {{.label = "drawn & \"named\"", .points = std::move(points)},
                  {.label = "without points", .colour = 1}};
  return chart;
}

TEST(Chart, EveryPointIsDrawnAndTextIsEscaped) {
  for (const ChartScale scale : {ChartScale::kBytes, ChartScale::kLinear}) {
    const std::string svg = chart_svg(chart_of(scale, {{1, 2, "one"}, {2, 9, "t<o"}, {9, 4, "3"}}));
    EXPECT_EQ(count_of(svg, "<circle"), 3u);
    EXPECT_EQ(count_of(svg, "a &lt; b"), 1u);
    EXPECT_EQ(count_of(svg, "drawn &amp; &quot;named&quot;"), 1u);
    EXPECT_EQ(count_of(svg, "<title>t&lt;o</title>"), 1u);
    EXPECT_EQ(count_of(svg, "without points"), 0u);
  }
}

TEST(Chart, AHigherValueIsHigherAndALaterOneFurtherRight) {
  for (const ChartScale scale : {ChartScale::kBytes, ChartScale::kLinear}) {
    const std::string svg = chart_svg(chart_of(scale, {{4, 1, ""}, {8, 3, ""}}));
    double x[2] = {}, y[2] = {};
    size_t at = 0;
    for (int i = 0; i < 2; ++i) {
      at = svg.find("<circle", at + 1);
      ASSERT_NE(at, std::string::npos);
      ASSERT_EQ(std::sscanf(svg.c_str() + at, "<circle cx=\"%lf\" cy=\"%lf\"", &x[i], &y[i]), 2);
    }
    EXPECT_LT(x[0], x[1]);
    EXPECT_GT(y[0], y[1]);
  }
}

TEST(Chart, NothingOnePointAndZeroAreStillPictures) {
  for (const ChartScale scale : {ChartScale::kBytes, ChartScale::kLinear}) {
    for (const auto& points : {std::vector<ChartPoint>{}, {{7, 0, ""}}, {{1, 0.001, ""}}}) {
      const std::string svg = chart_svg(chart_of(scale, points));
      EXPECT_EQ(count_of(svg, "</svg>"), 1u);
      EXPECT_EQ(count_of(svg, "nan"), 0u) << svg;
      EXPECT_EQ(count_of(svg, "inf"), 0u) << svg;
    }
  }
}

}  // namespace
}  // namespace weir::perf
