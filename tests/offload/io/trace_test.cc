// SPDX-License-Identifier: Apache-2.0
#include "offload/io/trace.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "offload/io/counting_work.h"
#include "offload/io/disk_support.h"
#include "offload/io/step_disk.h"

namespace weir::offload {
namespace {

constexpr uint64_t kItemBytes = 4 * kDiskAlignment;

Trace traced(uint32_t events_max) {
  StepDisk disk(10 * kItemBytes, 8, 4);
  const auto arena = Arena::create({.budget_bytes = 4 * kItemBytes}).take();
  PipelineOptions options;
  options.buffer_bytes = kItemBytes;
  options.buffer_count = 4;
  options.transfer_bytes = 2 * kDiskAlignment;
  options.trace_events_max = events_max;
  const auto pipeline = Pipeline::create(&disk, arena.get(), options).take();
  CountingWork work(10, kItemBytes);
  PipelineReport report;
  EXPECT_TRUE(pipeline->run(&work, &report).ok());
  return report.trace;
}

TEST(Trace, OfARunHasEveryStageOfEveryItemAndRowsWithoutOverlap) {
  const Trace trace = traced(1000);
  EXPECT_EQ(trace.dropped_count, 0u);
  EXPECT_EQ(trace.events.size(), 10u * (2 + 1 + 2));
  std::map<std::pair<TraceKind, uint64_t>, uint64_t> counts;
  std::map<std::pair<TraceKind, uint32_t>, uint64_t> row_ends;
  for (const TraceEvent& event : trace.events) {
    ++counts[{event.kind, event.item}];
    EXPECT_LE(event.begin_ns, event.end_ns);
    uint64_t& row_end = row_ends[{event.kind, event.lane}];
    EXPECT_GE(event.begin_ns, row_end);
    row_end = event.end_ns;
  }
  for (uint64_t item = 0; item < 10; ++item) {
    EXPECT_EQ((counts[{TraceKind::kRead, item}]), 2u);
    EXPECT_EQ((counts[{TraceKind::kCompute, item}]), 1u);
    EXPECT_EQ((counts[{TraceKind::kWrite, item}]), 2u);
  }
}

TEST(Trace, KeepsToItsLimitAndSaysWhatItDropped) {
  const Trace trace = traced(7);
  EXPECT_EQ(trace.events.size(), 7u);
  EXPECT_EQ(trace.dropped_count, 43u);
  EXPECT_EQ(traced(0).events.size(), 0u);
}

TEST(Trace, IsJsonOfTheChromeTraceFormat) {
  const Trace trace = traced(1000);
  const TemporaryDirectory directory;
  ASSERT_TRUE(write_chrome_trace(directory / "trace.json", trace).ok());
  std::ifstream file(directory / "trace.json");
  const nlohmann::json json = nlohmann::json::parse(file);
  uint64_t complete = 0, names = 0;
  double earliest = 1e300;
  for (const auto& event : json.at("traceEvents")) {
    if (event.at("ph") == "M") {
      ++names;
      continue;
    }
    EXPECT_EQ(event.at("ph"), "X");
    EXPECT_GE(event.at("dur").get<double>(), 0);
    EXPECT_TRUE(event.at("tid").is_number());
    earliest = std::min(earliest, event.at("ts").get<double>());
    ++complete;
  }
  EXPECT_EQ(complete, trace.events.size());
  EXPECT_GE(names, 3u);
  EXPECT_EQ(earliest, 0);
  EXPECT_EQ(json.at("otherData").at("dropped_events"), 0);
  EXPECT_TRUE(nlohmann::json::accept(chrome_trace_json(Trace())));
  EXPECT_FALSE(write_chrome_trace(directory / "no/such", trace).ok());
}

}  // namespace
}  // namespace weir::offload
