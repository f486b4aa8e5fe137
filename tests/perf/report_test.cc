// SPDX-License-Identifier: Apache-2.0
#include "perf/harness/report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "perf/harness/plot.h"

namespace weir::perf {
namespace {

Row row_of(size_t bytes, double bus_gbs, std::optional<uint64_t> wrong) {
  Row row;
  row.bytes = bytes;
  row.count = bytes / 4;
  row.type = find_element_type("float");
  row.reduction = Reduction::kSum;
  Measurement m;
  m.time_us = static_cast<double>(bytes) / 100;
  m.algorithm_gbs = bus_gbs;
  m.bus_gbs = bus_gbs;
  m.wrong = wrong;
  row.out_of_place = m;
  return row;
}

Report report_of(const Options& options, const std::vector<Row>& rows) {
  RunInfo info;
  info.program = "all_reduce_perf";
  info.rank_count = 2;
  info.machine.processor = "A <fast> & \"quoted\" processor";
  info.ranks = {{0, 0, 10, 0, "host"}, {1, 1, 11, -1, "host"}};
  Report report(options, info);
  testing::internal::CaptureStdout();
  for (const Row& row : rows) report.add(row);
  testing::internal::GetCapturedStdout();
  return report;
}

TEST(Report, WrongElementsOfAllRowsAreAdded) {
  const Options options;
  const Report report = report_of(options, {row_of(8, 1, 0), row_of(16, 3, 5), row_of(32, 5, 2)});
  EXPECT_EQ(report.wrong_total(), 7u);
  EXPECT_DOUBLE_EQ(report.average_bus_gbs(), 3);
  testing::internal::CaptureStdout();
  report.print_footer();
  const std::string footer = testing::internal::GetCapturedStdout();
  EXPECT_NE(footer.find("# Out of bounds values : 7 FAILED"), std::string::npos);
  EXPECT_NE(footer.find("# Avg bus bandwidth    : 3"), std::string::npos);
}

TEST(Report, JsonHoldsMachineSettingsAndRows) {
  Options options;
  options.command_line = "all_reduce_perf -b 8";
  const Report report = report_of(options, {row_of(8, 1.5, std::nullopt)});
  const nlohmann::json j = nlohmann::json::parse(report.json());
  EXPECT_EQ(j["machine"]["processor"], "A <fast> & \"quoted\" processor");
  EXPECT_EQ(j["args"], "all_reduce_perf -b 8");
  ASSERT_EQ(j["results"].size(), 1u);
  EXPECT_EQ(j["results"][0]["size"], 8);
  EXPECT_EQ(j["results"][0]["out_of_place"]["bus_bw"], 1.5);
  EXPECT_TRUE(j["results"][0]["out_of_place"]["nwrong"].is_null());  // not checked is not zero
  EXPECT_TRUE(j["results"][0]["in_place"].is_null());
  EXPECT_EQ(j["ranks"][1]["pid"], 11);
}

TEST(Report, CsvHasOneLineARow) {
  const Options options;
  const Report report = report_of(options, {row_of(8, 1, 0), row_of(16, 2, 0)});
  std::istringstream lines(report.csv());
  std::string line;
  size_t count = 0;
  size_t commas = 0;
  while (std::getline(lines, line)) {
    const auto here = static_cast<size_t>(std::count(line.begin(), line.end(), ','));
    if (count == 0) commas = here;
    EXPECT_EQ(here, commas) << line;
    ++count;
  }
  EXPECT_EQ(count, 3u);
}

TEST(Plot, TextIsEscapedAndEveryPointIsDrawn) {
  const Options options;
  const Report report =
      report_of(options, {row_of(8, 1, 0), row_of(1024, 2, 0), row_of(4096, 9, 0)});
  const std::string svg = plot_svg(report);
  EXPECT_NE(svg.find("A &lt;fast&gt; &amp; &quot;quoted&quot; processor"), std::string::npos);
  size_t circles = 0;
  for (size_t at = 0; (at = svg.find("<circle", at)) != std::string::npos; ++at) ++circles;
  EXPECT_EQ(circles, 3u);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
}

TEST(Plot, NoRowsOnePointAndZeroBandwidthAreStillPictures) {
  const Options options;
  for (const auto& rows : {std::vector<Row>{}, {row_of(8, 0, 0)}, {row_of(0, 0, 0)}}) {
    const std::string svg = plot_svg(report_of(options, rows));
    EXPECT_NE(svg.find("</svg>"), std::string::npos);
    EXPECT_EQ(svg.find("nan"), std::string::npos) << svg;
    EXPECT_EQ(svg.find("inf"), std::string::npos) << svg;
  }
}

TEST(IterationStats, PercentilesAreOfTheSortedTimes) {
  std::vector<double> times;
  for (int i = 100; i >= 1; --i) times.push_back(i);
  const IterationStats stats = iteration_stats(times);
  EXPECT_EQ(stats.min_us, 1);
  EXPECT_EQ(stats.max_us, 100);
  EXPECT_EQ(stats.p50_us, 50);
  EXPECT_EQ(stats.p99_us, 99);
  EXPECT_DOUBLE_EQ(stats.mean_us, 50.5);
}

}  // namespace
}  // namespace weir::perf
