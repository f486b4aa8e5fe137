// SPDX-License-Identifier: Apache-2.0
// Which files are taken for plugins of NCCL, and what is said of the others.
#include <gtest/gtest.h>

#include "ncclnet/loaded_plugin.h"
#include "unit/ncclnet/net_end.h"

namespace weir::ncclnet {
namespace {

std::string broken(const std::string& name) {
  return WEIR_BROKEN_NET_PLUGINS "/libnccl-net-" + name + ".so";
}

void expect_refused(const std::string& plugin, int version, const std::string& word) {
  std::string reason;
  EXPECT_EQ(open_plugin(plugin, version, &reason), nullptr) << plugin;
  EXPECT_NE(reason.find(word), std::string::npos) << reason;
}

TEST(NcclNetLoading, TheNewestVersionIsTakenUnlessOneIsAskedFor) {
  std::string reason;
  LoadedPlugin* newest = open_plugin(WEIR_NET_PLUGIN, 0, &reason);
  ASSERT_NE(newest, nullptr) << reason;
  EXPECT_EQ(newest->version(), 12);
  EXPECT_STREQ(newest->name(), "weir");
  EXPECT_NE(newest->file().find("libnccl-net-weir.so"), std::string::npos);
  EXPECT_EQ(open_plugin(WEIR_NET_PLUGIN, 0, &reason), newest);
  for (int version = kVersionMin; version <= kVersionMax; ++version) {
    LoadedPlugin* plugin = open_plugin(WEIR_NET_PLUGIN, version, &reason);
    ASSERT_NE(plugin, nullptr) << reason;
    EXPECT_EQ(plugin->version(), version);
  }
}

TEST(NcclNetLoading, WhatIsNoPluginIsRefusedWithFileAndReason) {
  expect_refused("/nonexistent/libnccl-net.so", 0, "/nonexistent/libnccl-net.so");
  expect_refused("surely-not-here", 0, "libnccl-net-surely-not-here.so");
  expect_refused("libm.so.6", 0, "it has none of ncclNetPlugin_v8 to _v12");
  expect_refused(broken("old"), 0, "it has none of ncclNetPlugin_v8 to _v12");
  expect_refused(broken("failing"), 9, "it has no ncclNetPlugin_v9");
  expect_refused(WEIR_NET_PLUGIN, 7, "it has no ncclNetPlugin_v7");
  expect_refused(broken("missing"), 0, "its ncclNetPlugin_v12 has no finalize");
  expect_refused(broken("nameless"), 0, "its ncclNetPlugin_v12 has no usable name");
}

TEST(NcclNetLoading, AWarningOfThePluginIsHeardOnce) {
  std::string reason;
  LoadedPlugin* plugin = open_plugin(broken("failing"), 0, &reason);
  ASSERT_NE(plugin, nullptr) << reason;
  in_child([&] {
    setenv("WEIR_TEST_NET_FAILS", "init", 1);
    void* context = nullptr;
    EXPECT_EQ(plugin->init(1, &context), kSystemError);
    EXPECT_EQ(take_warning(), "init is out of order");
    EXPECT_EQ(take_warning(), "");
  });
}

}  // namespace
}  // namespace weir::ncclnet
