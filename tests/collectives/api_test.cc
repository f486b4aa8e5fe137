// SPDX-License-Identifier: Apache-2.0
// The rest of the C API: requests, groups, several communicators, split, determinism, warm calls.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstdlib>
#include <new>
#include <random>

#include "support/allocations.h"
#include "support/collective_checks.h"
#include "support/ranks.h"
#include "support/shared_counter.h"

namespace weir::test {
namespace {

TEST(WarmCalls, AllocateNothing) {
  // A rank that has to wait long looks after its peers, which may allocate; so the best ten calls
  // in a row count.
  for (const bool messages : {false, true}) {
    run_processes(
        2,
        [&](int, weir_comm_t comm) {
          for (const size_t count : {size_t{2}, size_t{16'384}, size_t{1'000'000}}) {
            std::vector<float> data(count, 0.0f);
            int clean = 0, longest = 0;  // rounds in a row
            for (int round = 0; round < 100; ++round) {
              const uint64_t before = allocation_count();
              ASSERT_EQ(weir_all_reduce(comm, data.data(), data.data(), count, WEIR_FLOAT32,
                                        WEIR_SUM, nullptr),
                        WEIR_OK);
              weir_request_t request = nullptr;
              ASSERT_EQ(weir_all_reduce(comm, data.data(), data.data(), count, WEIR_FLOAT32,
                                        WEIR_MAX, &request),
                        WEIR_OK);
              ASSERT_EQ(weir_wait(&request), WEIR_OK);
              clean = allocation_count() == before ? clean + 1 : 0;
              longest = std::max(longest, clean);
            }
            EXPECT_GE(longest, 5) << count << " elements";
          }
        },
        messages ? Environment{{"WEIR_ALGORITHM", "all_reduce=ring"}} : Environment{});
  }
}

TEST(Messages, ArriveInOrderPerPair) {
  run_processes(3, [](int rank, weir_comm_t comm) {
    const int next = (rank + 1) % 3;
    const int before = (rank + 2) % 3;
    std::vector<weir_request_t> requests;
    std::vector<std::vector<int>> received;
    for (int i = 0; i < 50; ++i) received.emplace_back(static_cast<size_t>(1 + 997 * i), -1);
    for (int i = 0; i < 50; ++i) {
      weir_request_t request = nullptr;
      ASSERT_EQ(weir_recv(comm, received[static_cast<size_t>(i)].data(),
                          received[static_cast<size_t>(i)].size(), WEIR_INT32, before, &request),
                WEIR_OK);
      requests.push_back(request);
    }
    std::vector<std::vector<int>> sent;
    for (int i = 0; i < 50; ++i) {
      sent.emplace_back(static_cast<size_t>(1 + 997 * i), 1000 * rank + i);
      weir_request_t request = nullptr;
      ASSERT_EQ(weir_send(comm, sent.back().data(), sent.back().size(), WEIR_INT32, next, &request),
                WEIR_OK);
      requests.push_back(request);
    }
    ASSERT_EQ(weir_wait_all(requests.data(), requests.size()), WEIR_OK) << weir_last_error(comm);
    for (int i = 0; i < 50; ++i) {
      for (const int value : received[static_cast<size_t>(i)]) ASSERT_EQ(value, 1000 * before + i);
    }
  });
}

TEST(Groups, CannotDeadlockWhateverTheirOrder) {
  run_processes(4, [](int rank, weir_comm_t comm) {
    // Everybody sends first, more than any buffer holds.
    constexpr size_t kCount = 1'000'000;
    std::vector<float> send(kCount, static_cast<float>(rank));
    std::vector<std::vector<float>> recv(4, std::vector<float>(kCount, -1.0f));
    int32_t sum = rank;
    ASSERT_EQ(weir_group_start(), WEIR_OK);
    ASSERT_EQ(weir_group_start(), WEIR_OK);
    for (int p = 0; p < 4; ++p) {
      ASSERT_EQ(weir_send(comm, send.data(), kCount, WEIR_FLOAT32, p, nullptr), WEIR_OK);
    }
    ASSERT_EQ(weir_group_end(), WEIR_OK);
    ASSERT_EQ(weir_all_reduce(comm, &sum, &sum, 1, WEIR_INT32, WEIR_SUM, nullptr), WEIR_OK);
    for (int p = 3; p >= 0; --p) {
      ASSERT_EQ(
          weir_recv(comm, recv[static_cast<size_t>(p)].data(), kCount, WEIR_FLOAT32, p, nullptr),
          WEIR_OK);
    }
    ASSERT_EQ(weir_group_end(), WEIR_OK) << weir_last_error(comm);
    EXPECT_EQ(sum, 6);
    for (int p = 0; p < 4; ++p) {
      for (const float value : recv[static_cast<size_t>(p)])
        ASSERT_EQ(value, static_cast<float>(p));
    }
  });
}

TEST(Groups, OneThreadDrivesSeveralRanks) {
  const weir_unique_id_t id = make_id();
  constexpr int kRanks = 3;
  weir_comm_t comms[kRanks] = {};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      ASSERT_EQ(weir_comm_create(&comms[rank], kRanks, &id, rank, nullptr), WEIR_OK);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const size_t count : {size_t{2}, size_t{300'000}}) {
    std::vector<std::vector<float>> data;
    for (int rank = 0; rank < kRanks; ++rank) data.push_back(inputs(rank, count));
    ASSERT_EQ(weir_group_start(), WEIR_OK);
    for (int rank = 0; rank < kRanks; ++rank) {
      float* values = data[static_cast<size_t>(rank)].data();
      ASSERT_EQ(
          weir_all_reduce(comms[rank], values, values, count, WEIR_FLOAT32, WEIR_SUM, nullptr),
          WEIR_OK);
    }
    ASSERT_EQ(weir_group_end(), WEIR_OK) << weir_last_error(nullptr);
    for (int rank = 0; rank < kRanks; ++rank) {
      expect_values(data[static_cast<size_t>(rank)], 0, sums(kRanks, count), "grouped all_reduce");
    }
  }
  for (weir_comm_t comm : comms) ASSERT_EQ(weir_comm_destroy(comm), WEIR_OK);
}

TEST(Groups, GoOnWithoutTheCallsOfACommunicatorThatIsDestroyed) {
  run_processes(2, [](int rank, weir_comm_t comm) {
    weir_comm_t destroyed = nullptr;
    ASSERT_EQ(weir_comm_split(comm, 0, rank, nullptr, &destroyed), WEIR_OK);
    float given_up[] = {1, 1, 1};
    float sum = 1;
    weir_request_t request = nullptr;
    weir_result_t called_back = WEIR_OK;
    ASSERT_EQ(weir_group_start(), WEIR_OK);
    ASSERT_EQ(weir_all_reduce(destroyed, given_up, given_up, 1, WEIR_FLOAT32, WEIR_SUM, nullptr),
              WEIR_OK);
    ASSERT_EQ(weir_all_reduce(comm, &sum, &sum, 1, WEIR_FLOAT32, WEIR_SUM, nullptr), WEIR_OK);
    ASSERT_EQ(weir_send(destroyed, &given_up[1], 1, WEIR_FLOAT32, 1 - rank, nullptr), WEIR_OK);
    ASSERT_EQ(weir_recv(destroyed, &given_up[2], 1, WEIR_FLOAT32, 1 - rank, &request), WEIR_OK);
    const auto callback = [](void* context, weir_result_t result) {
      *static_cast<weir_result_t*>(context) = result;
    };
    ASSERT_EQ(weir_request_on_complete(request, callback, &called_back), WEIR_OK);
    ASSERT_EQ(weir_comm_destroy(destroyed), WEIR_OK);
    EXPECT_EQ(called_back, WEIR_ERROR_ABORTED);
    EXPECT_EQ(weir_group_end(), WEIR_OK) << weir_last_error(nullptr);
    EXPECT_EQ(sum, 2.0f);
    EXPECT_EQ(given_up[0], 1.0f);
    EXPECT_EQ(weir_wait(&request), WEIR_ERROR_ABORTED);
    EXPECT_EQ(request, nullptr);
  });
}

TEST(Communicators, ProgressTogetherInWhateverOrderTheyAreWaitedFor) {
  run_processes(2, [](int rank, weir_comm_t comm) {
    weir_comm_t other = nullptr;
    ASSERT_EQ(weir_comm_split(comm, 7, -rank, nullptr, &other), WEIR_OK) << weir_last_error(comm);
    int new_rank = -1;
    ASSERT_EQ(weir_comm_rank(other, &new_rank), WEIR_OK);
    EXPECT_EQ(new_rank, 1 - rank);
    constexpr size_t kCount = 2'000'000;
    for (int i = 0; i < 3; ++i) {
      std::vector<float> a = inputs(rank, kCount);
      std::vector<float> b = inputs(new_rank, kCount);
      weir_request_t first = nullptr;
      weir_request_t second = nullptr;
      ASSERT_EQ(weir_all_reduce(comm, a.data(), a.data(), kCount, WEIR_FLOAT32, WEIR_SUM, &first),
                WEIR_OK);
      ASSERT_EQ(weir_all_reduce(other, b.data(), b.data(), kCount, WEIR_FLOAT32, WEIR_SUM, &second),
                WEIR_OK);
      ASSERT_EQ(weir_wait(rank == 0 ? &first : &second), WEIR_OK);
      ASSERT_EQ(weir_wait(rank == 0 ? &second : &first), WEIR_OK);
      expect_values(a, 0, sums(2, kCount), "first");
      expect_values(b, 0, sums(2, kCount), "second");
    }
    ASSERT_EQ(weir_comm_destroy(other), WEIR_OK);
  });
}

TEST(ProgressThread, MovesWhatNobodyWaitsFor) {
  for (const bool with_thread : {false, true}) {
    void* shared = mmap(nullptr, sizeof(std::atomic<bool>), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(shared, MAP_FAILED);
    auto* peer_done = new (shared) std::atomic<bool>(false);
    run_processes(2,
                  [&](int rank, weir_comm_t comm) {
                    // Much more than what fits in the staging rings.
                    std::vector<float> data(8'000'000, 1.0f);
                    weir_request_t request = nullptr;
                    ASSERT_EQ(weir_all_reduce(comm, data.data(), data.data(), data.size(),
                                              WEIR_FLOAT32, WEIR_SUM, &request),
                              WEIR_OK);
                    if (rank == 1) {
                      // The rank computes: rank 0 ends only if somebody moves this one meanwhile.
                      const int patience_ms = with_thread ? 30'000 : 300;
                      for (int i = 0; i < patience_ms && !peer_done->load(); ++i) usleep(1'000);
                      EXPECT_EQ(peer_done->load(), with_thread);
                    }
                    ASSERT_EQ(weir_wait(&request), WEIR_OK);
                    if (rank == 0) peer_done->store(true);
                    EXPECT_EQ(data.front(), 2.0f);
                    EXPECT_EQ(data.back(), 2.0f);
                  },
                  {{"WEIR_PROGRESS_THREAD", with_thread ? "1" : "0"}});
    munmap(shared, sizeof(std::atomic<bool>));
  }
}

TEST(Communicators, SplitByColorAndKey) {
  run_threads(5, [](int rank, weir_comm_t comm) {
    weir_comm_t part = nullptr;
    const int color = rank == 4 ? -1 : rank % 2;
    ASSERT_EQ(weir_comm_split(comm, color, 10 - rank, nullptr, &part), WEIR_OK)
        << weir_last_error(comm);
    if (rank == 4) {
      EXPECT_EQ(part, nullptr);
      return;
    }
    int size = 0;
    int new_rank = 0;
    ASSERT_EQ(weir_comm_size(part, &size), WEIR_OK);
    ASSERT_EQ(weir_comm_rank(part, &new_rank), WEIR_OK);
    EXPECT_EQ(size, 2);
    EXPECT_EQ(new_rank, rank < 2 ? 1 : 0);
    check_every_collective(part, 77);
    ASSERT_EQ(weir_comm_destroy(part), WEIR_OK);
  });
}

TEST(Communicators, TellHowLongThePartsOfTheirMakingTook) {
  const auto sum = [](const weir_start_times_t& times) {
    return times.rendezvous_ns + times.handshake_ns + times.exchange_ns + times.connect_ns +
           times.costs_ns;
  };
  const weir_unique_id_t id = make_id();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      const auto before = std::chrono::steady_clock::now();
      weir_comm_t comm = nullptr;
      ASSERT_EQ(weir_comm_create(&comm, 3, &id, rank, nullptr), WEIR_OK)
          << weir_last_error(nullptr);
      const auto took = std::chrono::steady_clock::now() - before;
      weir_start_times_t times = WEIR_START_TIMES_INIT;
      ASSERT_EQ(weir_comm_start_times(comm, &times), WEIR_OK) << weir_last_error(comm);
      EXPECT_GT(times.rendezvous_ns, 0u);
      EXPECT_GT(times.exchange_ns, 0u);
      EXPECT_GT(times.connect_ns, 0u);
      EXPECT_LE(sum(times), static_cast<uint64_t>(std::chrono::nanoseconds(took).count()));
      weir_comm_t part = nullptr;
      ASSERT_EQ(weir_comm_split(comm, 0, rank, nullptr, &part), WEIR_OK);
      weir_start_times_t later = WEIR_START_TIMES_INIT;
      ASSERT_EQ(weir_comm_start_times(part, &later), WEIR_OK);
      EXPECT_GT(sum(later), 0u);
      EXPECT_EQ(weir_comm_start_times(comm, nullptr), WEIR_ERROR_INVALID_ARGUMENT);
      EXPECT_EQ(weir_comm_start_times(nullptr, &times), WEIR_ERROR_INVALID_ARGUMENT);
      weir_start_times_t shorter = {8, 7, 0, 0, 0, 0};
      EXPECT_EQ(weir_comm_start_times(comm, &shorter), WEIR_ERROR_INVALID_ARGUMENT);
      EXPECT_EQ(shorter.rendezvous_ns, 7u);
      EXPECT_EQ(weir_comm_destroy(part), WEIR_OK);
      EXPECT_EQ(weir_comm_destroy(comm), WEIR_OK);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Threads, OneCommunicatorServesSeveral) {
  run_processes(2, [](int rank, weir_comm_t comm) {
    // Messages from several threads on one communicator, beside collectives from another.
    std::vector<std::thread> threads;
    std::atomic<int> sum{0};
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        int32_t value = 1;
        ASSERT_EQ(weir_all_reduce(comm, &value, &value, 1, WEIR_INT32, WEIR_SUM, nullptr), WEIR_OK);
        ASSERT_EQ(value, 2);
      }
    });
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        int32_t value = rank == 0 ? i : -1;
        ASSERT_EQ(rank == 0 ? weir_send(comm, &value, 1, WEIR_INT32, 1, nullptr)
                            : weir_recv(comm, &value, 1, WEIR_INT32, 0, nullptr),
                  WEIR_OK);
        sum += value == i;
      }
    });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(sum.load(), 500);
  });
}

TEST(Requests, AHandleThatWasUsedIsRefused) {
  run_processes(2, [](int, weir_comm_t comm) {
    const auto expect_refused = [](weir_result_t result) {
      EXPECT_EQ(result, WEIR_ERROR_INVALID_USAGE);
      EXPECT_NE(std::string(weir_last_error(nullptr)).find("must not be used again"),
                std::string::npos)
          << weir_last_error(nullptr);
    };
    weir_request_t request = nullptr;
    ASSERT_EQ(weir_barrier(comm, &request), WEIR_OK);
    weir_request_t waited = request, tested = request;
    ASSERT_EQ(weir_wait(&request), WEIR_OK);
    expect_refused(weir_wait(&waited));
    EXPECT_EQ(waited, nullptr);
    expect_refused(weir_request_on_complete(
        tested, [](void*, weir_result_t) { ADD_FAILURE(); }, nullptr));
    int done = 0;
    expect_refused(weir_test(&tested, &done));
    EXPECT_EQ(tested, nullptr);
    ASSERT_EQ(weir_barrier(comm, nullptr), WEIR_OK);
  });
}

TEST(Requests, ACallThatFailsLeavesNoHandle) {
  weir::test::run_threads(2, [](int rank, weir_comm_t comm) {
    int stale = 0;
    const auto stale_handle = reinterpret_cast<weir_request_t>(&stale);
    float values[4] = {};
    weir_request_t request = stale_handle;
    EXPECT_EQ(weir_all_reduce(comm, values, values, 4, WEIR_FLOAT32, static_cast<weir_redop_t>(999),
                              &request),
              WEIR_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(request, nullptr);
    request = stale_handle;
    EXPECT_EQ(weir_send(comm, nullptr, 4, WEIR_FLOAT32, 1 - rank, &request),
              WEIR_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(request, nullptr);
    request = stale_handle;
    EXPECT_EQ(weir_broadcast(nullptr, values, values, 4, WEIR_FLOAT32, 0, &request),
              WEIR_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(request, nullptr);
    request = stale_handle;
    EXPECT_EQ(weir_put(nullptr, 0, 0, values, sizeof values, &request),
              WEIR_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(request, nullptr);
  });
}

TEST(Requests, OutliveTheirCommunicator) {
  const SharedCounter destroyed;
  run_processes(2, [&](int rank, weir_comm_t comm) {
    weir_comm_t own = nullptr;
    ASSERT_EQ(weir_comm_split(comm, 0, rank, nullptr, &own), WEIR_OK) << weir_last_error(comm);
    std::vector<float> data(100'000, 1.0f);
    weir_request_t finished = nullptr;
    ASSERT_EQ(weir_barrier(own, &finished), WEIR_OK);
    ASSERT_EQ(weir_barrier(own, nullptr), WEIR_OK);
    weir_request_t waited = nullptr;
    weir_request_t tested = nullptr;
    if (rank == 0) {  // the other never calls, and is there
      for (weir_request_t* request : {&waited, &tested}) {
        ASSERT_EQ(weir_all_reduce(own, data.data(), data.data(), data.size(), WEIR_FLOAT32,
                                  WEIR_SUM, request),
                  WEIR_OK);
      }
    }
    for (int i = 0; rank == 1 && i < 60'000 && destroyed.get() == 0; ++i) usleep(1000);
    ASSERT_EQ(weir_comm_destroy(own), WEIR_OK);
    ++destroyed.get();
    EXPECT_EQ(weir_wait(&finished), WEIR_OK) << weir_last_error(nullptr);
    EXPECT_EQ(finished, nullptr);
    if (rank != 0) return;
    EXPECT_EQ(weir_wait(&waited), WEIR_ERROR_ABORTED);
    EXPECT_EQ(waited, nullptr);
    int done = 0;
    EXPECT_EQ(weir_test(&tested, &done), WEIR_ERROR_ABORTED);
    EXPECT_EQ(done, 1);
    EXPECT_EQ(tested, nullptr);
  });
}

TEST(Api, WithoutACudaDriverThereIsNoStreamToGoBy) {
  weir_comm_t comm = nullptr;
  const weir_unique_id_t id = make_id();
  ASSERT_EQ(weir_comm_create(&comm, 1, &id, 0, nullptr), WEIR_OK) << weir_last_error(nullptr);
  EXPECT_EQ(weir_comm_set_stream(nullptr, nullptr), WEIR_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(weir_comm_set_stream(comm, nullptr), WEIR_ERROR_UNSUPPORTED);
  EXPECT_NE(std::string(weir_last_error(comm)).find("libcuda.so.1"), std::string::npos);
  EXPECT_EQ(weir_comm_set_stream(comm, WEIR_NO_STREAM), WEIR_OK);
  EXPECT_EQ(weir_comm_destroy(comm), WEIR_OK);
}

TEST(Deterministic, SumsAreTheSameBitsForEveryAlgorithmSliceAndTransport) {
  const uint32_t seed =
      std::getenv("WEIR_TEST_SEED") != nullptr
          ? static_cast<uint32_t>(std::strtoul(std::getenv("WEIR_TEST_SEED"), nullptr, 10))
          : 20261121u;
  RecordProperty("seed", static_cast<int>(seed));
  constexpr size_t kCount = 40'003;
  constexpr int kRanks = 3;
  const auto values = [&](int rank) {
    std::mt19937 random(seed + static_cast<uint32_t>(rank));
    std::uniform_real_distribution<float> exponent(-20.0f, 20.0f);
    Values data(kCount);
    for (float& value : data)
      value = std::exp2(exponent(random)) * (random() % 2 == 0 ? 1.0f : -1.0f);
    return data;
  };
  // The definition: one fold over the ranks in rank order.
  Values expected = values(0);
  for (int rank = 1; rank < kRanks; ++rank) {
    const Values more = values(rank);
    for (size_t i = 0; i < kCount; ++i) expected[i] += more[i];
  }
  weir_comm_config_t config = WEIR_COMM_CONFIG_INIT;
  config.flags = WEIR_COMM_DETERMINISTIC;
  const std::vector<Environment> ways = {{},
                                         {{"WEIR_ALGORITHM", "all_reduce=direct"}},
                                         {{"WEIR_ALGORITHM", "all_reduce=direct_two_phase"}},
                                         {{"WEIR_ALGORITHM", "all_reduce=ordered"}},
                                         {{"WEIR_SLICE_BYTES", "4096"}},
                                         {{"WEIR_HOOKS", "check"}},
                                         {{"WEIR_TRANSPORT", "tcp"}}};
  for (const Environment& way : ways) {
    run_processes(
        kRanks,
        [&](int rank, weir_comm_t comm) {
          Values data = values(rank);
          ASSERT_EQ(weir_all_reduce(comm, data.data(), data.data(), kCount, WEIR_FLOAT32, WEIR_SUM,
                                    nullptr),
                    WEIR_OK)
              << weir_last_error(comm);
          for (size_t i = 0; i < kCount; ++i) {
            ASSERT_EQ(std::bit_cast<uint32_t>(data[i]), std::bit_cast<uint32_t>(expected[i])) << i;
          }
        },
        way, config);
  }
  // An algorithm that folds in another order is refused.
  run_processes(
      kRanks,
      [&](int, weir_comm_t comm) {
        float value = 1;
        EXPECT_EQ(weir_all_reduce(comm, &value, &value, 1, WEIR_FLOAT32, WEIR_SUM, nullptr),
                  WEIR_ERROR_UNSUPPORTED);
        EXPECT_NE(std::string(weir_last_error(comm)).find("rank order"), std::string::npos);
      },
      {{"WEIR_ALGORITHM", "all_reduce=ring"}}, config);
}

// Longer than the trials of both kinds of stores (store_choice.h), at lengths around the least one
// for which there are trials.
TEST(Api, ResultsAreRightWhicheverStoresAndPhasesAreInUse) {
  constexpr int kCalls = 150;
  const char* transport = std::getenv("WEIR_TRANSPORT");
  const bool is_mapped = transport == nullptr || std::string_view(transport) == "shm";
  for (const char* algorithm : {"", "reduce=direct", "reduce=direct_two_phase"}) {
    if (*algorithm != 0 && !is_mapped) continue;
    run_processes(
        2,
        [](int rank, weir_comm_t comm) {
          for (const size_t count : {2047u, 2048u, 2049u, 4099u, 40'003u}) {
            std::vector<int32_t> in(count), sum(count), root(count), all(2 * count);
            for (int call = 0; call < kCalls; ++call) {
              const auto value = [&](int of, size_t i) {
                return static_cast<int32_t>(i * 7 + static_cast<size_t>(call * 31 + of));
              };
              for (size_t i = 0; i < count; ++i) in[i] = value(rank, i);
              ASSERT_EQ(weir_all_reduce(comm, in.data(), sum.data(), count, WEIR_INT32, WEIR_SUM,
                                        nullptr),
                        WEIR_OK);
              ASSERT_EQ(weir_reduce(comm, in.data(), root.data(), count, WEIR_INT32, WEIR_SUM, 1,
                                    nullptr),
                        WEIR_OK);
              ASSERT_EQ(weir_all_gather(comm, in.data(), all.data(), count, WEIR_INT32, nullptr),
                        WEIR_OK);
              for (size_t i = 0; i < count; ++i) {
                ASSERT_EQ(sum[i], value(0, i) + value(1, i)) << count << ' ' << call << ' ' << i;
                if (rank == 1) {
                  ASSERT_EQ(root[i], sum[i]) << count << " " << call << " " << i;
                }
                ASSERT_EQ(all[i], value(0, i)) << count << ' ' << call << ' ' << i;
                ASSERT_EQ(all[count + i], value(1, i)) << count << ' ' << call << ' ' << i;
              }
            }
          }
        },
        *algorithm == 0 ? Environment() : Environment{{"WEIR_ALGORITHM", algorithm}});
  }
}

}  // namespace
}  // namespace weir::test
