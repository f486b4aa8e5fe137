// SPDX-License-Identifier: Apache-2.0
#include "output/chrome_trace.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace weir::output {
namespace {

using Json = nlohmann::json;

TEST(ChromeTrace, IsAnEmptyTraceAtFirst) {
  const Json trace = Json::parse(ChromeTrace().finish());
  EXPECT_TRUE(trace.at("traceEvents").empty());
  EXPECT_TRUE(trace.at("otherData").is_object());
}

TEST(ChromeTrace, HoldsWhatItWasTold) {
  ChromeTrace trace;
  trace.about("dropped_events", uint64_t{3});
  trace.about("transport", std::string_view("shm"));
  trace.name_process(7, "rank 7");
  trace.name_row({7, 2}, "lane 1");
  const TraceArgument arguments[] = {
      {"bytes", ~uint64_t{0}}, {"failed", false}, {"peer", std::string_view("rank 1")}};
  trace.span({7, 2}, "send", "message", -1500, 250, arguments);
  trace.span({7, 2}, "bare", "message", 1, 2);
  trace.mark({7, 2}, "verdict", 2000);
  const Json document = Json::parse(trace.finish());
  EXPECT_EQ(document["otherData"], (Json{{"dropped_events", 3}, {"transport", "shm"}}));
  const Json& events = document["traceEvents"];
  ASSERT_EQ(events.size(), 5u);
  EXPECT_EQ(events[0]["ph"], "M");
  EXPECT_EQ(events[0]["name"], "process_name");
  EXPECT_EQ(events[0]["args"]["name"], "rank 7");
  EXPECT_EQ(events[1]["name"], "thread_name");
  EXPECT_EQ(events[1]["tid"], 2);
  EXPECT_EQ(events[2],
            (Json{{"ph", "X"},
                  {"pid", 7},
                  {"tid", 2},
                  {"name", "send"},
                  {"cat", "message"},
                  {"ts", -1.5},
                  {"dur", 0.25},
                  {"args", {{"bytes", ~uint64_t{0}}, {"failed", false}, {"peer", "rank 1"}}}}));
  EXPECT_FALSE(events[3].contains("args"));
  EXPECT_EQ(events[4]["ph"], "i");
  EXPECT_EQ(events[4]["ts"], 2.0);
}

TEST(ChromeTrace, TextMayHoldAnyBytes) {
  ChromeTrace trace;
  const std::string text("a\"b\\c\n\x01\xff\xc3\xa9\0z", 12);
  trace.name_process(0, text);
  const Json document = Json::parse(trace.finish());
  const auto name = document["traceEvents"][0]["args"]["name"].get<std::string>();
  EXPECT_EQ(name, std::string("a\"b\\c\n\x01\xef\xbf\xbd\xc3\xa9\0z", 14));
}

}  // namespace
}  // namespace weir::output
