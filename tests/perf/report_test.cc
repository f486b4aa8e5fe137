// SPDX-License-Identifier: Apache-2.0
#include "perf/harness/report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
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
  row.in_place = m;
  row.in_place.wrong = wrong.has_value() ? std::optional<uint64_t>(0) : std::nullopt;
  return row;
}

Report report_of(const Options& options, const std::vector<Row>& rows) {
  RunInfo info;
  info.program = "all_reduce_perf";
  info.rank_count = 2;
  info.machine.processor = "A <fast> & \"quoted\" processor";
  info.ranks = {{0, 0, 0, 0, 10, 0, "host"}, {1, 0, 1, 1, 11, -1, "host"}};
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
  options.arguments = {"all_reduce_perf", "-b", "8"};
  const Report report = report_of(options, {row_of(8, 1.5, std::nullopt)});
  const nlohmann::json j = nlohmann::json::parse(report.json());
  EXPECT_EQ(j["machine"]["processor"], "A <fast> & \"quoted\" processor");
  EXPECT_EQ(j["args"], (std::vector<std::string>{"all_reduce_perf", "-b", "8"}));
  ASSERT_EQ(j["results"].size(), 1u);
  EXPECT_EQ(j["results"][0]["size"], 8);
  EXPECT_EQ(j["results"][0]["out_of_place"]["bus_bw"], 1.5);
  EXPECT_TRUE(j["results"][0]["out_of_place"]["nwrong"].is_null());  // not checked is not zero
  EXPECT_EQ(j["config"]["devices"][1]["pid"], 11);
}

// The keys and the types of version 3 of the JSON of nccl-tests 2.19 (src/util.cu).
TEST(Report, JsonHasTheKeysOfNcclTestsWithItsTypes) {
  Options options;
  options.per_iteration = true;
  Row row = row_of(8, 1.5, 0);
  IterationTimes each;
  each.times_us = {1, 2};
  each.process_times_us = {{1, 2}, {1, 1}};
  row.out_of_place.each = row.in_place.each = each;
  const nlohmann::json j = nlohmann::json::parse(report_of(options, {row}).json());
  using Type = nlohmann::json::value_t;
  const auto expect = [](const nlohmann::json& object,
                         const std::vector<std::pair<const char*, Type>>& keys) {
    for (const auto& [key, type] : keys) {
      ASSERT_TRUE(object.contains(key)) << key;
      EXPECT_EQ(object[key].type(), type) << key << " " << object[key];
    }
  };
  const Type number = Type::number_unsigned;
  expect(j, {{"version", number},
             {"start_time", Type::string},
             {"args", Type::array},
             {"env", Type::array},
             {"nccl_version", number},
             {"config", Type::object},
             {"results", Type::array},
             {"out_of_bounds", Type::object},
             {"average_bus_bandwidth", Type::object},
             {"errors", Type::array},
             {"end_time", Type::string}});
  EXPECT_EQ(j["version"], 3);
  expect(j["config"], {{"nthreads", number},
                       {"ngpus", number},
                       {"minimum_bytes", number},
                       {"maximum_bytes", number},
                       {"step_bytes", number},
                       {"warmup_iters", number},
                       {"iterations", number},
                       {"aggregated_iterations", number},
                       {"validation", number},
                       {"graph", number},
                       {"blocking_collectives", Type::string},
                       {"per_iter_timing", Type::string},
                       {"per_iter_skip", number},
                       {"parallel_init", Type::string},
                       {"devices", Type::array}});
  EXPECT_EQ(j["config"]["per_iter_timing"], "true");
  expect(j["config"]["devices"][1], {{"rank", number},
                                     {"group", number},
                                     {"pid", number},
                                     {"hostname", Type::string},
                                     {"device", number},
                                     {"device_hex", Type::string},
                                     {"device_info", Type::string}});
  expect(j["results"][0], {{"size", number},
                           {"count", number},
                           {"type", Type::string},
                           {"redop", Type::string},
                           {"root", Type::string},
                           {"out_of_place", Type::object},
                           {"out_of_place_per_iter", Type::object},
                           {"in_place", Type::object},
                           {"in_place_per_iter", Type::object},
                           {"actual_iterations", number},
                           {"experiment_name", Type::string}});
  EXPECT_EQ(std::stoi(j["results"][0]["root"].get<std::string>()), -1);
  for (const char* place : {"out_of_place", "in_place"}) {
    expect(j["results"][0][place], {{"time", Type::number_float},
                                    {"alg_bw", Type::number_float},
                                    {"bus_bw", Type::number_float},
                                    {"nwrong", number}});
    expect(j["results"][0][place + std::string("_per_iter")],
           {{"skipped_iterations", number},
            {"min_us", Type::number_float},
            {"max_us", Type::number_float},
            {"avg_us", Type::number_float},
            {"p50_us", Type::number_float},
            {"p95_us", Type::number_float},
            {"p99_us", Type::number_float},
            {"stdev_us", Type::number_float},
            {"cv_pct", Type::number_float},
            {"times_us", Type::array},
            {"per_process_max_times_us", Type::array}});
  }
  expect(j["out_of_bounds"], {{"count", number}, {"okay", Type::string}});
  EXPECT_EQ(j["out_of_bounds"]["okay"], "true");
  expect(j["average_bus_bandwidth"], {{"bandwidth", Type::number_float}, {"okay", Type::string}});
  EXPECT_EQ(j["average_bus_bandwidth"]["okay"], "unchecked");
}

TEST(Report, AFactorAndProcessorTimeReplaceTheirKeys) {
  Options options;
  options.step_factor = 2;
  options.report_cpu_time = true;
  Row row = row_of(8, 1.5, 0);
  row.out_of_place.cpu_time_us = 0.25;
  const nlohmann::json j = nlohmann::json::parse(report_of(options, {row}).json());
  EXPECT_EQ(j["config"]["step_factor"], 2.0);
  EXPECT_FALSE(j["config"].contains("step_bytes"));
  EXPECT_EQ(j["results"][0]["out_of_place"]["cpu_time"], 0.25);
}

TEST(Report, NoSecretIsWrittenToJson) {
  ASSERT_EQ(setenv("WEIR_SECRET", "sesame", 1), 0);
  ASSERT_EQ(setenv("NCCL_ALGO", "Ring", 1), 0);
  const Options options;
  const std::string json = report_of(options, {}).json();
  unsetenv("WEIR_SECRET");
  unsetenv("NCCL_ALGO");
  EXPECT_EQ(json.find("sesame"), std::string::npos);
  EXPECT_NE(json.find("NCCL_ALGO=Ring"), std::string::npos);
}

TEST(Report, NoNumberHasAnExponent) {
  const Options options;
  for (const double bus_gbs : {3e-7, 0.5, 2e8}) {
    Row row = row_of(8, bus_gbs, 0);
    row.out_of_place.time_us = 12345678901.25;
    row.out_of_place.wrong = 12345678;
    RunInfo info;
    info.program = "all_reduce_perf";
    Report report(options, info);
    testing::internal::CaptureStdout();
    report.add(row);
    report.print_footer();
    const std::string text = testing::internal::GetCapturedStdout();
    EXPECT_EQ(text.find("e+"), std::string::npos) << text;
    EXPECT_EQ(text.find("e-"), std::string::npos) << text;
    EXPECT_NE(text.find(" 12345678901  "), std::string::npos) << text;
    EXPECT_NE(text.find(" 12345678 "), std::string::npos) << text;
  }
}

TEST(Report, AsManyDecimalsAreShownAsFitTheColumn) {
  const Options options;
  const std::pair<double, const char*> cases[] = {{0.414, "     0.41  "},
                                                  {9999.994, "  9999.99  "},
                                                  {99999.96, "   100000  "},
                                                  {51406.12, "  51406.1  "},
                                                  {1234567.4, "  1234567  "}};
  for (const auto& [time_us, shown] : cases) {
    Row row = row_of(8, 1, 0);
    row.out_of_place.time_us = time_us;
    RunInfo info;
    Report report(options, info);
    testing::internal::CaptureStdout();
    report.add(row);
    const std::string text = testing::internal::GetCapturedStdout();
    EXPECT_NE(text.find(shown), std::string::npos) << text;
  }
}

TEST(Report, BandwidthIsComparedWithWhatIsWanted) {
  const std::pair<double, const char*> cases[] = {
      {0, ": 2\n"}, {2, ": 2 OK\n"}, {2.2, ": 2 OK\n"}, {2.3, ": 2 FAILED\n"}};
  for (const auto& [wanted, verdict] : cases) {
    Options options;
    options.bus_gbs_wanted = wanted;
    const Report report = report_of(options, {row_of(8, 2, 0)});
    testing::internal::CaptureStdout();
    report.print_footer();
    const std::string text = testing::internal::GetCapturedStdout();
    EXPECT_NE(text.find(verdict), std::string::npos) << text;
    EXPECT_EQ(report.bandwidth_suffices(), text.find("FAILED") == std::string::npos);
  }
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
  EXPECT_EQ(circles, 6u);  // out of place and in place
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
