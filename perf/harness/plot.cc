// SPDX-License-Identifier: Apache-2.0
#include "perf/harness/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "perf/harness/chart.h"

namespace weir::perf {
namespace {

std::vector<ChartSeries> make_series(const std::vector<Row>& rows) {
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
      if (row.bytes == 0) continue;
      Sum& sum = sums[place][key][static_cast<double>(row.bytes)];
      sum.total += (place == 0 ? row.out_of_place : row.in_place).bus_gbs;
      ++sum.count;
    }
  }
  std::vector<ChartSeries> all;
  for (size_t i = 0; i < order.size(); ++i) {
    for (int place = 0; place < 2; ++place) {
      const auto& points = sums[place][order[i]];
      if (points.empty()) continue;
      ChartSeries series;
      series.label = order[i] + (place == 0 ? "out of place" : "in place");
      series.colour = order.size() == 1 ? static_cast<size_t>(place) : i;
      series.dashed = order.size() > 1 && place == 1;
      for (const auto& [bytes, sum] : points) {
        const double gbs = sum.total / sum.count;
        series.points.push_back(
            {bytes, gbs, fmt::format("{}: {} B, {:.2f} GB/s", series.label, bytes, gbs)});
      }
      all.push_back(std::move(series));
    }
  }
  return all;
}

}  // namespace

std::string plot_svg(const Report& report) {
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
  Chart chart;
  chart.title = info.program;
  chart.subtitle =
      fmt::format("{}{} rank{} on {}, {}", what, info.rank_count, info.rank_count == 1 ? "" : "s",
                  info.machine.processor, timestamp().substr(0, 10));
  chart.x_label = "size, bytes";
  chart.y_label = "bus bandwidth, GB/s";
  chart.series = make_series(report.rows());
  return chart_svg(chart);
}

}  // namespace weir::perf
