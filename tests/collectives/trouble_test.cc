// SPDX-License-Identifier: Apache-2.0
// What bad use and bad luck get: mismatched calls, dead and stopped ranks, deadlines, abort, bad
// arguments. Each must end in time, on every rank, with a text that names who and what; and nothing
// may be left behind.
#include <dirent.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "support/collective_checks.h"
#include "support/promises.h"
#include "support/ranks.h"
#include "support/shared_counter.h"

namespace weir::test {
namespace {

weir_comm_config_t with_timeout(int64_t timeout_ms) {
  weir_comm_config_t config = WEIR_COMM_CONFIG_INIT;
  config.timeout_ms = timeout_ms;
  return config;
}

void expect_text(weir_comm_t comm, const std::string& part) {
  const std::string text = weir_last_error(comm);
  EXPECT_NE(text.find(part), std::string::npos) << "no '" << part << "' in: " << text;
}

TEST(Mismatch, DifferentOperationsAreNamedOnEveryRank) {
  run_processes(
      3,
      [](int rank, weir_comm_t comm) {
        const auto start = Clock::now();
        std::vector<float> data(1000, 1.0f);
        const weir_result_t result =
            rank == 1
                ? weir_all_gather(comm, data.data(), data.data() + 333, 100, WEIR_FLOAT32, nullptr)
                : weir_all_reduce(comm, data.data(), data.data(), 1000, WEIR_FLOAT32, WEIR_SUM,
                                  nullptr);
        EXPECT_EQ(result, WEIR_ERROR_MISMATCH) << weir_last_error(comm);
        EXPECT_LT(seconds_since(start), 10.0);
        expect_text(comm, "all_reduce(float32, sum, count 1000)");
        expect_text(comm, "all_gather(float32, count 100)");
        expect_text(comm, "rank 1");
        weir_result_t error = WEIR_OK;
        EXPECT_EQ(weir_comm_async_error(comm, &error), WEIR_OK);
        EXPECT_EQ(error, WEIR_ERROR_MISMATCH);
      },
      {}, with_timeout(60'000));
}

TEST(Mismatch, DifferentCountsTypesOperatorsAndRootsAreFound) {
  struct Case {
    size_t count;
    weir_datatype_t type;
    weir_redop_t op;
    int root;
    const char* text;
  };
  const Case base{64, WEIR_FLOAT32, WEIR_SUM, 0, "reduce(float32, sum, count 64, root 0)"};
  for (const Case& other :
       {Case{65, WEIR_FLOAT32, WEIR_SUM, 0, "count 65"},
        Case{100'000, WEIR_FLOAT32, WEIR_SUM, 0, "count 100000"},
        Case{64, WEIR_INT32, WEIR_SUM, 0, "int32"}, Case{64, WEIR_FLOAT32, WEIR_MAX, 0, "max"},
        Case{64, WEIR_FLOAT32, WEIR_AVG, 0, "avg"}, Case{64, WEIR_FLOAT32, WEIR_SUM, 1, "root 1"},
        Case{0, WEIR_FLOAT32, WEIR_SUM, 0, "count 0"}}) {
    for (const bool messages : {false, true}) {
      run_processes(
          2,
          [&](int rank, weir_comm_t comm) {
            std::vector<float> data(100'000, 1.0f);
            const Case& mine = rank == 1 ? other : base;
            weir_result_t result = weir_reduce(comm, data.data(), data.data(), mine.count,
                                               mine.type, mine.op, mine.root, nullptr);
            // A rank that waits for nobody learns of it from its next call.
            if (result == WEIR_OK) result = weir_barrier(comm, nullptr);
            EXPECT_EQ(result, WEIR_ERROR_MISMATCH) << weir_last_error(comm) << " " << other.text;
            expect_text(comm, other.text);
            expect_text(comm, base.text);
          },
          messages ? Environment{{"WEIR_HOOKS", "check"}} : Environment{}, with_timeout(60'000));
    }
  }
}

// In shared memory the engine promises it, and over tcp the sockets have the room. How far a root
// gets over UCX and libfabric is theirs to choose; with another transport behind it a long message
// always waits. A long message waits where its connection is made when it is needed, which takes
// the peer's calls.
bool root_gets_far_ahead(size_t bytes) {
  const char* transport = getenv("WEIR_TRANSPORT");
  const char* lazy = getenv("WEIR_TCP_LAZY");
  const std::string name = transport == nullptr ? "" : transport;
  const bool connects = name == "tcp" && lazy != nullptr && std::string(lazy) == "1";
  return name != "ucx" && name != "ofi" && getenv("WEIR_FAILOVER") == nullptr &&
         (!connects || bytes <= 1024);
}

// Each rank takes itself for the root of what it sends, or its peer for the root of what it gives.
TEST(Mismatch, OfRanksThatDoNotWaitForEachOtherIsFoundByTheNextCallThatDoes) {
  constexpr int kBroadcast = 0;
  constexpr int kReduce = 1;
  constexpr int kGather = 2;
  constexpr int kOneOfEach = 3;
  for (const int kind : {kBroadcast, kReduce, kGather, kOneOfEach}) {
    for (const size_t count : {size_t{4}, size_t{4000}, size_t{1'000'000}}) {
      SCOPED_TRACE(std::to_string(kind) + ", " + std::to_string(count) + " elements");
      // Messages are in order with each other, and so many of them wait for their receiver.
      if (!root_gets_far_ahead(4 * count) || (getenv("WEIR_TRANSPORT") != nullptr && count > 4)) {
        continue;
      }
      run_processes(
          2,
          [=](int rank, weir_comm_t comm) {
            std::vector<float> data(count, 1.0f), result(2 * count);
            weir_result_t ended = WEIR_OK;
            for (int call = 0; call < 3 && ended == WEIR_OK; ++call) {
              if (kind == kBroadcast || (kind == kOneOfEach && rank == 0)) {
                ended = weir_broadcast(comm, data.data(), data.data(), count, WEIR_FLOAT32, rank,
                                       nullptr);
              } else if (kind == kReduce || kind == kOneOfEach) {
                ended = weir_reduce(comm, data.data(), result.data(), count, WEIR_FLOAT32, WEIR_SUM,
                                    kind == kReduce ? 1 - rank : 0, nullptr);
              } else {
                ended = weir_gather(comm, data.data(), result.data(), count, WEIR_FLOAT32, 1 - rank,
                                    nullptr);
              }
            }
            for (int call = 0; call < 2 && ended == WEIR_OK; ++call) {
              ended = call == 0 ? weir_barrier(comm, nullptr)
                                : weir_all_reduce(comm, data.data(), data.data(), 4, WEIR_FLOAT32,
                                                  WEIR_SUM, nullptr);
            }
            EXPECT_EQ(ended, WEIR_ERROR_MISMATCH) << weir_last_error(comm);
            // A message says of which call it is, and no more.
            if (getenv("WEIR_TRANSPORT") != nullptr) return;
            expect_text(comm, "as operation 1:");
            expect_text(comm, kind == kOneOfEach ? "reduce(float32" : "root 0");
            expect_text(comm, kind == kOneOfEach ? "broadcast(float32" : "root 1");
            expect_text(comm, "every rank must call the same");
          },
          {}, with_timeout(60'000));
    }
  }
}

TEST(Mismatch, AnAllToAllVAgainstAnotherCallIsNamedOnEveryRank) {
  for (const char* hooks : {"", "check"}) {
    for (const size_t count : {size_t{3}, size_t{50'000}}) {
      SCOPED_TRACE(std::to_string(count) + " elements, hooks: " + hooks);
      run_processes(
          3,
          [count](int rank, weir_comm_t comm) {
            const auto start = Clock::now();
            const std::vector<size_t> counts(3, count);
            std::vector<float> data(3 * count, 1.0f), result(3 * count);
            const weir_result_t ended =
                rank == 1
                    ? weir_all_reduce(comm, data.data(), data.data(), count, WEIR_FLOAT32, WEIR_SUM,
                                      nullptr)
                    : weir_all_to_all_v(comm, data.data(), counts.data(), nullptr, result.data(),
                                        counts.data(), nullptr, WEIR_FLOAT32, nullptr);
            EXPECT_EQ(ended, WEIR_ERROR_MISMATCH) << weir_last_error(comm);
            EXPECT_LT(seconds_since(start), 10.0);
            expect_text(comm, "all_to_all_v(float32)");
            expect_text(comm, "all_reduce(float32, sum, count " + std::to_string(count) + ")");
          },
          {{"WEIR_HOOKS", hooks}}, with_timeout(60'000));
    }
  }
}

// The rank that differs may fail before it has published its call.
TEST(Mismatch, OfLongOperationsNamesBothCallsOnEveryRank) {
  constexpr size_t kCount = 2 << 20;
  for (int round = 0; round < 5; ++round) {
    run_processes(
        3,
        [&](int rank, weir_comm_t comm) {
          const size_t count = rank == 1 ? kCount - 1 : kCount;
          std::vector<float> data(count, 1.0f);
          std::vector<float> result(3 * count);
          EXPECT_EQ(weir_all_gather(comm, data.data(), result.data(), count, WEIR_FLOAT32, nullptr),
                    WEIR_ERROR_MISMATCH);
          expect_text(comm, "all_gather(float32, count " + std::to_string(kCount) + ")");
          expect_text(comm, "all_gather(float32, count " + std::to_string(kCount - 1) + ")");
        },
        {}, with_timeout(60'000));
    if (HasFailure()) return;
  }
}

// Elements that rank 0 sends to rank 1, and that rank 1 expects.
struct Lengths {
  size_t sent;
  size_t expected;
  size_t of_others = 10;
};

TEST(Mismatch, ABlockOfAnotherLengthInAnAllToAllVIsNamedOnEveryRank) {
  const char* transport = getenv("WEIR_TRANSPORT");
  const bool is_mapped = transport == nullptr || std::string(transport) == "shm";
  for (const Lengths& lengths : {Lengths{8, 10},
                                 {10, 8},
                                 {0, 10},
                                 {10, 0},
                                 {8, 40},
                                 {10, 50'000},
                                 {50'000, 49'999},
                                 // Long messages of other ranks are under way.
                                 {0, 500'000, 500'000}}) {
    SCOPED_TRACE(std::to_string(lengths.sent) + " sent, " + std::to_string(lengths.expected) +
                 " expected");
    run_processes(
        3,
        [&](int rank, weir_comm_t comm) {
          // The second call is the wrong one; with long messages the first, while they connect.
          for (const bool is_right : {true, false}) {
            if (is_right && lengths.of_others > 10) continue;
            std::vector<size_t> from_me(3, lengths.of_others), to_me(3, lengths.of_others);
            if (rank == 0 && !is_right) from_me[1] = lengths.sent;
            if (rank == 1 && !is_right) to_me[0] = lengths.expected;
            const std::vector<float> data(50'000 + 3 * lengths.of_others, 1.0f);
            std::vector<float> result(data.size());
            weir_result_t ended =
                weir_all_to_all_v(comm, data.data(), from_me.data(), nullptr, result.data(),
                                  to_me.data(), nullptr, WEIR_FLOAT32, nullptr);
            if (is_right) {
              ASSERT_EQ(ended, WEIR_OK) << weir_last_error(comm);
              continue;
            }
            // Over messages only the receiver knows at once.
            if (ended == WEIR_OK) ended = weir_barrier(comm, nullptr);
            EXPECT_EQ(ended, WEIR_ERROR_MISMATCH) << weir_last_error(comm);
            expect_text(comm, "rank 0");
            expect_text(comm, "rank 1");
            if (is_mapped) {
              expect_text(comm, "rank 0 sends " + std::to_string(lengths.sent) +
                                    " elements to rank 1, which expects " +
                                    std::to_string(lengths.expected));
            }
          }
        },
        {}, with_timeout(60'000));
  }
}

TEST(Mismatch, OtherBlockCountsOfTheSameSumAreNamedOnEveryRank) {
  for (const bool gathers : {true, false}) {
    SCOPED_TRACE(gathers ? "all_gather_v" : "reduce_scatter_v");
    run_processes(
        3,
        [&](int rank, weir_comm_t comm) {
          std::vector<size_t> counts = {10, 20, 30};
          if (rank == 2) std::swap(counts[0], counts[1]);
          const std::vector<float> data(60, 1.0f);
          std::vector<float> result(60);
          weir_result_t ended =
              gathers ? weir_all_gather_v(comm, data.data(), result.data(), counts.data(), nullptr,
                                          WEIR_FLOAT32, nullptr)
                      : weir_reduce_scatter_v(comm, data.data(), result.data(), counts.data(),
                                              WEIR_FLOAT32, WEIR_SUM, nullptr);
          if (ended == WEIR_OK) ended = weir_barrier(comm, nullptr);
          EXPECT_EQ(ended, WEIR_ERROR_MISMATCH) << weir_last_error(comm);
          expect_text(comm, gathers ? "all_gather_v(float32" : "reduce_scatter_v(float32");
          expect_text(comm, "with different block counts");
        },
        {}, with_timeout(60'000));
  }
}

TEST(Mismatch, IsFoundAlthoughTheRootIsFarAhead) {
  // Through lines, and through slots, where the root's newest calls have taken the place of the
  // mark.
  const SharedCounter ahead;
  for (const size_t count : {size_t{4}, size_t{16'384}}) {
    const bool gets_far = root_gets_far_ahead(count * sizeof(float));
    const auto wait_until_ahead = [&](int calls) {
      if (!gets_far) usleep(200'000);
      for (int i = 0; i < 50'000 && gets_far && ahead.get() < calls; ++i) usleep(1000);
    };
    // The slots hold 32 calls of 64 KiB.
    const int far = count == 4 ? 61 : 51;
    ahead.get() = 0;
    run_processes(
        2,
        [&](int rank, weir_comm_t comm) {
          std::vector<float> data(count, static_cast<float>(rank));
          if (rank == 1) wait_until_ahead(30);
          weir_result_t result = WEIR_OK;
          for (int i = 0; i < 100 && result == WEIR_OK; ++i) {
            const bool is_wrong = rank == 1 && i == 20;
            if (is_wrong) wait_until_ahead(far);
            const weir_datatype_t type = is_wrong ? WEIR_INT32 : WEIR_FLOAT32;
            result = weir_broadcast(comm, data.data(), data.data(), data.size(), type, 0, nullptr);
            if (rank == 0 && result == WEIR_OK) ++ahead.get();
          }
          // Where connections hold all that a root sends, it learns of it when it waits.
          if (result == WEIR_OK) result = weir_barrier(comm, nullptr);
          EXPECT_EQ(result, WEIR_ERROR_MISMATCH) << weir_last_error(comm);
          expect_text(comm, "operation 21:");
          expect_text(comm, "float32");
          expect_text(comm, "int32");
          if (rank == 0 && gets_far) {
            EXPECT_GE(ahead.get(), far) << "the root could not work ahead";
          }
        },
        {}, with_timeout(60'000));
  }
}

TEST(Deadline, NamesTheRankThatNeverCalled) {
  // It stays until the others have been told: on a busy machine that takes its time.
  const SharedCounter told;
  Promises promises;
  promises.hold([&] {
    told.get() = 0;
    const int timeout_ms = 500 * promises.scale();
    run_processes(
        3,
        [&](int rank, weir_comm_t comm) {
          int32_t value = 1;
          ASSERT_EQ(weir_all_reduce(comm, &value, &value, 1, WEIR_INT32, WEIR_SUM, nullptr),
                    WEIR_OK);
          ASSERT_EQ(weir_comm_set_timeout(comm, timeout_ms), WEIR_OK);
          if (rank == 2) {
            told.wait_for(2);
            return;
          }
          const auto start = Clock::now();
          EXPECT_EQ(weir_all_reduce(comm, &value, &value, 1, WEIR_INT32, WEIR_SUM, nullptr),
                    WEIR_ERROR_TIMEOUT);
          promises.within(2e-3 * timeout_ms, start);
          ++told.get();
          expect_text(comm, "rank 2");
          expect_text(comm, "all_reduce(int32, sum, count 1)");
          expect_text(comm, std::to_string(timeout_ms) + " ms");
        },
        {}, with_timeout(60'000));
  });
}

// A rank that aborts because of a death is not the only one that is named.
TEST(Abort, AfterADeathNamesTheRankThatDied) {
  const std::vector<int> statuses = run_processes_status(
      3,
      [](int rank, weir_comm_t comm) {
        ASSERT_EQ(weir_barrier(comm, nullptr), WEIR_OK) << weir_last_error(comm);
        if (rank == 1) {
          usleep(100'000);  // the others have finished the barrier
          raise(SIGKILL);
        }
        if (rank == 2) {
          usleep(600'000);  // rank 0 waits, and knows of the death
          EXPECT_EQ(weir_comm_abort(comm), WEIR_OK);
          usleep(300'000);
          return;
        }
        int32_t value = 0;
        EXPECT_NE(weir_recv(comm, &value, 1, WEIR_INT32, 2, nullptr), WEIR_OK);
        expect_text(comm, "rank 1 died");
      },
      {}, with_timeout(60'000));
  EXPECT_EQ(statuses, (std::vector<int>{0, 128 + SIGKILL, 0}));
}

TEST(LostRank, EverySurvivorNamesItAndShrinkGoesOn) {
  // Until every rank has finished the first operation, a rank that dies may fail it for the others.
  const SharedCounter finished;
  for (const size_t count : {size_t{1}, size_t{3'000'000}}) {
    Promises promises;
    promises.hold([&] {
      finished.get() = 0;
      const std::vector<int> statuses = run_processes_status(
          4,
          [&](int rank, weir_comm_t comm) {
            std::vector<float> data(count, 1.0f);
            ASSERT_EQ(weir_all_reduce(comm, data.data(), data.data(), count, WEIR_FLOAT32, WEIR_SUM,
                                      nullptr),
                      WEIR_OK)
                << weir_last_error(comm);
            ++finished.get();
            if (rank == 2) {
              finished.wait_for(4);
              raise(SIGKILL);
            }
            const auto start = Clock::now();
            weir_result_t result = WEIR_OK;
            while (result == WEIR_OK) {
              result = weir_all_reduce(comm, data.data(), data.data(), count, WEIR_FLOAT32,
                                       WEIR_SUM, nullptr);
            }
            EXPECT_EQ(result, WEIR_ERROR_PEER_LOST) << weir_last_error(comm);
            promises.within(4.0, start);
            expect_text(comm, "rank 2");
            int lost[4] = {-1, -1, -1, -1};
            int lost_count = 0;
            ASSERT_EQ(weir_comm_lost_ranks(comm, lost, 4, &lost_count), WEIR_OK);
            ASSERT_EQ(lost_count, 1);
            EXPECT_EQ(lost[0], 2);
            weir_comm_t smaller = nullptr;
            ASSERT_EQ(weir_comm_shrink(comm, lost, 1, nullptr, &smaller), WEIR_OK)
                << weir_last_error(comm);
            check_every_collective(smaller, 1000);
            ASSERT_EQ(weir_comm_destroy(smaller), WEIR_OK);
          },
          {}, with_timeout(60'000));
      EXPECT_EQ(statuses, (std::vector<int>{0, 0, 128 + SIGKILL, 0}));
    });
    if (HasFailure()) return;  // which a forked rank would inherit
  }
}

// It has not finished what it broke off, so the others need not wait to hear how it ended.
TEST(LostRank, OneThatDestroysACommunicatorAmidAnOperationIsNamedAtOnce) {
  const SharedCounter destroyed;
  run_processes(
      3,
      [&](int rank, weir_comm_t comm) {
        weir_comm_t own = nullptr;
        ASSERT_EQ(weir_comm_split(comm, 0, rank, nullptr, &own), WEIR_OK) << weir_last_error(comm);
        std::vector<float> data(100'000, 1);
        if (rank == 1) {
          weir_request_t request = nullptr;
          ASSERT_EQ(weir_all_reduce(own, data.data(), data.data(), data.size(), WEIR_FLOAT32,
                                    WEIR_SUM, &request),
                    WEIR_OK);
          ASSERT_EQ(weir_comm_destroy(own), WEIR_OK);
          EXPECT_EQ(weir_wait(&request), WEIR_ERROR_ABORTED);
          ++destroyed.get();
        } else {
          destroyed.wait_for(1);
          const auto start = Clock::now();
          EXPECT_EQ(weir_all_reduce(own, data.data(), data.data(), data.size(), WEIR_FLOAT32,
                                    WEIR_SUM, nullptr),
                    WEIR_ERROR_PEER_LOST);
          EXPECT_LT(Clock::now() - start, std::chrono::seconds(4));
          expect_text(own, "rank 1 destroyed the communicator");
          ASSERT_EQ(weir_comm_destroy(own), WEIR_OK);
        }
        EXPECT_EQ(weir_barrier(comm, nullptr), WEIR_OK) << weir_last_error(comm);
      },
      {}, with_timeout(60'000));
}

// Ranks that have destroyed a communicator will not come to a shrink of it, whether it had failed
// on them or not, although their processes go on.
TEST(LostRank, OneThatDestroyedAFailedCommunicatorIsNamedAndShrinkGoesOnWithoutIt) {
  for (const bool aborts : {false, true}) {
    const SharedCounter finished;
    run_processes(
        4,
        [&](int rank, weir_comm_t comm) {
          weir_comm_t own = nullptr;
          ASSERT_EQ(weir_comm_split(comm, 0, rank, nullptr, &own), WEIR_OK)
              << weir_last_error(comm);
          if (rank == 2) {
            ASSERT_EQ(weir_comm_destroy(own), WEIR_OK);
          } else {
            float value = 1;
            const weir_result_t result =
                weir_all_reduce(own, &value, &value, 1, WEIR_FLOAT32, WEIR_SUM, nullptr);
            EXPECT_EQ(result, WEIR_ERROR_PEER_LOST) << weir_last_error(own);
            expect_text(own, "rank 2 destroyed the communicator");
          }
          if (rank == 1) {
            if (aborts) weir_comm_abort(own);
            ASSERT_EQ(weir_comm_destroy(own), WEIR_OK);
          }
          if (rank == 1 || rank == 2) {
            finished.wait_for(2);
            return;
          }
          int lost[4] = {2};
          weir_comm_t smaller = nullptr;
          EXPECT_EQ(weir_comm_shrink(own, lost, 1, nullptr, &smaller), WEIR_ERROR_PEER_LOST);
          expect_text(
              own,
              "rank 1 destroyed the communicator before all ranks had called weir_comm_shrink");
          int lost_count = 0;
          ASSERT_EQ(weir_comm_lost_ranks(own, lost, 4, &lost_count), WEIR_OK);
          EXPECT_EQ(lost_count, 2);
          EXPECT_EQ(lost[0], 1);
          EXPECT_EQ(lost[1], 2);
          EXPECT_EQ(weir_comm_shrink(own, lost, lost_count, nullptr, &smaller), WEIR_OK)
              << weir_last_error(own);
          if (smaller != nullptr) check_every_collective(smaller, 1000);
          ++finished.get();
          EXPECT_EQ(weir_comm_destroy(smaller), WEIR_OK);
          EXPECT_EQ(weir_comm_destroy(own), WEIR_OK);
        },
        {}, with_timeout(60'000));
  }
}

TEST(LeavingRank, AfterItsLastOperationIsNoLossToThoseStillAtWork) {
  // The hook hides the shared memory in which ranks leave their word; then they leave it elsewhere.
  for (const Environment& environment :
       {Environment{}, Environment{{"WEIR_ALGORITHM", "broadcast=binomial"}},
        Environment{{"WEIR_ALGORITHM", "broadcast=binomial"}, {"WEIR_HOOKS", "check"}},
        // Rank 3 asks for what rank 0 has sent only when rank 2 has come.
        Environment{{"WEIR_ALGORITHM", "broadcast=hierarchical"}, {"WEIR_SLICE_BYTES", "0"}}}) {
    run_processes(
        4,
        [](int rank, weir_comm_t comm) {
          std::vector<float> data = inputs(rank, 100);
          const std::vector<float> roots = inputs(0, 100);
          // Ranks 0 and 1 have gone long before rank 2 has called, and rank 3 waits for it.
          if (rank == 2) usleep(500'000);
          EXPECT_EQ(
              weir_broadcast(comm, data.data(), data.data(), data.size(), WEIR_FLOAT32, 0, nullptr),
              WEIR_OK)
              << weir_last_error(comm);
          EXPECT_EQ(data, roots);
        },
        environment, with_timeout(60'000));
  }
}

TEST(StoppedRank, EverySurvivorNamesItWithinTwiceTheTimeout) {
  Promises promises;
  promises.hold([&] {
    const int timeout_ms = 2'000 * promises.scale();
    const SharedCounter asked;
    const std::vector<int> statuses = run_processes_status(
        3,
        [&](int rank, weir_comm_t comm) {
          std::vector<float> data(100'000, 1.0f);
          if (rank == 1) {
            const pid_t self = getpid();
            if (fork() == 0) {  // wakes it at the end, so that the test can collect it
              std::this_thread::sleep_for(std::chrono::milliseconds(3 * timeout_ms));
              kill(self, SIGKILL);
              _exit(0);
            }
            raise(SIGSTOP);
          }
          ASSERT_EQ(weir_comm_set_timeout(comm, timeout_ms), WEIR_OK);
          const auto start = Clock::now();
          EXPECT_EQ(weir_all_reduce(comm, data.data(), data.data(), data.size(), WEIR_FLOAT32,
                                    WEIR_SUM, nullptr),
                    WEIR_ERROR_TIMEOUT);
          promises.within(2e-3 * timeout_ms, start);
          expect_text(comm, "rank 1");
          int lost = -1;
          int lost_count = 0;
          ASSERT_EQ(weir_comm_lost_ranks(comm, &lost, 1, &lost_count), WEIR_OK);
          EXPECT_EQ(lost_count, 1);
          EXPECT_EQ(lost, 1);
          // Who leaves is lost, too: not before the other survivor has asked.
          ++asked.get();
          asked.wait_for(2);
        },
        {}, with_timeout(60'000));
    EXPECT_EQ(statuses, (std::vector<int>{0, 128 + SIGKILL, 0}));
  });
}

TEST(Abort, ReturnsAtOnceWithEveryPeerDead) {
  Promises promises;
  promises.hold([&] {
    const std::vector<int> statuses = run_processes_status(
        3,
        [&](int rank, weir_comm_t comm) {
          if (rank != 0) raise(SIGKILL);
          std::thread blocked([&] {
            int32_t value = 1;
            const weir_result_t result =
                weir_all_reduce(comm, &value, &value, 1, WEIR_INT32, WEIR_SUM, nullptr);
            EXPECT_TRUE(result == WEIR_ERROR_ABORTED || result == WEIR_ERROR_PEER_LOST) << result;
          });
          usleep(1'000);
          const auto start = Clock::now();
          EXPECT_EQ(weir_comm_abort(comm), WEIR_OK);
          promises.within(0.1, start);
          blocked.join();
          promises.within(0.2, start);
        },
        {}, with_timeout(60'000));
    EXPECT_EQ(statuses[0], 0);
  });
}

TEST(Abort, ReachesPeersThatWait) {
  run_threads(
      3,
      [](int rank, weir_comm_t comm) {
        if (rank == 0) {
          usleep(100'000);
          EXPECT_EQ(weir_comm_abort(comm), WEIR_OK);
          usleep(300'000);
          return;
        }
        EXPECT_EQ(weir_barrier(comm, nullptr), WEIR_ERROR_ABORTED);
        expect_text(comm, "rank 0 aborted");
      },
      with_timeout(60'000));
}

// Tensors of a list lie where they lie: what is between the blocks of a buffer is not the buffer's.
TEST(Arguments, BlocksOfTwoBuffersMayLieBetweenEachOther) {
  run_threads(2, [](int rank, weir_comm_t comm) {
    constexpr size_t kOne = 40'000;
    std::vector<float> all(4 * kOne, -1);
    const std::vector<size_t> counts(2, kOne);
    const std::vector<size_t> first_and_third = {0, 2 * kOne};
    std::fill_n(all.begin() + kOne, kOne, static_cast<float>(rank + 1));
    ASSERT_EQ(weir_all_gather_v(comm, all.data() + kOne, all.data(), counts.data(),
                                first_and_third.data(), WEIR_FLOAT32, nullptr),
              WEIR_OK)
        << weir_last_error(comm);
    for (size_t i = 0; i < kOne; ++i) {
      ASSERT_EQ(all[i], 1);
      ASSERT_EQ(all[2 * kOne + i], 2);
      ASSERT_EQ(all[kOne + i], static_cast<float>(rank + 1));
      ASSERT_EQ(all[3 * kOne + i], -1);
    }
    // Sends the second and fourth part, receives into the first and third.
    std::fill_n(all.begin() + kOne, kOne, static_cast<float>(10 * rank));
    std::fill_n(all.begin() + 3 * kOne, kOne, static_cast<float>(10 * rank + 1));
    ASSERT_EQ(
        weir_all_to_all_v(comm, all.data() + kOne, counts.data(), first_and_third.data(),
                          all.data(), counts.data(), first_and_third.data(), WEIR_FLOAT32, nullptr),
        WEIR_OK)
        << weir_last_error(comm);
    for (size_t i = 0; i < kOne; ++i) {
      ASSERT_EQ(all[i], static_cast<float>(rank));
      ASSERT_EQ(all[2 * kOne + i], static_cast<float>(10 + rank));
    }
    const std::vector<size_t> by_one = {0, kOne + 1};
    EXPECT_EQ(weir_all_to_all_v(comm, all.data() + kOne, counts.data(), first_and_third.data(),
                                all.data(), counts.data(), by_one.data(), WEIR_FLOAT32, nullptr),
              WEIR_ERROR_INVALID_ARGUMENT);
    expect_text(comm, "overlap");
  });
}

TEST(Arguments, AreRefusedWithTheValueAndNothingIsSent) {
  run_threads(2, [](int rank, weir_comm_t comm) {
    float data[8] = {};
    const auto refused = [&](weir_result_t result, const char* text) {
      EXPECT_EQ(result, WEIR_ERROR_INVALID_ARGUMENT) << text;
      expect_text(comm, text);
    };
    refused(weir_all_reduce(comm, nullptr, data, 1, WEIR_FLOAT32, WEIR_SUM, nullptr),
            "send is NULL");
    refused(weir_all_reduce(comm, data, nullptr, 1, WEIR_FLOAT32, WEIR_SUM, nullptr),
            "recv is NULL");
    refused(weir_all_reduce(comm, data, data, SIZE_MAX / 2, WEIR_FLOAT32, WEIR_SUM, nullptr),
            "overflows");
    refused(weir_all_gather(comm, data, data + 4, SIZE_MAX / 12, WEIR_FLOAT32, nullptr),
            "overflows");
    refused(weir_all_reduce(comm, data, data + 1, 4, WEIR_FLOAT32, WEIR_SUM, nullptr), "overlap");
    refused(
        weir_all_reduce(comm, data, data, 1, static_cast<weir_datatype_t>(12), WEIR_SUM, nullptr),
        "data type 12");
    refused(weir_all_reduce(comm, data, data, 1, WEIR_FLOAT32, 5, nullptr), "reduction 5");
    refused(weir_all_reduce(comm, data, data, 1, WEIR_FLOAT32, 99, nullptr), "reduction 99");
    refused(weir_broadcast(comm, data, data, 1, WEIR_FLOAT32, 2, nullptr), "root 2");
    refused(weir_broadcast(comm, data, data, 1, WEIR_FLOAT32, -1, nullptr), "root -1");
    refused(weir_send(comm, data, 1, WEIR_FLOAT32, 7, nullptr), "peer 7");
    refused(weir_comm_set_timeout(comm, 0), "0 ms");
    EXPECT_EQ(weir_send(comm, data, 1, WEIR_FLOAT32, rank, nullptr), WEIR_ERROR_INVALID_USAGE);
    EXPECT_EQ(weir_group_end(), WEIR_ERROR_INVALID_USAGE);
    // The communicator is as before.
    check_every_collective(comm, 100);
  });
  EXPECT_EQ(weir_all_reduce(nullptr, nullptr, nullptr, 0, WEIR_FLOAT32, WEIR_SUM, nullptr),
            WEIR_ERROR_INVALID_ARGUMENT);
  weir_comm_t comm = nullptr;
  const weir_unique_id_t id = make_id();
  EXPECT_EQ(weir_comm_create(&comm, 2, &id, 2, nullptr), WEIR_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(comm, nullptr);
  EXPECT_EQ(weir_comm_create(&comm, 0, &id, 0, nullptr), WEIR_ERROR_INVALID_ARGUMENT);
  EXPECT_NE(std::string(weir_last_error(nullptr)).find("rank_count is 0"), std::string::npos);
  weir_comm_config_t named = WEIR_COMM_CONFIG_INIT;
  named.name = "a\n\x1b[31mname";
  ASSERT_EQ(weir_comm_create(&comm, 1, &id, 0, &named), WEIR_OK) << weir_last_error(nullptr);
  ASSERT_EQ(weir_comm_abort(comm), WEIR_OK);
  EXPECT_EQ(weir_barrier(comm, nullptr), WEIR_ERROR_ABORTED);
  expect_text(comm, "a??[31mname");
  EXPECT_EQ(weir_comm_destroy(comm), WEIR_OK);
  weir_unique_id_t junk{};
  EXPECT_EQ(weir_comm_create(&comm, 1, &junk, 0, nullptr), WEIR_ERROR_INVALID_ARGUMENT);
}

TEST(Environment, AnUnknownValueIsAnErrorThatNamesIt) {
  const std::vector<int> statuses =
      run_processes_status(1, [](int, weir_comm_t) {}, {{"WEIR_TIMEOUT_MS", "soon"}});
  EXPECT_EQ(statuses[0], 1);  // creation failed; the text is held by the settings' own tests
  run_processes(1, [](int, weir_comm_t comm) { ASSERT_NE(comm, nullptr); },
                {{"WEIR_TIMEOUT_MS", "1000"}});
}

TEST(Creation, NamesTheRanksThatAreMissing) {
  Promises promises;
  promises.hold([&] {
    const weir_unique_id_t id = make_id();
    const int timeout_ms = 500 * promises.scale();
    const weir_comm_config_t config = with_timeout(timeout_ms);
    std::vector<std::thread> threads;
    for (const int rank : {0, 2}) {
      threads.emplace_back([&, rank] {
        weir_comm_t comm = nullptr;
        const auto start = Clock::now();
        EXPECT_EQ(weir_comm_create(&comm, 4, &id, rank, &config), WEIR_ERROR_TIMEOUT);
        promises.within(2e-3 * timeout_ms, start);
        const std::string text = weir_last_error(nullptr);
        EXPECT_NE(text.find("ranks 1, 3"), std::string::npos) << text;
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

std::set<std::string> open_files() {
  std::set<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    files.insert(entry.path().filename().string() + " " +
                 std::filesystem::read_symlink(entry.path(), error).string());
  }
  return files;
}

// Of shared memory; the allocator's mappings are its own affair.
size_t shared_mapping_count() {
  std::ifstream maps("/proc/self/maps");
  size_t count = 0;
  for (std::string address, rights, line; maps >> address >> rights && std::getline(maps, line);) {
    count += rights.size() == 4 && rights[3] == 's';
  }
  return count;
}

// This user's, but the recorder's folder, which is private to the user and keeps what failed
// communicators did last.
std::set<std::string> names_in_shm() {
  const std::string recorder = "weir-" + std::to_string(geteuid());
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename().string();
    struct stat status {};
    if (lstat(entry.path().c_str(), &status) != 0 || status.st_uid != geteuid()) continue;
    if (name.find("weir") != std::string::npos && name != recorder) names.insert(name);
  }
  return names;
}

TEST(Leaks, CommunicatorsLeaveNoDescriptorAndNoMapping) {
  const auto cycle = [] {
    run_threads(2, [](int, weir_comm_t comm) {
      int32_t value = 1;
      ASSERT_EQ(weir_all_reduce(comm, &value, &value, 1, WEIR_INT32, WEIR_SUM, nullptr), WEIR_OK);
      void* memory = nullptr;
      ASSERT_EQ(weir_mem_alloc(comm, 100'000, &memory), WEIR_OK);
      weir_comm_t half = nullptr;
      ASSERT_EQ(weir_comm_split(comm, 0, 0, nullptr, &half), WEIR_OK);
      ASSERT_EQ(weir_comm_destroy(half), WEIR_OK);
    });
  };
  for (int i = 0; i < 3; ++i) cycle();
  const size_t files = open_files().size();
  const size_t mappings = shared_mapping_count();
  for (int i = 0; i < 30; ++i) cycle();
  EXPECT_EQ(open_files().size(), files);
  EXPECT_EQ(shared_mapping_count(), mappings);
  EXPECT_EQ(names_in_shm(), std::set<std::string>());
}

}  // namespace
}  // namespace weir::test
