// SPDX-License-Identifier: Apache-2.0
#include "core/comm/reports/health_report.h"

#include <gtest/gtest.h>

#include <vector>

namespace weir::comm {
namespace {

HealthReport a_report() {
  HealthReport report;
  report.state = engine::RankState::kFailed;
  report.code = 9;
  report.waits = true;
  report.gone = true;
  report.beat = 0x01020304;
  report.mark = 0xdeadbeef;
  report.sequence = 21;
  report.what = 0x0102030405060708;
  report.count = 1000;
  report.finished = 20;
  report.waited = {0, 3};
  report.blamed = {2};
  report.text = "rank 2 died";
  return report;
}

std::vector<unsigned char> bytes_of(const HealthReport& report) {
  std::vector<unsigned char> bytes(HealthReport::kBytesMax);
  bytes.resize(encode(report, bytes.data()));
  return bytes;
}

TEST(HealthReport, PassesThroughItsBytes) {
  for (const HealthReport& report : {HealthReport{}, a_report()}) {
    const std::vector<unsigned char> bytes = bytes_of(report);
    HealthReport read;
    ASSERT_TRUE(decode(bytes.data(), bytes.size(), 4, &read));
    EXPECT_EQ(read, report);
  }
}

TEST(HealthReport, IsCutToItsRoom) {
  HealthReport report = a_report();
  report.text.assign(5000, 'x');
  report.waited.assign(500, 1);
  report.blamed.assign(500, 2);
  const std::vector<unsigned char> bytes = bytes_of(report);
  EXPECT_EQ(bytes.size(), HealthReport::kBytesMax);
  HealthReport read;
  ASSERT_TRUE(decode(bytes.data(), bytes.size(), 4, &read));
  EXPECT_EQ(read.text.size(), HealthReport::kTextBytesMax);
  EXPECT_EQ(read.waited.size(), HealthReport::kWaitedRanksMax);
  EXPECT_EQ(read.blamed.size(), HealthReport::kBlamedMax);
}

TEST(HealthReport, WhatCannotBeIsRefused) {
  const std::vector<unsigned char> good = bytes_of(a_report());
  HealthReport read;
  for (size_t cut = 0; cut < good.size(); ++cut) {
    EXPECT_FALSE(decode(good.data(), cut, 4, &read)) << cut;
  }
  EXPECT_FALSE(decode(good.data(), good.size(), 3, &read)) << "a rank that is not";
  const struct {
    size_t at;
    unsigned char value;
    const char* what;
  } kBad[] = {{0, 'X', "magic"},
              {4, 1, "version"},
              {5, 0, "state"},
              {5, 5, "state"},
              {6, 13, "code"},
              {7, 2, "waits"},
              {48, 33, "waited"},
              {48, 1, "one rank less"},
              {50, 65, "blamed"},
              {52, 12, "text too long"},
              {53, 0xff, "text too long"},
              {54, 2, "gone"},
              {55, 1, "not zero"}};
  for (const auto& bad : kBad) {
    std::vector<unsigned char> bytes = good;
    bytes[bad.at] = bad.value;
    EXPECT_FALSE(decode(bytes.data(), bytes.size(), 4, &read)) << bad.what;
  }
}

TEST(HealthReport, ControlCharactersOfTheTextBecomeSpaces) {
  HealthReport report;
  report.text = "a\nb\x1b[31m";
  const std::vector<unsigned char> bytes = bytes_of(report);
  HealthReport read;
  ASSERT_TRUE(decode(bytes.data(), bytes.size(), 4, &read));
  EXPECT_EQ(read.text, "a b [31m");
}

}  // namespace
}  // namespace weir::comm
