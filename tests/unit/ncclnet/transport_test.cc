// SPDX-License-Identifier: Apache-2.0
// What the conformance suite cannot ask of the transport ncclnet: which plugin it loads, and what
// it says of one that fails.
#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "core/plugin/registry.h"
#include "unit/ncclnet/net_end.h"
#include "unit/plugin/pair.h"

namespace weir::plugins {
namespace {

constexpr char kFailing[] = WEIR_BROKEN_NET_PLUGINS "/libnccl-net-failing.so";

const weir_transport_functions_t& ncclnet() {
  const auto found = plugin::find_transport("ncclnet");
  EXPECT_TRUE(found.ok()) << found.status().text();
  return *found.value();
}

void set_plugin(Pair* pair, const std::string& plugin) {
  for (Pair::End& end : pair->end) end.settings["WEIR_NCCL_NET_PLUGIN"] = plugin;
}

TEST(NcclNetTransport, IsViableWithAPluginThatCanBeLoaded) {
  static const char* plugin = nullptr;
  char reason[512] = "";
  weir_host_t host = {sizeof host, nullptr, [](void*, const char*) {},
                      [](void*, int, const char*) {},
                      [](void*, const char* name) -> const char* {
                        return std::string(name) == "WEIR_NCCL_NET_PLUGIN" ? plugin : nullptr;
                      }};
  EXPECT_EQ(ncclnet().viable(ncclnet().context, &host, reason, sizeof reason),
            WEIR_ERROR_UNSUPPORTED);
  EXPECT_NE(std::string(reason).find("WEIR_NCCL_NET_PLUGIN is not set"), std::string::npos);
  plugin = "/nonexistent.so";
  EXPECT_EQ(ncclnet().viable(ncclnet().context, &host, reason, sizeof reason),
            WEIR_ERROR_UNSUPPORTED);
  EXPECT_NE(std::string(reason).find("/nonexistent.so"), std::string::npos) << reason;
  plugin = WEIR_NET_PLUGIN;
  EXPECT_EQ(ncclnet().viable(ncclnet().context, &host, reason, sizeof reason), WEIR_OK) << reason;
  EXPECT_NE(std::string(reason).find("weir, version 12"), std::string::npos) << reason;
}

TEST(NcclNetTransport, WhatThePluginSaysOfItsFailureIsInTheText) {
  for (const std::string function : {"init", "devices", "getProperties", "listen", "connect",
                                     "accept", "regMr", "isend", "irecv", "test"}) {
    ncclnet::in_child([&] {
      setenv("WEIR_TEST_NET_FAILS", function.c_str(), 1);
      Pair pair(&plugins::ncclnet());
      set_plugin(&pair, kFailing);
      weir_result_t mine = pair.open(0), other = WEIR_OK;
      if (mine == WEIR_OK) {
        ASSERT_EQ(pair.open(1), WEIR_OK) << pair.end[1].error;
        std::thread helper([&] { other = pair.connect(1); });
        mine = pair.connect(0);
        helper.join();
        EXPECT_GE(other, WEIR_ERROR_INVALID_ARGUMENT);
      }
      EXPECT_GE(mine, WEIR_ERROR_INVALID_ARGUMENT) << function;
      // Who fails second may only see that the other has gone.
      const std::string text = pair.end[0].error + pair.end[1].error;
      EXPECT_NE(text.find(function + " gave ncclSystemError"), std::string::npos) << text;
      EXPECT_NE(text.find(function + " is out of order"), std::string::npos) << text;
    });
  }
}

TEST(NcclNetTransport, APluginWithoutADeviceForHostMemoryIsRefused) {
  for (const char* variable : {"WEIR_TEST_NET_NO_DEVICE", "WEIR_TEST_NET_ONLY_CUDA"}) {
    ncclnet::in_child([&] {
      setenv(variable, "1", 1);
      Pair pair(&plugins::ncclnet());
      set_plugin(&pair, kFailing);
      EXPECT_EQ(pair.open(0), WEIR_ERROR_UNSUPPORTED);
      EXPECT_NE(pair.end[0].error.find("devices supports host memory"), std::string::npos)
          << pair.end[0].error;
    });
  }
}

TEST(NcclNetTransport, AConnectionThatNeverComesEndsAtTheDeadlineWithTheRanksName) {
  ncclnet::in_child([] {
    setenv("WEIR_TEST_NET_NEVER", "1", 1);
    Pair pair(&plugins::ncclnet());
    set_plugin(&pair, kFailing);
    ASSERT_EQ(pair.open(0), WEIR_OK) << pair.end[0].error;
    ASSERT_EQ(pair.open(1), WEIR_OK) << pair.end[1].error;
    std::thread helper([&] { EXPECT_EQ(pair.connect(1, 900), WEIR_ERROR_TIMEOUT); });
    EXPECT_EQ(pair.connect(0, 900), WEIR_ERROR_TIMEOUT);
    helper.join();
    EXPECT_NE(pair.end[0].error.find("rank 1"), std::string::npos) << pair.end[0].error;
  });
}

// The plugin says that all is done, and gives nothing.
TEST(NcclNetTransport, WhoDoesNotGreetAsTheRankIsRefused) {
  ncclnet::in_child([] {
    Pair pair(&plugins::ncclnet());
    set_plugin(&pair, kFailing);
    ASSERT_EQ(pair.open(0), WEIR_OK) << pair.end[0].error;
    ASSERT_EQ(pair.open(1), WEIR_OK) << pair.end[1].error;
    weir_result_t other = WEIR_OK;
    std::thread helper([&] { other = pair.connect(1); });
    const weir_result_t mine = pair.connect(0);
    helper.join();
    EXPECT_TRUE(mine == WEIR_ERROR_REFUSED || other == WEIR_ERROR_REFUSED);
    EXPECT_NE((pair.end[0].error + pair.end[1].error).find("did not prove that it is that rank"),
              std::string::npos);
  });
}

TEST(NcclNetTransport, RanksWithDifferentPluginsAreToldSo) {
  ncclnet::in_child([] {
    Pair pair(&plugins::ncclnet());
    set_plugin(&pair, kFailing);
    pair.end[1].settings["WEIR_NCCL_NET_PLUGIN"] = WEIR_NET_PLUGIN;
    ASSERT_EQ(pair.open(0), WEIR_OK) << pair.end[0].error;
    ASSERT_EQ(pair.open(1), WEIR_OK) << pair.end[1].error;
    weir_result_t other = WEIR_OK;
    std::thread helper([&] { other = pair.connect(1); });
    EXPECT_EQ(pair.connect(0), WEIR_ERROR_MISMATCH);
    helper.join();
    EXPECT_EQ(other, WEIR_ERROR_MISMATCH);
    EXPECT_NE(pair.end[0].error.find("has loaded the plugin 'weir'"), std::string::npos)
        << pair.end[0].error;
  });
}

TEST(NcclNetTransport, WhoLeavesInOrderLeavesItsMessagesBehindForWhoComesLate) {
  Pair pair(&plugins::ncclnet());
  set_plugin(&pair, WEIR_NET_PLUGIN);
  pair.join();
  if (HasFatalFailure()) return;
  std::vector<unsigned char> in(1000);
  weir_transport_op_t ops[4] = {};
  for (int i = 0; i < 4; ++i) {
    const std::vector<unsigned char> out(1000, static_cast<unsigned char>(i + 1));
    ASSERT_EQ(pair.send(0, out.data(), out.size(), &ops[i]), WEIR_OK)
        << "a short message has its sender's buffer free at once";
  }
  pair.f.close(pair.end[0].instance);
  pair.end[0].instance = nullptr;
  // Longer than the transport waits for what has been sent, once it is waited for.
  for (int i = 0; i < 115; ++i) {
    EXPECT_EQ(pair.f.progress(pair.end[1].instance), WEIR_OK);
    EXPECT_EQ(pair.f.peer_alive(pair.end[1].instance, 0), WEIR_OK) << "leaving is not dying";
    usleep(10'000);
  }
  const auto receive = [&] {
    weir_transport_op_t op{};
    weir_result_t result = pair.recv(1, in.data(), in.size(), &op);
    const uint64_t end = monotonic_ns() + 10'000'000'000;
    while (result == WEIR_IN_PROGRESS && monotonic_ns() < end) {
      result = pair.f.test(pair.end[1].instance, &op);
    }
    return result;
  };
  for (int i = 0; i < 4; ++i) {
    ASSERT_EQ(receive(), WEIR_OK) << pair.end[1].error;
    EXPECT_EQ(in[999], i + 1);
  }
  EXPECT_EQ(receive(), WEIR_ERROR_PEER_LOST);
  EXPECT_NE(pair.end[1].error.find("rank 0 has closed the communicator"), std::string::npos)
      << pair.end[1].error;
}

}  // namespace
}  // namespace weir::plugins
