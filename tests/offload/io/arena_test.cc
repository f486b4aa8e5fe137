// SPDX-License-Identifier: Apache-2.0
#include "offload/io/arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <random>
#include <thread>
#include <vector>

#include "offload/disk/disk.h"

namespace weir::offload {
namespace {

constexpr uint64_t kBlock = kDiskAlignment;
constexpr uint64_t kMiB = 1 << 20;

uint64_t seed() {
  const char* text = std::getenv("WEIR_TEST_SEED");
  const uint64_t value = text != nullptr ? std::strtoull(text, nullptr, 0) : 31337;
  std::printf("WEIR_TEST_SEED=%llu\n", static_cast<unsigned long long>(value));
  return value;
}

uint64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  uint64_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * 4096;
}

TEST(Arena, NeverHandsOutMoreThanItsBudget) {
  const std::unique_ptr<Arena> arena = Arena::create({.budget_bytes = 10 * kBlock + 100}).take();
  EXPECT_EQ(arena->capacity_bytes(), 10 * kBlock);
  std::vector<ArenaBuffer> buffers;
  for (int i = 0; i < 10; ++i) buffers.push_back(arena->allocate(kBlock).take());
  const Result<ArenaBuffer> refused = arena->allocate(1);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::kNoMemory);
  EXPECT_NE(refused.status().text().find("40960"), std::string::npos) << refused.status().text();
  EXPECT_EQ(arena->allocate(~uint64_t{0}).status().code(), Code::kNoMemory);
  EXPECT_EQ(arena->refused_count(), 2u);
  EXPECT_EQ(arena->used_bytes(), 10 * kBlock);
  EXPECT_EQ(arena->buffer_count(), 10u);
  buffers.clear();
  EXPECT_EQ(arena->used_bytes(), 0u);
  EXPECT_EQ(arena->buffer_count(), 0u);
  EXPECT_EQ(arena->used_bytes_max(), 10 * kBlock);
  EXPECT_TRUE(arena->allocate(10 * kBlock).ok());  // in one piece again
  EXPECT_EQ(arena->allocate(0).status().code(), Code::kInvalidArgument);
}

TEST(Arena, ABudgetThatTheMachineDoesNotHaveIsRefusedAtTheStart) {
  const Result<std::unique_ptr<Arena>> arena = Arena::create({.budget_bytes = uint64_t{1} << 50});
  ASSERT_FALSE(arena.ok());
  EXPECT_EQ(arena.status().code(), Code::kNoMemory);
  EXPECT_NE(arena.status().text().find("1125899906842624"), std::string::npos);
  EXPECT_EQ(Arena::create({.budget_bytes = 4095}).status().code(), Code::kInvalidArgument);
}

TEST(Arena, EveryPageIsThereFromTheStartAndNoneMore) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer has memory of its own";
#endif
  constexpr uint64_t kBudget = 64 * kMiB;
  for (const bool huge_pages : {true, false}) {
    const uint64_t before = resident_bytes();
    const std::unique_ptr<Arena> arena =
        Arena::create({.budget_bytes = kBudget, .huge_pages = huge_pages}).take();
    // Reserved huge pages are not counted as resident.
    if (arena->describe().find("reserved huge pages") != std::string::npos &&
        arena->huge_bytes() == kBudget && resident_bytes() < before + kBudget / 2)
      continue;
    const uint64_t grown = resident_bytes() - before;
    EXPECT_GE(grown, kBudget - kMiB) << arena->describe();
    EXPECT_LE(grown, kBudget + kMiB) << arena->describe();
    if (!huge_pages) {
      EXPECT_EQ(arena->huge_bytes(), 0u) << arena->describe();
    }
    EXPECT_NE(arena->describe().find("pages"), std::string::npos);
  }
}

TEST(Arena, BuffersAreAlignedApartAndFoundAgain) {
  const std::unique_ptr<Arena> arena = Arena::create({.budget_bytes = 4 * kMiB}).take();
  std::mt19937_64 random(seed());
  struct Owned {
    ArenaBuffer buffer;
    unsigned char mark;
  };
  std::vector<Owned> owned;
  uint64_t used = 0;
  for (int step = 0; step < 5000; ++step) {
    if (random() % 2 == 0 && !owned.empty()) {
      const size_t at = random() % owned.size();
      const ArenaBuffer& buffer = owned[at].buffer;
      for (uint64_t i = 0; i < buffer.bytes(); i += kBlock / 2)
        ASSERT_EQ(buffer.data()[i], owned[at].mark) << step;
      used -= buffer.bytes();
      std::swap(owned[at], owned.back());
      owned.pop_back();
    } else {
      const uint64_t bytes = 1 + random() % (200 << 10);
      Result<ArenaBuffer> buffer = arena->allocate(bytes);
      if (!buffer.ok()) continue;
      ASSERT_EQ(reinterpret_cast<uintptr_t>(buffer.value().data()) % kBlock, 0u);
      ASSERT_GE(buffer.value().bytes(), bytes);
      ASSERT_LT(buffer.value().bytes(), bytes + kBlock);
      const auto mark = static_cast<unsigned char>(random());
      std::fill_n(buffer.value().data(), buffer.value().bytes(), mark);
      used += buffer.value().bytes();
      owned.push_back({buffer.take(), mark});
    }
    ASSERT_EQ(arena->used_bytes(), used);
    ASSERT_LE(used, arena->capacity_bytes());
  }
  owned.clear();
  EXPECT_TRUE(arena->allocate(4 * kMiB).ok());
}

TEST(Arena, AnAbandonedBufferStaysTaken) {
  const std::unique_ptr<Arena> arena = Arena::create({.budget_bytes = 2 * kBlock}).take();
  {
    ArenaBuffer lost = arena->allocate(kBlock).take();
    lost.abandon();
  }
  EXPECT_EQ(arena->used_bytes(), kBlock);
  EXPECT_FALSE(arena->allocate(2 * kBlock).ok());
}

TEST(Arena, MovedBuffersAreGivenBackOnce) {
  const std::unique_ptr<Arena> arena = Arena::create({.budget_bytes = 4 * kBlock}).take();
  ArenaBuffer a = arena->allocate(kBlock).take();
  ArenaBuffer b = arena->allocate(kBlock).take();
  a = std::move(b);
  EXPECT_EQ(arena->buffer_count(), 1u);
  ArenaBuffer c(std::move(a));
  c.reset();
  c.reset();
  EXPECT_EQ(arena->used_bytes(), 0u);
}

TEST(Arena, ThreadsShareIt) {
  const std::unique_ptr<Arena> arena = Arena::create({.budget_bytes = kMiB}).take();
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t)
    threads.emplace_back([&arena, t] {
      for (int i = 0; i < 500; ++i) {
        Result<ArenaBuffer> buffer =
            arena->allocate((1 + (t + static_cast<unsigned>(i)) % 7) * kBlock);
        if (buffer.ok()) buffer.value().data()[0] = static_cast<unsigned char>(t);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(arena->used_bytes(), 0u);
  EXPECT_TRUE(arena->allocate(kMiB).ok());
}

}  // namespace
}  // namespace weir::offload
