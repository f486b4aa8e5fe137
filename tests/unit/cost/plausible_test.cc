// SPDX-License-Identifier: Apache-2.0
#include "core/cost/plausible.h"

#include <gtest/gtest.h>

namespace weir::cost {
namespace {

constexpr Circumstances kAll[] = {{false, false}, {true, false}, {false, true}, {true, true}};

TEST(Plausible, BuiltInFiguresAreUnderAllCircumstances) {
  for (const Circumstances& circumstances : kAll) {
    EXPECT_EQ(why_implausible(built_in_table(), circumstances), "");
  }
}

// A processor a tenth as fast in everything, as of a small board.
TEST(Plausible, FiguresOfASlowMachineAre) {
  Table table = built_in_table();
  table.times.copy_ns_per_byte = {0.2, 0.5, 1.0};
  for (ByRegime& figures : table.times.reduce_ns_per_byte) {
    for (double& figure : figures) figure *= 10;
  }
  LinkTimes& link = table.times.link(Link::kShmSharedCache);
  link = {.message_ns = 1300,
          .send_ns = 400,
          .recv_ns = 400,
          .signal_ns = 800,
          .slot_in_ns_per_byte = {0.3, 0.6, 1.2},
          .slot_out_ns_per_byte = {0.4, 0.6, 1.2},
          .window_ns_per_byte = {0.5, 0.6, 1.0}};
  for (const Circumstances& circumstances : kAll) {
    EXPECT_EQ(why_implausible(table, circumstances), "");
  }
}

TEST(Plausible, AMessageThatWaitedForACoreIsNot) {
  Table table = built_in_table();
  table.times.link(Link::kShmSharedCache).message_ns = 51'675;
  for (const bool shared : {false, true}) {
    const std::string reason =
        why_implausible(table, {.shared_cores = shared, .by_messages = false});
    EXPECT_NE(reason.find("shm_shared_cache.message_ns is 51675, and at most "), std::string::npos)
        << reason;
  }
  // A connection of the kernel's may take that long where ranks sleep.
  EXPECT_EQ(why_implausible(table, {.shared_cores = false, .by_messages = true}), "");
}

TEST(Plausible, RanksThatShareACoreHandItOver) {
  Table table = built_in_table();
  table.times.link(Link::kShmSharedCache).message_ns = 8'000;
  table.times.link(Link::kShmSharedCache).signal_ns = 60'000;
  EXPECT_NE(why_implausible(table, {.shared_cores = false, .by_messages = false}), "");
  EXPECT_EQ(why_implausible(table, {.shared_cores = true, .by_messages = false}), "");
}

TEST(Plausible, EveryFigureOfAHostHasABoundAndIsNamed) {
  const auto expect_named = [](const char* name, double* figure, const Table& table) {
    const double before = *figure;
    *figure = 1e6;
    for (const Circumstances& circumstances : kAll) {
      const std::string reason = why_implausible(table, circumstances);
      EXPECT_TRUE(reason.starts_with(std::string(name) + " is 1e+06")) << reason;
    }
    *figure = before;
  };
  Table table = built_in_table();
  TaskTimes& times = table.times;
  LinkTimes& link = times.link(Link::kShmSameSocket);
  expect_named("shm_same_socket.message_ns", &link.message_ns, table);
  expect_named("shm_same_socket.send_ns", &link.send_ns, table);
  expect_named("shm_same_socket.recv_ns", &link.recv_ns, table);
  expect_named("shm_same_socket.signal_ns", &link.signal_ns, table);
  expect_named("shm_same_socket.wire_ns_per_byte", &link.wire_ns_per_byte, table);
  for (size_t r = 0; r < kRegimeCount; ++r) {
    expect_named("shm_same_socket.slot_in_ns_per_byte", &link.slot_in_ns_per_byte[r], table);
    expect_named("shm_same_socket.slot_out_ns_per_byte", &link.slot_out_ns_per_byte[r], table);
    expect_named("shm_same_socket.window_ns_per_byte", &link.window_ns_per_byte[r], table);
    expect_named("copy_ns_per_byte", &times.copy_ns_per_byte[r], table);
    expect_named("reduce2_ns_per_byte", &times.reduce_ns_per_byte[0][r], table);
    expect_named("reduce16_ns_per_byte", &times.reduce_ns_per_byte[3][r], table);
  }
  // Networks are measured at each start, and may be as slow as they like.
  times.link(Link::kTcp).message_ns = 1e8;
  EXPECT_EQ(why_implausible(table, {}), "");
}

}  // namespace
}  // namespace weir::cost
