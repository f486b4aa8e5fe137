// SPDX-License-Identifier: Apache-2.0
// Arenas: each rank allocates by itself, and calls use what it has got. WEIR_TRANSPORT and
// WEIR_HOOKS choose what carries them.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "support/ranks.h"

namespace weir::test {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

bool has_text(const char* part) {
  return std::string(weir_last_error(nullptr)).find(part) != std::string::npos;
}

weir_arena_t make_arena(weir_comm_t comm, size_t bytes) {
  weir_arena_t arena = nullptr;
  EXPECT_EQ(weir_arena_create(comm, bytes, &arena), WEIR_OK) << weir_last_error(comm);
  return arena;
}

float* take(weir_arena_t arena, size_t count) {
  void* memory = nullptr;
  EXPECT_EQ(weir_arena_alloc(arena, count * sizeof(float), &memory), WEIR_OK)
      << weir_last_error(nullptr);
  return static_cast<float*>(memory);
}

void give_back(weir_arena_t arena, std::initializer_list<float*> buffers) {
  for (float* buffer : buffers) EXPECT_EQ(weir_arena_free(arena, buffer), WEIR_OK);
}

weir_arena_usage_t info_of(weir_arena_t arena) {
  weir_arena_usage_t info = WEIR_ARENA_USAGE_INIT;
  EXPECT_EQ(weir_arena_info(arena, &info), WEIR_OK) << weir_last_error(nullptr);
  return info;
}

void expect_all(const float* values, size_t count, float expected, const char* what) {
  for (size_t i = 0; i < count; ++i) ASSERT_EQ(values[i], expected) << what << " at " << i;
}

TEST(Arena, GivesBuffersToEachRankAlone) {
  run_threads(2, [](int rank, weir_comm_t comm) {
    weir_arena_t arena = make_arena(comm, kMiB);
    // One rank allocates and frees what the other does not.
    std::vector<void*> taken;
    for (size_t i = 0; i < (rank == 0 ? 3u : 100u); ++i) {
      void* memory = nullptr;
      ASSERT_EQ(weir_arena_alloc(arena, 1 + 31 * i, &memory), WEIR_OK);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 64, 0u);
      std::memset(memory, static_cast<int>(i), 1 + 31 * i);
      taken.push_back(memory);
    }
    weir_arena_usage_t info = info_of(arena);
    EXPECT_EQ(info.bytes, kMiB);
    EXPECT_EQ(info.buffer_count, taken.size());
    EXPECT_EQ(info.used_bytes + info.largest_free_bytes, kMiB);
    for (size_t i = 0; i < taken.size(); ++i) {
      const auto* bytes = static_cast<unsigned char*>(taken[i]);
      for (size_t k = 0; k < 1 + 31 * i; ++k) ASSERT_EQ(bytes[k], i);
    }
    for (size_t i = 0; i < taken.size(); i += 2)
      ASSERT_EQ(weir_arena_free(arena, taken[i]), WEIR_OK);
    for (size_t i = 1; i < taken.size(); i += 2)
      ASSERT_EQ(weir_arena_free(arena, taken[i]), WEIR_OK);
    EXPECT_EQ(info_of(arena).largest_free_bytes, kMiB);
    EXPECT_EQ(weir_arena_destroy(arena), WEIR_OK);
  });
}

TEST(Arena, ExhaustionFailsTheAllocationAndNothingElse) {
  run_threads(2, [](int rank, weir_comm_t comm) {
    weir_arena_t arena = make_arena(comm, kMiB);
    float* held = take(arena, kMiB / 8);
    void* memory = held;
    ASSERT_EQ(weir_arena_alloc(arena, kMiB / 2 + 1, &memory), WEIR_ERROR_NO_MEMORY);
    EXPECT_EQ(memory, nullptr);
    EXPECT_TRUE(
        has_text("arena_alloc of 524289 bytes: 524288 of 1048576 bytes are in use by 1 "
                 "buffers, and the largest free piece has 524288 bytes"))
        << weir_last_error(nullptr);
    EXPECT_EQ(weir_arena_alloc(arena, SIZE_MAX, &memory), WEIR_ERROR_NO_MEMORY);
    std::fill(held, held + kMiB / 8, static_cast<float>(rank + 1));
    ASSERT_EQ(weir_all_reduce(comm, held, held, kMiB / 8, WEIR_FLOAT32, WEIR_SUM, nullptr), WEIR_OK)
        << weir_last_error(comm);
    expect_all(held, kMiB / 8, 3.0f, "after exhaustion");
    give_back(arena, {held});
    EXPECT_EQ(weir_arena_destroy(arena), WEIR_OK);
  });
}

TEST(Arena, WrongUseIsAnErrorWithAText) {
  run_threads(1, [](int, weir_comm_t comm) {
    weir_arena_t arena = nullptr;
    EXPECT_EQ(weir_arena_create(comm, 0, &arena), WEIR_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(weir_arena_create(comm, 63, &arena), WEIR_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(weir_arena_create(comm, kMiB, nullptr), WEIR_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(weir_arena_create(nullptr, kMiB, &arena), WEIR_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(arena, nullptr);
    void* memory = nullptr;
    EXPECT_EQ(weir_arena_alloc(nullptr, 64, &memory), WEIR_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(weir_arena_destroy(nullptr), WEIR_OK);

    arena = make_arena(comm, kMiB);
    EXPECT_EQ(weir_arena_alloc(arena, 0, &memory), WEIR_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(weir_arena_alloc(arena, 64, nullptr), WEIR_ERROR_INVALID_ARGUMENT);
    float* one = take(arena, 64);
    EXPECT_EQ(weir_arena_free(arena, &memory), WEIR_ERROR_INVALID_ARGUMENT);
    EXPECT_TRUE(has_text("does not lie in this arena")) << weir_last_error(nullptr);
    EXPECT_EQ(weir_arena_free(arena, one + 16), WEIR_ERROR_INVALID_ARGUMENT);
    EXPECT_TRUE(has_text("no buffer that is in use begins there")) << weir_last_error(nullptr);
    EXPECT_EQ(weir_mem_free(comm, one), WEIR_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(weir_arena_destroy(arena), WEIR_ERROR_INVALID_USAGE);
    EXPECT_TRUE(has_text("1 buffers with 256 bytes are in use")) << weir_last_error(nullptr);
    EXPECT_EQ(weir_arena_free(arena, one), WEIR_OK);
    EXPECT_EQ(weir_arena_free(arena, one), WEIR_ERROR_INVALID_ARGUMENT);
    EXPECT_TRUE(has_text("freed already")) << weir_last_error(nullptr);
    EXPECT_EQ(weir_arena_free(arena, nullptr), WEIR_OK);
    weir_arena_usage_t info{};
    EXPECT_EQ(weir_arena_info(arena, &info), WEIR_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(weir_arena_info(arena, nullptr), WEIR_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(weir_arena_destroy(arena), WEIR_OK);
  });
}

TEST(Arena, AWindowInItIsReachedAndKeepsItAlive) {
  run_threads(2, [](int rank, weir_comm_t comm) {
    weir_arena_t arena = make_arena(comm, kMiB);
    float* pad = take(arena, 16 + 100 * static_cast<size_t>(rank));
    float* memory = take(arena, 1024);
    std::fill(memory, memory + 1024, 0.0f);
    weir_window_t window = nullptr;
    ASSERT_EQ(weir_window_create(comm, memory, 4096, &window), WEIR_OK) << weir_last_error(comm);
    const auto value = static_cast<float>(rank + 1);
    ASSERT_EQ(weir_put(window, 1 - rank, 400, &value, sizeof value, nullptr), WEIR_OK)
        << weir_last_error(comm);
    ASSERT_EQ(weir_flush(comm, 1 - rank, nullptr), WEIR_OK);
    ASSERT_EQ(weir_barrier(comm, nullptr), WEIR_OK);
    EXPECT_EQ(memory[100], static_cast<float>(2 - rank));
    EXPECT_EQ(memory[101], 0.0f);
    give_back(arena, {memory, pad});
    EXPECT_EQ(weir_arena_destroy(arena), WEIR_ERROR_INVALID_USAGE);
    EXPECT_TRUE(has_text("lies in this arena")) << weir_last_error(nullptr);
    ASSERT_EQ(weir_window_destroy(window), WEIR_OK);
    EXPECT_EQ(weir_arena_destroy(arena), WEIR_OK) << weir_last_error(nullptr);
  });
}

TEST(Arena, ManyThreadsAllocateAtTheSameTime) {
  run_threads(1, [](int, weir_comm_t comm) {
    weir_arena_t arena = make_arena(comm, 16 * kMiB);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        std::vector<unsigned char*> mine;
        for (int i = 0; i < 2000; ++i) {
          void* memory = nullptr;
          ASSERT_EQ(weir_arena_alloc(arena, 64u * static_cast<unsigned>(1 + i % 7), &memory),
                    WEIR_OK);
          *static_cast<int*>(memory) = t * 10'000 + i;
          mine.push_back(static_cast<unsigned char*>(memory));
          if (i % 3 == 2) {
            ASSERT_EQ(weir_arena_free(arena, mine[mine.size() / 2]), WEIR_OK);
            mine.erase(mine.begin() + static_cast<std::ptrdiff_t>(mine.size() / 2));
          }
        }
        for (unsigned char* memory : mine) {
          EXPECT_EQ(*reinterpret_cast<int*>(memory) / 10'000, t);
          ASSERT_EQ(weir_arena_free(arena, memory), WEIR_OK);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(info_of(arena).largest_free_bytes, 16 * kMiB);
    EXPECT_EQ(weir_arena_destroy(arena), WEIR_OK);
  });
}

// At different offsets on each rank, so that nothing but what a rank tells can say where they lie.
struct Pair {
  Pair(weir_arena_t arena, int rank, size_t send_count, size_t recv_count)
      : arena_(arena), pad_(take(arena, 16 + 1000 * static_cast<size_t>(rank))) {
    recv = take(arena, recv_count);
    send = take(arena, send_count);
  }
  ~Pair() { give_back(arena_, {send, recv, pad_}); }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;
  float* send;
  float* recv;

 private:
  weir_arena_t arena_;
  float* pad_;
};

uint64_t touched_by(weir_arena_t arena, const std::function<void()>& calls) {
  const uint64_t before = info_of(arena).touched_bytes;
  calls();
  return info_of(arena).touched_bytes - before;
}

// What FSDP does in a step: gather in place, reduce to a shard; the least bytes are moved.
TEST(Arena, GatheringAndScatteringTouchTheLeastBytes) {
  for (const int n : {2, 4}) {
    run_processes(n, [n](int rank, weir_comm_t comm) {
      const auto ranks = static_cast<size_t>(n);
      constexpr size_t kCount = 100'000;
      weir_arena_t arena = make_arena(comm, 64 * kMiB);
      {
        const Pair buffers(arena, rank, ranks * kCount, ranks * kCount);
        float* own = buffers.recv + static_cast<size_t>(rank) * kCount;
        const uint64_t gathered = touched_by(arena, [&] {
          std::fill(own, own + kCount, static_cast<float>(rank));
          ASSERT_EQ(weir_all_gather(comm, own, buffers.recv, kCount, WEIR_FLOAT32, nullptr),
                    WEIR_OK)
              << weir_last_error(comm);
        });
        for (size_t p = 0; p < ranks; ++p) {
          expect_all(buffers.recv + p * kCount, kCount, static_cast<float>(p), "gathered");
        }
        std::fill(buffers.send, buffers.send + ranks * kCount, static_cast<float>(rank + 1));
        const uint64_t scattered = touched_by(arena, [&] {
          ASSERT_EQ(weir_reduce_scatter(comm, buffers.send, buffers.recv, kCount, WEIR_FLOAT32,
                                        WEIR_SUM, nullptr),
                    WEIR_OK)
              << weir_last_error(comm);
        });
        const int sum = n * (n + 1) / 2;
        expect_all(buffers.recv, kCount, static_cast<float>(sum), "scattered");
        if (info_of(arena).is_shared != 0) {
          const auto near_least = [](uint64_t touched, size_t least) {
            return touched >= least &&
                   static_cast<double>(touched) <= 1.1 * static_cast<double>(least);
          };
          EXPECT_PRED2(near_least, gathered, 2 * (ranks - 1) * kCount * sizeof(float));
          EXPECT_PRED2(near_least, scattered, (ranks + 1) * kCount * sizeof(float));
        }
      }
      EXPECT_EQ(weir_arena_destroy(arena), WEIR_OK);
    });
  }
}

// What a layer of experts does: blocks of any length, which lie anywhere in the buffers.
TEST(Arena, BlocksOfDifferentLengthsAreCopiedOnce) {
  constexpr size_t kUnit = 10'000;
  // From rank p to rank q; the blocks of a rank lie in its buffers from the last to the first.
  const auto length = [](size_t p, size_t q) { return kUnit * (p + 2 * q); };
  for (const size_t n : {2, 4}) {
    run_processes(static_cast<int>(n), [&](int rank, weir_comm_t comm) {
      const auto me = static_cast<size_t>(rank);
      weir_arena_t arena = make_arena(comm, 64 * kMiB);
      {
        const Pair buffers(arena, rank, 64 * kUnit, 64 * kUnit);
        std::vector<size_t> sent(n), sent_at(n), received(n), received_at(n);
        size_t send_end = 0, recv_end = 0, received_bytes = 0;
        for (size_t p = n; p-- > 0;) {
          sent[p] = length(me, p);
          received[p] = length(p, me);
          sent_at[p] = send_end;
          received_at[p] = recv_end;
          send_end += sent[p];
          recv_end += received[p];
          received_bytes += received[p] * sizeof(float);
          std::fill_n(buffers.send + sent_at[p], sent[p], static_cast<float>(100 * me + p));
        }
        for (int round = 0; round < 3; ++round) {
          std::fill_n(buffers.recv, recv_end, -1.0f);
          const uint64_t touched = touched_by(arena, [&] {
            ASSERT_EQ(
                weir_all_to_all_v(comm, buffers.send, sent.data(), sent_at.data(), buffers.recv,
                                  received.data(), received_at.data(), WEIR_FLOAT32, nullptr),
                WEIR_OK)
                << weir_last_error(comm);
          });
          for (size_t p = 0; p < n; ++p) {
            expect_all(buffers.recv + received_at[p], received[p], static_cast<float>(100 * p + me),
                       "exchanged");
          }
          if (info_of(arena).is_shared != 0) {
            EXPECT_EQ(touched, 2 * received_bytes);
          }
        }
      }
      EXPECT_EQ(weir_arena_destroy(arena), WEIR_OK);
    });
  }
}

TEST(Arena, ABufferOutsidePassesThroughSlotsInTheSameCall) {
  run_processes(3, [](int rank, weir_comm_t comm) {
    constexpr size_t kCount = 50'001;
    weir_arena_t arena = make_arena(comm, 16 * kMiB);
    {
      const Pair in(arena, rank, kCount, kCount);
      std::vector<float> send(kCount), recv(kCount);
      for (int outside = 0; outside < 8; ++outside) {
        for (const bool output_too : {false, true}) {
          const bool out = (outside >> rank & 1) != 0;
          float* from = out ? send.data() : in.send;
          float* to = out && output_too ? recv.data() : in.recv;
          std::fill(from, from + kCount, static_cast<float>(rank + outside));
          ASSERT_EQ(weir_all_reduce(comm, from, to, kCount, WEIR_FLOAT32, WEIR_SUM, nullptr),
                    WEIR_OK)
              << weir_last_error(comm);
          expect_all(to, kCount, static_cast<float>(3 + 3 * outside), "all_reduce");
          constexpr size_t kBlock = kCount / 3;
          ASSERT_EQ(weir_reduce_scatter(comm, from, to, kBlock, WEIR_FLOAT32, WEIR_SUM, nullptr),
                    WEIR_OK)
              << weir_last_error(comm);
          expect_all(to, kBlock, static_cast<float>(3 + 3 * outside), "reduce_scatter");
        }
      }
    }
    EXPECT_EQ(weir_arena_destroy(arena), WEIR_OK);
  });
}

// Of the arena of a rank that another one has destroyed.
TEST(Arena, ABufferInADestroyedArenaIsAMismatch) {
  const std::vector<int> statuses = run_processes_status(2, [](int rank, weir_comm_t comm) {
    ASSERT_EQ(weir_comm_set_timeout(comm, 20'000), WEIR_OK);
    weir_arena_t arena = make_arena(comm, kMiB);
    const bool shared = info_of(arena).is_shared != 0;
    float* memory = take(arena, 50'000);
    std::vector<float> outside(50'000, 1.0f);
    if (rank == 0) {
      give_back(arena, {memory});
      ASSERT_EQ(weir_arena_destroy(arena), WEIR_OK);
      memory = outside.data();
    }
    std::vector<float> all(100'000);
    const weir_result_t result =
        weir_all_gather(comm, memory, all.data(), 50'000, WEIR_FLOAT32, nullptr);
    if (!shared) {
      EXPECT_EQ(result, WEIR_OK);
    } else if (rank == 0) {
      EXPECT_EQ(result, WEIR_ERROR_MISMATCH);
      EXPECT_NE(std::string(weir_last_error(comm)).find("rank 1 lies in memory"), std::string::npos)
          << weir_last_error(comm);
    } else {
      EXPECT_NE(result, WEIR_OK);
    }
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
}

TEST(Arena, OfDifferentSizesIsAMismatchOnAllRanksAndTheCommunicatorGoesOn) {
  run_processes(3, [](int rank, weir_comm_t comm) {
    weir_arena_t arena = nullptr;
    EXPECT_EQ(weir_arena_create(comm, rank == 2 ? 2 * kMiB : kMiB, &arena), WEIR_ERROR_MISMATCH);
    const std::string text = weir_last_error(comm);
    EXPECT_NE(text.find("1048576 bytes on rank 0"), std::string::npos) << text;
    EXPECT_NE(text.find("2097152 bytes on rank 2"), std::string::npos) << text;
    void* memory = nullptr;
    EXPECT_EQ(weir_mem_alloc(comm, rank == 2 ? kMiB : 64, &memory), WEIR_ERROR_MISMATCH);
    arena = make_arena(comm, kMiB);
    EXPECT_EQ(weir_arena_destroy(arena), WEIR_OK);
  });
}

TEST(Arena, AgainstAnotherCallIsAMismatchThatNamesBoth) {
  run_processes(2, [](int rank, weir_comm_t comm) {
    ASSERT_EQ(weir_comm_set_timeout(comm, 60'000), WEIR_OK);
    weir_arena_t arena = nullptr;
    float value = 1;
    const weir_result_t result =
        rank == 0 ? weir_arena_create(comm, kMiB, &arena)
                  : weir_all_reduce(comm, &value, &value, 1, WEIR_FLOAT32, WEIR_SUM, nullptr);
    EXPECT_EQ(result, WEIR_ERROR_MISMATCH);
    const std::string text = weir_last_error(comm);
    EXPECT_NE(text.find("rank 0 called arena_create()"), std::string::npos) << text;
    EXPECT_NE(text.find("rank 1 called all_reduce("), std::string::npos) << text;
  });
}

// One rank waits for an operation before it creates the arena, the other one does so afterwards.
TEST(Arena, MayBeCreatedWhileAnOperationIsInFlight) {
  run_processes(2, [](int rank, weir_comm_t comm) {
    ASSERT_EQ(weir_comm_set_timeout(comm, 60'000), WEIR_OK);
    std::vector<float> data(1'000'000, 1.0f);
    weir_request_t request = nullptr;
    ASSERT_EQ(weir_all_reduce(comm, data.data(), data.data(), data.size(), WEIR_FLOAT32, WEIR_SUM,
                              &request),
              WEIR_OK);
    if (rank == 0) {
      EXPECT_EQ(weir_wait(&request), WEIR_OK) << weir_last_error(comm);
    }
    weir_arena_t arena = make_arena(comm, kMiB);
    if (rank == 1) {
      EXPECT_EQ(weir_wait(&request), WEIR_OK) << weir_last_error(comm);
    }
    expect_all(data.data(), data.size(), 2.0f, "beside the arena");
    EXPECT_EQ(weir_arena_destroy(arena), WEIR_OK);
  });
}

TEST(Arena, ServesAsOrdinaryMemoryInCommunicatorsThatAreSplitFromIt) {
  run_processes(4, [](int rank, weir_comm_t comm) {
    constexpr size_t kCount = 40'000;
    weir_comm_t shard = nullptr, replica = nullptr;
    ASSERT_EQ(weir_comm_split(comm, rank / 2, rank, nullptr, &shard), WEIR_OK);
    ASSERT_EQ(weir_comm_split(comm, rank % 2, rank, nullptr, &replica), WEIR_OK);
    weir_arena_t whole = make_arena(comm, 8 * kMiB);
    weir_arena_t arena = make_arena(shard, 8 * kMiB);
    {
      // As in hybrid sharding: reduced to a shard, which the replicas add up.
      const Pair own(arena, rank, 2 * kCount, kCount);
      const Pair other(whole, rank, 2 * kCount, kCount);
      for (const Pair* buffers : {&own, &other}) {
        std::fill(buffers->send, buffers->send + 2 * kCount, static_cast<float>(rank + 1));
        ASSERT_EQ(weir_reduce_scatter(shard, buffers->send, buffers->recv, kCount, WEIR_FLOAT32,
                                      WEIR_SUM, nullptr),
                  WEIR_OK)
            << weir_last_error(shard);
        ASSERT_EQ(weir_all_reduce(replica, buffers->recv, buffers->recv, kCount, WEIR_FLOAT32,
                                  WEIR_SUM, nullptr),
                  WEIR_OK)
            << weir_last_error(replica);
        expect_all(buffers->recv, kCount, 10.0f, "hybrid");
      }
    }
    EXPECT_EQ(weir_arena_destroy(arena), WEIR_OK);
    EXPECT_EQ(weir_comm_destroy(shard), WEIR_OK);
    EXPECT_EQ(weir_comm_destroy(replica), WEIR_OK);
    EXPECT_EQ(weir_arena_destroy(whole), WEIR_OK);
  });
}

TEST(Arena, OutlivesItsCommunicator) {
  const weir_unique_id_t id = make_id();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      weir_comm_t comm = nullptr;
      ASSERT_EQ(weir_comm_create(&comm, 2, &id, rank, nullptr), WEIR_OK);
      weir_arena_t arena = make_arena(comm, 8 * kMiB);
      float* memory = take(arena, 100'000);
      std::fill(memory, memory + 100'000, static_cast<float>(rank + 1));
      ASSERT_EQ(weir_all_reduce(comm, memory, memory, 100'000, WEIR_FLOAT32, WEIR_SUM, nullptr),
                WEIR_OK);
      const uint64_t touched = info_of(arena).touched_bytes;
      EXPECT_EQ(weir_comm_destroy(comm), WEIR_OK);
      expect_all(memory, 100'000, 3.0f, "after the communicator");
      float* more = take(arena, 200'000);
      std::fill(more, more + 200'000, 5.0f);
      expect_all(memory, 100'000, 3.0f, "beside another buffer");
      EXPECT_EQ(info_of(arena).touched_bytes, touched);
      give_back(arena, {memory, more});
      EXPECT_EQ(weir_arena_destroy(arena), WEIR_OK);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Arena, TakesMemoryWhenItIsTouchedAndReturnsIt) {
  const auto shared_kib = [] {
    std::ifstream status("/proc/self/status");
    std::string word;
    uint64_t value = 0;
    while (status >> word) {
      if (word == "RssShmem:" || word == "RssAnon:") {
        uint64_t one = 0;
        status >> one;
        value += one;
      }
    }
    return value;
  };
  run_processes(2, [&](int, weir_comm_t comm) {
    const auto files = [] {
      int count = 0;
      for (int fd = 0; fd < 1024; ++fd) count += fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
      return count;
    };
    // libfabric keeps 16 MiB for each connection, and makes it when the peer is first heard of:
    // the calls that an arena makes are made once before anything is measured.
    const std::vector<float> sent(100'000, 1.0f);
    std::vector<float> summed(sent.size());
    for (int round = 0; round < 4; ++round) {
      EXPECT_EQ(weir_arena_destroy(make_arena(comm, kMiB)), WEIR_OK);
      ASSERT_EQ(weir_all_reduce(comm, sent.data(), summed.data(), sent.size(), WEIR_FLOAT32,
                                WEIR_SUM, nullptr),
                WEIR_OK);
    }
    ASSERT_EQ(weir_barrier(comm, nullptr), WEIR_OK);
    const uint64_t before = shared_kib();
    const int files_before = files();
    weir_arena_t arena = make_arena(comm, size_t{4} << 30);
    EXPECT_LT(shared_kib(), before + 16 * 1024);
    float* memory = take(arena, 16 * kMiB);
    std::fill(memory, memory + 16 * kMiB, 1.0f);
    EXPECT_GE(shared_kib(), before + 60 * 1024);
    give_back(arena, {memory});
    EXPECT_EQ(weir_arena_destroy(arena), WEIR_OK);
    EXPECT_LT(shared_kib(), before + 16 * 1024);
    EXPECT_EQ(files(), files_before);
    ASSERT_EQ(weir_barrier(comm, nullptr), WEIR_OK);
  });
}

TEST(Arena, OfAParentIsRefusedInAChild) {
  run_processes(2, [](int rank, weir_comm_t comm) {
    weir_arena_t arena = make_arena(comm, kMiB);
    float* memory = take(arena, 1000);
    std::fill(memory, memory + 1000, 7.0f);
    const pid_t child = fork();
    if (child == 0) {
      void* more = nullptr;
      weir_arena_usage_t info = WEIR_ARENA_USAGE_INIT;
      bool good = memory[999] == 7.0f;
      good = good && weir_arena_alloc(arena, 64, &more) == WEIR_ERROR_INVALID_USAGE;
      good = good && has_text("child");
      good = good && weir_arena_free(arena, memory) == WEIR_ERROR_INVALID_USAGE;
      good = good && weir_arena_info(arena, &info) == WEIR_ERROR_INVALID_USAGE;
      if (rank == 0) good = good && weir_comm_destroy(comm) == WEIR_OK;
      good = good && weir_arena_destroy(arena) == WEIR_OK;
      if (rank == 1) good = good && weir_comm_destroy(comm) == WEIR_OK;
      _exit(good ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    expect_all(memory, 1000, 7.0f, "in the parent");
    give_back(arena, {memory});
    float* large = take(arena, 100'000);
    std::fill(large, large + 100'000, 1.0f);
    ASSERT_EQ(weir_all_reduce(comm, large, large, 100'000, WEIR_FLOAT32, WEIR_SUM, nullptr),
              WEIR_OK);
    expect_all(large, 100'000, 2.0f, "after the child");
    give_back(arena, {large});
    EXPECT_EQ(weir_arena_destroy(arena), WEIR_OK);
  });
}

// The survivors' error comes in time, and their buffers are theirs: they shrink, and go on in the
// same memory.
TEST(Arena, SurvivesTheDeathOfARankInTheMiddle) {
  const std::vector<int> statuses = run_processes_status(3, [](int rank, weir_comm_t comm) {
    constexpr size_t kCount = 200'000;
    ASSERT_EQ(weir_comm_set_timeout(comm, 60'000), WEIR_OK);
    weir_arena_t arena = make_arena(comm, 8 * kMiB);
    float* memory = take(arena, kCount);
    std::fill(memory, memory + kCount, 0.0f);
    if (rank == 1) {
      std::thread([] {
        usleep(30'000);
        kill(getpid(), SIGKILL);
      }).detach();
    }
    weir_result_t result = WEIR_OK;
    while (result == WEIR_OK) {
      constexpr size_t kBlock = kCount / 4;
      result = weir_reduce_scatter(comm, memory, memory + 3 * kBlock, kBlock, WEIR_FLOAT32,
                                   WEIR_MAX, nullptr);
    }
    EXPECT_EQ(result, WEIR_ERROR_PEER_LOST) << weir_last_error(comm);
    weir_comm_t rest = nullptr;
    const int lost = 1;
    ASSERT_EQ(weir_comm_shrink(comm, &lost, 1, nullptr, &rest), WEIR_OK) << weir_last_error(comm);
    ASSERT_EQ(weir_comm_destroy(rest), WEIR_OK);
    ASSERT_EQ(weir_comm_shrink(comm, &lost, 1, nullptr, &rest), WEIR_OK) << weir_last_error(comm);
    std::fill(memory, memory + kCount, static_cast<float>(rank + 1));
    ASSERT_EQ(weir_all_reduce(rest, memory, memory, kCount, WEIR_FLOAT32, WEIR_SUM, nullptr),
              WEIR_OK)
        << weir_last_error(rest);
    expect_all(memory, kCount, 4.0f, "after the shrink");
    weir_arena_t fresh = make_arena(rest, kMiB);
    EXPECT_EQ(weir_arena_destroy(fresh), WEIR_OK);
    ASSERT_EQ(weir_comm_destroy(rest), WEIR_OK);
    give_back(arena, {memory});
    EXPECT_EQ(weir_arena_destroy(arena), WEIR_OK) << weir_last_error(nullptr);
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 128 + SIGKILL, 0}));
}

}  // namespace
}  // namespace weir::test
