// SPDX-License-Identifier: Apache-2.0
#include "offload/kernels/worker_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <new>
#include <set>
#include <vector>

#include "offload/kernels/float_environment.h"

namespace {
std::atomic<uint64_t> allocations{0};
}  // namespace

void* operator new(size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace weir::offload {
namespace {

std::unique_ptr<WorkerPool> make(uint32_t threads, bool caller_helps = true,
                                 uint32_t spin_us = 50) {
  auto pool = WorkerPool::create(
      {.thread_count = threads, .caller_helps = caller_helps, .spin_us = spin_us});
  EXPECT_TRUE(pool.ok()) << pool.status().text();
  return pool.take();
}

TEST(WorkerPool, EveryElementRunsOnceInBlocksOfFixedBorders) {
  for (const uint32_t threads : {1u, 2u, 3u, 7u}) {
    for (const bool caller_helps : {true, false}) {
      const auto pool = make(threads, caller_helps);
      for (const uint64_t count : {0u, 1u, 9u, 10u, 11u, 1000u, 1003u}) {
        std::vector<std::atomic<uint32_t>> seen(count);
        std::atomic<uint32_t> bad{0};
        pool->parallel_for(count, 10, [&](uint64_t begin, uint64_t end) {
          if (begin % 10 != 0 || end != std::min(count, begin + 10)) ++bad;
          for (uint64_t i = begin; i < end; ++i) ++seen[i];
        });
        EXPECT_EQ(bad, 0u);
        for (const auto& times : seen) EXPECT_EQ(times, 1u);
      }
    }
  }
}

TEST(WorkerPool, ManyShortLoopsInARowAreAllWhole) {
  for (const uint32_t spin_us : {0u, 50u}) {
    const auto pool = make(4, true, spin_us);
    for (uint64_t round = 1; round <= 3000; ++round) {
      std::atomic<uint64_t> sum{0};
      const uint64_t count = round % 17 + 1;
      pool->parallel_for(count, 1, [&](uint64_t begin, uint64_t) { sum += begin + 1; });
      ASSERT_EQ(sum, count * (count + 1) / 2);
    }
  }
}

// Also where a worker has not seen the loop yet.
TEST(WorkerPool, EndsRightAfterALoop) {
  for (int round = 0; round < 5000; ++round) {
    const auto pool = WorkerPool::create({.thread_count = 4}).take();
    std::atomic<uint64_t> sum{0};
    pool->parallel_for(8, 1, [&](uint64_t begin, uint64_t end) { sum += end - begin; });
    ASSERT_EQ(sum.load(), 8u);
  }
}

TEST(WorkerPool, TheCallerCanDoSomethingElseMeanwhile) {
  const auto pool = make(2, false);
  for (int round = 0; round < 200; ++round) {
    std::atomic<uint64_t> ran{0};
    auto body = [&](uint64_t begin, uint64_t end) { ran += end - begin; };
    pool->start(1000, 7, body);
    while (!pool->done()) std::this_thread::yield();
    EXPECT_EQ(ran, 1000u);
    pool->wait();
  }
}

TEST(WorkerPool, ACallAllocatesNothing) {
  const auto pool = make(3);
  std::atomic<uint64_t> sum{0};
  uint64_t a = 1, b = 2, c = 3, d = 4;
  const auto loop = [&] {
    pool->parallel_for(
        100, 3, [&](uint64_t begin, uint64_t end) { sum += (end - begin) * (a + b + c + d); });
  };
  loop();
  const uint64_t before = allocations;
  for (int i = 0; i < 100; ++i) loop();
  EXPECT_EQ(allocations, before);
  EXPECT_EQ(sum, 101u * 100 * 10);
}

TEST(WorkerPool, SubnormalsAreZeroInsideAndTheCallersModeComesBack) {
  const auto pool = make(3);
  volatile float smallest = 1.2e-38f;
  const uint64_t before = FloatEnvironment::read();
  std::atomic<uint32_t> kept{0};
  pool->parallel_for(64, 1, [&](uint64_t, uint64_t) {
    volatile float half = smallest * 0.5f;
    if (half != 0) ++kept;
  });
#if defined(__x86_64__) || defined(__aarch64__)
  EXPECT_EQ(kept, 0u);
#endif
  EXPECT_EQ(FloatEnvironment::read(), before);
  volatile float half = smallest * 0.5f;
  EXPECT_NE(half, 0);
}

TEST(FloatEnvironment, RestoresRoundingModeAndExceptionFlags) {
  const uint64_t saved = FloatEnvironment::read();
#if defined(__x86_64__)
  const uint64_t odd = (saved & ~uint64_t{0x3f}) | 0x2000 | 0x10;  // downwards; underflow raised
#else
  const uint64_t odd = saved;
#endif
  FloatEnvironment::write(odd);
  uint64_t after = 0;
  {
    const FloatEnvironment environment;
    EXPECT_EQ(FloatEnvironment::read(), FloatEnvironment::kStepMode);
    volatile double inexact = 1.0;
    inexact = inexact / 3;
  }
  after = FloatEnvironment::read();
  FloatEnvironment::write(saved);
  EXPECT_EQ(after, odd);
}

}  // namespace
}  // namespace weir::offload
