// SPDX-License-Identifier: Apache-2.0
// Every collective through the C API, over threads and processes, at sizes on both sides of every
// change of protocol, with every algorithm forced where one can be.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <set>

#include "core/algo/algorithm.h"
#include "support/collective_checks.h"
#include "support/ranks.h"

namespace weir::test {
namespace {

// In elements of 4 bytes: none, one, a line and its neighbours, the ends of the line protocol,
// several slices.
const std::vector<size_t> kCounts = {0, 1, 13, 14, 15, 255, 2045, 2046, 2047, 2048, 5000, 70'001};

// Some algorithms need it; the transport may be forced to one that has none.
bool shares_memory() {
  const char* transport = std::getenv("WEIR_TRANSPORT");
  return transport == nullptr || std::string(transport) == "shm";
}

TEST(Collectives, HoldOverThreads) {
  for (const int n : {1, 2, 3, 4}) {
    run_threads(n, [](int, weir_comm_t comm) {
      for (const size_t count : kCounts) check_every_collective(comm, count);
    });
  }
}

TEST(Collectives, HoldOverProcesses) {
  for (const int n : {2, 5}) {
    run_processes(n, [](int, weir_comm_t comm) {
      for (const size_t count : kCounts) check_every_collective(comm, count);
    });
  }
}

TEST(Collectives, LargeOnesWrapTheRingManyTimes) {
  run_processes(2, [](int, weir_comm_t comm) { check_every_collective(comm, 1'000'003); });
  run_processes(3, [](int, weir_comm_t comm) { check_every_collective(comm, 300'007); });
}

TEST(Collectives, HoldWithMessagesOnly) {
  // A hook takes the mapped memory away: everything goes through send and recv.
  run_processes(3,
                [](int, weir_comm_t comm) {
                  for (const size_t count : {size_t{0}, size_t{5}, size_t{4099}, size_t{70'001}}) {
                    check_every_collective(comm, count);
                  }
                },
                {{"WEIR_HOOKS", "check"}});
}

TEST(Collectives, EveryForcedAlgorithmGivesTheSame) {
  for (const algo::Algorithm* algorithm : algo::all_algorithms()) {
    if (algorithm->needs_user_windows) continue;
    for (const int n : {2, 3, 4, 6}) {
      algo::Problem problem;
      problem.collective = algorithm->collective;
      problem.rank_count = static_cast<Rank>(n);
      problem.mapped = shares_memory();
      bool everywhere = algorithm->supports(problem);
      problem.in_place = true;
      everywhere = everywhere && algorithm->supports(problem);
      if (!everywhere) continue;
      SCOPED_TRACE(std::string(name_of(algorithm->collective)) + "=" + algorithm->name + " over " +
                   std::to_string(n));
      run_processes(n,
                    [&](int, weir_comm_t comm) {
                      const Bench b(comm);
                      for (const size_t count :
                           {size_t{0}, size_t{1}, size_t{37}, size_t{5003}, size_t{66'000}}) {
                        for (const How how : {How::kOutOfPlace, How::kInPlace, How::kNonblocking}) {
                          switch (algorithm->collective) {
                            case Collective::kAllReduce:
                              check_all_reduce(b, count, how);
                              break;
                            case Collective::kReduceScatter:
                              check_reduce_scatter(b, count, how);
                              break;
                            case Collective::kAllGather:
                              check_all_gather(b, count, how);
                              break;
                            case Collective::kAllToAll:
                              check_all_to_all(b, count, how);
                              break;
                            case Collective::kBroadcast:
                              check_broadcast(b, count, how, n - 1);
                              break;
                            case Collective::kReduce:
                              check_reduce(b, count, how, n - 1);
                              break;
                            case Collective::kGather:
                              check_gather(b, count, how, n - 1);
                              break;
                            case Collective::kScatter:
                              check_scatter(b, count, how, n - 1);
                              break;
                            default:
                              ASSERT_EQ(weir_barrier(comm, nullptr), WEIR_OK)
                                  << weir_last_error(comm);
                          }
                        }
                      }
                    },
                    {{"WEIR_ALGORITHM",
                      std::string(name_of(algorithm->collective)) + "=" + algorithm->name}});
      if (HasFailure()) return;
    }
  }
}

void expect_uneven_blocks(const std::string& forced, int rank_count, const char* hooks) {
  SCOPED_TRACE(forced + " over " + std::to_string(rank_count) + " " + hooks);
  run_processes(rank_count,
                [](int, weir_comm_t comm) {
                  const Bench b(comm);
                  for (const size_t unit : {size_t{0}, size_t{1}, size_t{37}, size_t{30'000}}) {
                    for (const How how : {How::kOutOfPlace, How::kNonblocking}) {
                      check_uneven(b, unit, how);
                    }
                  }
                },
                {{"WEIR_ALGORITHM", forced}, {"WEIR_HOOKS", hooks}});
}

TEST(Collectives, EveryForcedAlgorithmOfAVVariantGivesTheSame) {
  for (const algo::Algorithm* algorithm : algo::all_algorithms()) {
    if (algorithm->lengths == algo::BlockLengths::kEqual) continue;
    if (algorithm->needs_mapped && !shares_memory()) continue;
    if (algorithm->needs_user_windows) continue;  // arena_random_test
    // Only between hosts that differ, or whose ranks are not in order: netns_test.
    if (algorithm->uses_forest || algorithm->uses_rings) continue;
    if (algorithm->groups != nullptr) continue;  // only where there are several: groups_test
    const std::string forced =
        std::string(algo::name_of(algorithm->collective, algorithm->lengths)) + "=" +
        algorithm->name;
    for (const int n : {2, 3, 5}) expect_uneven_blocks(forced, n, "");
    if (algo::uses_messages(*algorithm)) expect_uneven_blocks(forced, 3, "check");
  }
}

// A rank knows the lengths of its own blocks only: others may be longer by far.
TEST(Collectives, BlocksOfEveryLengthMeetInAnAllToAllV) {
  const char* given = std::getenv("WEIR_TEST_SEED");
  const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 1;
  SCOPED_TRACE("WEIR_TEST_SEED=" + std::to_string(seed));
  const auto exchange = [seed](int rank, weir_comm_t comm) {
    const Bench b(comm);
    const size_t n = static_cast<size_t>(b.n);
    const size_t r = static_cast<size_t>(rank);
    constexpr size_t kLengths[] = {0, 1, 20, 300, 700, 5'000, 60'000};
    std::mt19937_64 random(seed);  // the same on all ranks
    void* window = nullptr;
    ASSERT_EQ(weir_mem_alloc(comm, 60'000 * n * sizeof(float), &window), WEIR_OK)
        << weir_last_error(comm);
    for (int round = 0; round < 200; ++round) {
      const size_t longest = 1 + random() % std::size(kLengths);
      std::vector<std::vector<size_t>> counts(n, std::vector<size_t>(n));
      for (size_t from = 0; from < n; ++from) {
        // Some ranks have nothing or little.
        const size_t most = random() % 3 == 0 ? 1 + random() % 2 : longest;
        for (size_t to = 0; to < n; ++to) counts[from][to] = kLengths[random() % most];
      }
      std::vector<size_t> from_me = counts[r], to_me(n);
      Values send, expected;
      for (size_t p = 0; p < n; ++p) {
        to_me[p] = counts[p][r];
        const Values out = inputs(static_cast<int>(r * n + p), from_me[p]);
        const Values in = inputs(static_cast<int>(p * n + r), to_me[p]);
        send.insert(send.end(), out.begin(), out.end());
        expected.insert(expected.end(), in.begin(), in.end());
      }
      Values recv(expected.size() + 1, -1.0f);
      // In the windows of all ranks, of all but one, of none.
      const size_t outside = random() % 3 == 0 ? random() % n : n;
      const bool in_window = random() % 4 != 0 && outside != r;
      float* const from =
          in_window ? std::copy(send.begin(), send.end(), static_cast<float*>(window)) - send.size()
                    : send.data();
      perform(comm, round % 2 == 0 ? How::kOutOfPlace : How::kNonblocking,
              [&](weir_request_t* request) {
                return weir_all_to_all_v(comm, from, from_me.data(), nullptr, recv.data(),
                                         to_me.data(), nullptr, WEIR_FLOAT32, request);
              });
      expected.push_back(-1.0f);
      ASSERT_EQ(recv, expected) << "round " << round << " on rank " << rank;
      // What comes between uses the same lines.
      if (random() % 2 == 0) check_all_reduce(b, 5, How::kInPlace);
    }
    ASSERT_EQ(weir_mem_free(comm, window), WEIR_OK);
  };
  for (const int n : {1, 2, 4}) {
    for (const char* hooks : {"", "check"}) {
      SCOPED_TRACE(std::to_string(n) + " ranks, hooks: " + hooks);
      run_processes(n, exchange, {{"WEIR_HOOKS", hooks}});
    }
  }
}

// MPI's and NCCL's users pass any displacement where there is nothing to be read or written.
TEST(Collectives, TheDisplacementOfAnEmptyBlockMayBeAny) {
  for (const char* transport : {"shm", "tcp"}) {
    run_processes(
        2,
        [](int rank, weir_comm_t comm) {
          for (const size_t anywhere : {SIZE_MAX, SIZE_MAX / 4, size_t{1} << 40}) {
            for (const size_t count : {size_t{3}, size_t{40'000}}) {
              // Each rank sends to rank 1 only.
              const std::vector<size_t> to = {0, count};
              const std::vector<size_t> to_at = {anywhere, 2};
              const std::vector<size_t> from(2, rank == 1 ? count : 0);
              const std::vector<size_t> from_at =
                  rank == 1 ? std::vector<size_t>{count, 0} : std::vector<size_t>(2, anywhere);
              const std::vector<float> sent(count + 2, static_cast<float>(rank + 1));
              std::vector<float> received(2 * count, -1);
              ASSERT_EQ(
                  weir_all_to_all_v(comm, sent.data(), to.data(), to_at.data(), received.data(),
                                    from.data(), from_at.data(), WEIR_FLOAT32, nullptr),
                  WEIR_OK)
                  << weir_last_error(comm);
              for (size_t i = 0; i < 2 * count; ++i) {
                ASSERT_EQ(received[i], rank == 0 ? -1 : i < count ? 2 : 1);
              }
              // Rank 1 has the only block.
              const std::vector<size_t> counts = {0, count};
              const std::vector<size_t> at = {anywhere, count};
              ASSERT_EQ(weir_all_gather_v(comm, sent.data(), received.data(), counts.data(),
                                          at.data(), WEIR_FLOAT32, nullptr),
                        WEIR_OK)
                  << weir_last_error(comm);
              for (size_t i = 0; i < count; ++i) ASSERT_EQ(received[count + i], 2);
              const std::vector<size_t> too_far = {anywhere, SIZE_MAX / 4};
              EXPECT_EQ(weir_all_gather_v(comm, sent.data(), received.data(), counts.data(),
                                          too_far.data(), WEIR_FLOAT32, nullptr),
                        WEIR_ERROR_INVALID_ARGUMENT);
            }
          }
        },
        {{"WEIR_TRANSPORT", transport}});
  }
}

// Through slots that do not say whose block they hold, blocks would be of one length.
TEST(Collectives, WhatIsForcedForEqualBlocksDoesNotHarmOthers) {
  for (const char* forced : {"all_gather=bruck,all_to_all=bruck",
                             "all_gather=recursive_doubling,reduce_scatter=recursive_halving",
                             "all_gather=window,reduce_scatter=window,all_to_all=window"}) {
    for (const char* hooks : {"", "check"}) expect_uneven_blocks(forced, 3, hooks);
  }
}

TEST(Collectives, ManySmallOnesInARowStayInOrder) {
  run_processes(3, [](int rank, weir_comm_t comm) {
    for (int i = 0; i < 20'000; ++i) {
      int32_t value = rank == i % 3 ? i : -1;
      ASSERT_EQ(weir_broadcast(comm, &value, &value, 1, WEIR_INT32, i % 3, nullptr), WEIR_OK)
          << weir_last_error(comm);
      ASSERT_EQ(value, i);
      int32_t sum = i + rank;
      if (i % 2 == 0) {
        ASSERT_EQ(weir_all_reduce(comm, &sum, &sum, 1, WEIR_INT32, WEIR_SUM, nullptr), WEIR_OK);
        ASSERT_EQ(sum, 3 * i + 3);
      }
    }
  });
}

TEST(Collectives, UserWindowsGiveTheSameResults) {
  run_processes(3, [](int rank, weir_comm_t comm) {
    constexpr size_t kCount = 50'001;
    void* memory = nullptr;
    ASSERT_EQ(weir_mem_alloc(comm, 8 * kCount * sizeof(float), &memory), WEIR_OK)
        << weir_last_error(comm);
    auto* send = static_cast<float*>(memory);
    float* recv = send + 4 * kCount;
    const Bench b(comm);
    for (int round = 0; round < 3; ++round) {
      const Values mine = inputs(rank, kCount);
      std::copy(mine.begin(), mine.end(), send);
      ASSERT_EQ(weir_all_reduce(comm, send, recv, kCount, WEIR_FLOAT32, WEIR_SUM, nullptr),
                WEIR_OK);
      expect_values(Values(recv, recv + kCount), 0, sums(b.n, kCount), "all_reduce in windows");
      ASSERT_EQ(weir_all_reduce(comm, send, send, kCount, WEIR_FLOAT32, WEIR_SUM, nullptr),
                WEIR_OK);
      expect_values(Values(send, send + kCount), 0, sums(b.n, kCount), "in place");
      // One rank uses other memory: all fall back to staging together.
      Values outside = mine;
      ASSERT_EQ(
          weir_all_reduce(
              comm, rank == 1 ? outside.data() : (std::copy(mine.begin(), mine.end(), send), send),
              recv, kCount, WEIR_FLOAT32, WEIR_SUM, nullptr),
          WEIR_OK);
      expect_values(Values(recv, recv + kCount), 0, sums(b.n, kCount), "one outside");
    }
    ASSERT_EQ(weir_mem_free(comm, memory), WEIR_OK);
  });
}

// The library's own calls, of which making a window consists, have buffers in no window.
TEST(Collectives, WhatIsForcedForWindowsLetsWindowsBeMade) {
  const auto gather = [](int rank, weir_comm_t comm) {
    constexpr size_t kCount = 10'000;
    void* memory = nullptr;
    ASSERT_EQ(weir_mem_alloc(comm, 4 * kCount * sizeof(float), &memory), WEIR_OK)
        << weir_last_error(comm);
    auto* const send = static_cast<float*>(memory);
    float* const recv = send + kCount;
    std::fill_n(send, kCount, static_cast<float>(rank));
    ASSERT_EQ(weir_all_gather(comm, send, recv, kCount, WEIR_FLOAT32, nullptr), WEIR_OK)
        << weir_last_error(comm);
    for (size_t p = 0; p < 3; ++p) ASSERT_EQ(recv[p * kCount + 17], static_cast<float>(p));
    // The program's own call is refused where it cannot be what is forced.
    Values ordinary(4 * kCount);
    EXPECT_EQ(weir_all_gather(comm, ordinary.data(), ordinary.data() + kCount, kCount, WEIR_FLOAT32,
                              nullptr),
              WEIR_ERROR_UNSUPPORTED);
    EXPECT_NE(std::string(weir_last_error(comm)).find("it needs user windows"), std::string::npos)
        << weir_last_error(comm);
    // So is a small one, which takes no windows wherever its buffers lie.
    EXPECT_EQ(weir_all_gather(comm, send, recv, 4, WEIR_FLOAT32, nullptr), WEIR_ERROR_UNSUPPORTED);
    EXPECT_NE(std::string(weir_last_error(comm)).find("which calls of 16 KiB or more use"),
              std::string::npos)
        << weir_last_error(comm);
    ASSERT_EQ(weir_mem_free(comm, memory), WEIR_OK);
  };
  run_processes(
      3, gather,
      {{"WEIR_ALGORITHM", "all_gather=window,all_reduce=window"}, {"WEIR_TRANSPORT", "shm"}});
}

TEST(Reductions, EveryTypeAndOperationIsExactOnSmallIntegers) {
  run_threads(3, [](int rank, weir_comm_t comm) {
    // Two's complement and small floats alike: values 1 + rank in each type.
    const std::vector<double> values = {1, 2, 3};
    const std::vector<double> expected = {6, 6, 3, 1, 2};
    for (int op = WEIR_SUM; op <= WEIR_AVG; ++op) {
      auto check = [&](auto example, weir_datatype_t type) {
        using T = decltype(example);
        for (const size_t count : {size_t{3}, size_t{20'011}}) {
          std::vector<T> data(count, static_cast<T>(values[static_cast<size_t>(rank)]));
          ASSERT_EQ(weir_all_reduce(comm, data.data(), data.data(), count, type, op, nullptr),
                    WEIR_OK)
              << weir_last_error(comm);
          for (const T& value : data) {
            ASSERT_EQ(static_cast<double>(value), expected[static_cast<size_t>(op)])
                << type << " " << op;
          }
        }
      };
      check(int8_t{}, WEIR_INT8);
      check(uint8_t{}, WEIR_UINT8);
      check(int32_t{}, WEIR_INT32);
      check(uint32_t{}, WEIR_UINT32);
      check(int64_t{}, WEIR_INT64);
      check(uint64_t{}, WEIR_UINT64);
      check(float{}, WEIR_FLOAT32);
      check(double{}, WEIR_FLOAT64);
    }
  });
}

TEST(Reductions, PremultipliedSumScalesEachRanksOwnInput) {
  for (const bool messages : {false, true}) {
    run_processes(
        3,
        [](int rank, weir_comm_t comm) {
          const float factor = static_cast<float>(rank) + 0.5f;
          weir_redop_t op = 0;
          ASSERT_EQ(weir_redop_create_premul_sum(comm, &factor, WEIR_FLOAT32, &op), WEIR_OK);
          for (const size_t count : {size_t{1}, size_t{5000}, size_t{200'000}}) {
            std::vector<float> data(count, 2.0f);
            weir_request_t request = nullptr;
            ASSERT_EQ(
                weir_all_reduce(comm, data.data(), data.data(), count, WEIR_FLOAT32, op, &request),
                WEIR_OK);
            ASSERT_EQ(weir_wait(&request), WEIR_OK) << weir_last_error(comm);
            for (const float value : data) ASSERT_EQ(value, 2.0f * (0.5f + 1.5f + 2.5f));
          }
          ASSERT_EQ(weir_redop_destroy(comm, op), WEIR_OK);
          float one = 1;
          EXPECT_EQ(weir_all_reduce(comm, &one, &one, 1, WEIR_FLOAT32, op, nullptr),
                    WEIR_ERROR_INVALID_ARGUMENT);
        },
        messages ? Environment{{"WEIR_HOOKS", "check"}} : Environment{});
  }
}

}  // namespace
}  // namespace weir::test
