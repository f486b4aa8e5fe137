// SPDX-License-Identifier: Apache-2.0
// The syntax of NCCL_SOCKET_IFNAME, and what the kernel is asked for.
#include "net/interfaces.h"

#include <gtest/gtest.h>

namespace weir::net {
namespace {

InterfaceFilter parsed(const std::string& text) {
  InterfaceFilter filter;
  std::string reason;
  EXPECT_TRUE(InterfaceFilter::parse(text, &filter, &reason)) << text << ": " << reason;
  return filter;
}

TEST(InterfaceFilter, NamesArePrefixes) {
  const InterfaceFilter filter = parsed("eth,ib1");
  EXPECT_TRUE(filter.allows("eth0"));
  EXPECT_TRUE(filter.allows("eth"));
  EXPECT_TRUE(filter.allows("ib12"));
  EXPECT_FALSE(filter.allows("ib0"));
  EXPECT_FALSE(filter.allows("lo"));
  EXPECT_TRUE(filter.asks_for("eth0"));
}

TEST(InterfaceFilter, AnEqualsSignMakesNamesExact) {
  const InterfaceFilter filter = parsed("=eth0,ib0");
  EXPECT_TRUE(filter.allows("eth0"));
  EXPECT_TRUE(filter.allows("ib0"));
  EXPECT_FALSE(filter.allows("eth01"));
  EXPECT_FALSE(filter.allows("eth"));
}

TEST(InterfaceFilter, ACaretExcludesAndAsksForNothing) {
  const InterfaceFilter prefixes = parsed("^docker,lo");
  EXPECT_FALSE(prefixes.allows("docker0"));
  EXPECT_FALSE(prefixes.allows("lo"));
  EXPECT_TRUE(prefixes.allows("eth0"));
  EXPECT_FALSE(prefixes.asks_for("eth0"));
  const InterfaceFilter exact = parsed("^=eth1");
  EXPECT_FALSE(exact.allows("eth1"));
  EXPECT_TRUE(exact.allows("eth10"));
}

TEST(InterfaceFilter, AnEmptyOneAllowsAllAndAsksForNone) {
  const InterfaceFilter filter = parsed("");
  EXPECT_TRUE(filter.allows("lo"));
  EXPECT_FALSE(filter.asks_for("lo"));
}

TEST(InterfaceFilter, WhatIsNoListOfNamesIsRefusedWithAReason) {
  for (const char* text :
       {"^", "=", "^=", ",", "eth0,,ib0", "a name", "eth/0", "\x01", "averyveryverylongname"}) {
    InterfaceFilter filter;
    std::string reason;
    EXPECT_FALSE(InterfaceFilter::parse(text, &filter, &reason)) << text;
    EXPECT_FALSE(reason.empty()) << text;
  }
}

TEST(InterfaceFilter, OurVariableGoesBeforeNccls) {
  InterfaceFilter filter;
  std::string reason;
  ASSERT_TRUE(filter_from("=a", "=b", &filter, &reason));
  EXPECT_TRUE(filter.allows("a"));
  ASSERT_TRUE(filter_from("", "=b", &filter, &reason));
  EXPECT_TRUE(filter.allows("b"));
  ASSERT_TRUE(filter_from(nullptr, nullptr, &filter, &reason));
  EXPECT_TRUE(filter.allows("anything"));
  EXPECT_FALSE(filter_from(nullptr, "^", &filter, &reason));
  EXPECT_NE(reason.find("NCCL_SOCKET_IFNAME"), std::string::npos) << reason;
}

TEST(Interfaces, OnlyAllowedOnesAreListedAndLoopbackComesLast) {
  std::vector<Interface> all;
  std::string reason;
  ASSERT_TRUE(list_interfaces(InterfaceFilter(), &all, &reason)) << reason;
  bool loopback_before = false;
  for (const Interface& one : all) {
    EXPECT_TRUE(one.address.is_host()) << one.name;
    EXPECT_FALSE(loopback_before && !one.is_loopback) << one.name;
    loopback_before = one.is_loopback;
  }
  std::vector<Interface> without;
  ASSERT_TRUE(list_interfaces(parsed("^=lo"), &without, &reason)) << reason;
  for (const Interface& one : without) EXPECT_NE(one.name, "lo");
  EXPECT_LE(without.size(), all.size());
}

TEST(HostIdentity, IsTheSameTwice) { EXPECT_EQ(this_host(), this_host()); }

}  // namespace
}  // namespace weir::net
