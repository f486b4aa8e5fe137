// SPDX-License-Identifier: Apache-2.0
#include "weir_info/report.h"

#include <gtest/gtest.h>
#include <stdlib.h>

namespace weir::info {
namespace {

// Before the process reads its settings.
const bool kEnvironment = setenv("WEIR_FAILOVER", "tcp", 1) == 0;

TEST(Report, TellsWhatRanksWouldUseAndWhatItIsMadeOf) {
  ASSERT_TRUE(kEnvironment);
  const Report report = make_report();
  ASSERT_EQ(report.choices.size(), 3u) << report.settings_error;
  EXPECT_EQ(report.choices[0].ranks, "on one host");
  EXPECT_EQ(report.choices[0].transport, "shm") << report.choices[0].parts;
  EXPECT_EQ(report.choices[0].parts, "");
  EXPECT_EQ(report.choices[1].transport, "failover(tcp,tcp)");
  EXPECT_EQ(report.choices[1].parts, "failover(tcp,tcp): tcp first, tcp when it fails");
  EXPECT_EQ(report.choices[2].transport, "hosts(failover(tcp,tcp))");
  EXPECT_EQ(report.choices[2].parts,
            "hosts(failover(tcp,tcp)): failover(tcp,tcp) between hosts, shm within a host; "
            "failover(tcp,tcp): tcp first, tcp when it fails");
  for (const std::string& text : {text_of(report), json_of(report)}) {
    EXPECT_NE(text.find("shm within a host"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace weir::info
