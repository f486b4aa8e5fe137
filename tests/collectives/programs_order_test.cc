// SPDX-License-Identifier: Apache-2.0
// weir_comm_add_program beside other calls of the same communicator, and with ranks that cannot or
// do not come: all ranks have the error at once, and no collective runs different programs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <initializer_list>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/algo/check.h"
#include "core/sched/json.h"
#include "support/ranks.h"

namespace weir::test {
namespace {

using testing::AnyOf;
using testing::Eq;
using testing::HasSubstr;
using Clock = std::chrono::steady_clock;

constexpr int kTimeoutMs = 60'000;
constexpr std::chrono::seconds kAtOnce{20};

weir_comm_config_t patient() {
  weir_comm_config_t config = WEIR_COMM_CONFIG_INIT;
  config.timeout_ms = kTimeoutMs;
  return config;
}

std::string text(std::initializer_list<std::string_view> parts) {
  std::string all;
  for (const std::string_view part : parts) all += part;
  return all;
}

// An all_reduce of messages whose chunks travel in this order: another order is another program,
// whose messages have the same lengths.
std::string all_reduce_of(Rank n, bool backwards) {
  std::string programs;
  constexpr int kChunks = 2;
  for (Rank r = 0; r < n; ++r) {
    std::string ops;
    const auto add = [&ops](const std::string& op) { ops += (ops.empty() ? "" : ",") + op; };
    for (int i = 0; i < kChunks; ++i) {
      const std::string chunk = std::to_string(backwards ? kChunks - 1 - i : i);
      std::string operands;
      for (Rank p = 0; p < n; ++p) {
        if (p == r) continue;
        add(text({R"({"op":"send","peer":)", std::to_string(p), R"(,"src":["in",)", chunk, "]}"}));
      }
      for (Rank p = 0; p < n; ++p) {
        const std::string slot = std::to_string(p);
        if (p != r) {
          add(text({R"({"op":"recv","peer":)", slot, R"(,"dst":["scratch",)", slot, "]}"}));
        }
        operands += p == 0 ? "" : ",";
        operands += p == r ? text({R"(["in",)", chunk, "]"}) : text({R"(["scratch",)", slot, "]"});
      }
      add(text({R"({"op":"reduce","dst":["out",)", chunk, R"(],"operands":[)", operands, "]}"}));
    }
    programs += r == 0 ? "" : ",";
    programs += text({R"({"rank":)", std::to_string(r), R"(,"ops":[)", ops, "]}"});
  }
  return text({R"({"format":"weir-programs","version":1,"collective":"all_reduce",)",
               R"("rank_count":)", std::to_string(n), R"(,"shape":{"chunk_count":2,)",
               R"("scratch_slots":)", std::to_string(n), R"(},"programs":[)", programs, "]}"});
}

// A broadcast of two ranks, one chunk in each lane.
std::string broadcast_of_lanes(int lanes) {
  std::string sends, recvs;
  for (int i = 0; i < lanes; ++i) {
    const std::string n = std::to_string(i);
    const char* separator = i == 0 ? "" : ",";
    sends +=
        text({separator, R"({"op":"copy","dst":["out",)", n, R"(],"src":["in",)", n, R"(],"lane":)",
              n, R"(},{"op":"send","peer":1,"src":["in",)", n, R"(],"lane":)", n, "}"});
    recvs += text({separator, R"({"op":"recv","peer":0,"dst":["out",)", n, R"(],"lane":)", n, "}"});
  }
  return text({R"({"format":"weir-programs","version":1,"collective":"broadcast",)",
               R"("rank_count":2,"root":0,"shape":{"chunk_count":)", std::to_string(lanes),
               R"(,"lane_count":)", std::to_string(lanes), R"(},"programs":[{"rank":0,"ops":[)",
               sends, R"(]},{"rank":1,"ops":[)", recvs, "]}]}"});
}

weir_result_t add(weir_comm_t comm, const std::string& name, const std::string& text,
                  uint32_t flags = WEIR_PROGRAM_PREFERRED) {
  return weir_comm_add_program(comm, name.c_str(), text.data(), text.size(), flags);
}

// Every element of each half is the sum of what the ranks give for that half.
void expect_right_sum(int rank, int n, weir_comm_t comm) {
  constexpr size_t kCount = 1024;
  std::vector<float> in(kCount), out(kCount);
  const auto factor_of = [](size_t i) -> size_t { return i < kCount / 2 ? 1 : 2; };
  for (size_t i = 0; i < kCount; ++i) in[i] = static_cast<float>((rank + 1) * factor_of(i));
  ASSERT_EQ(weir_all_reduce(comm, in.data(), out.data(), kCount, WEIR_FLOAT32, WEIR_SUM, nullptr),
            WEIR_OK)
      << weir_last_error(comm);
  for (size_t i = 0; i < kCount; ++i) {
    const int ranks = n * (n + 1) / 2;
    ASSERT_EQ(out[i], static_cast<float>(ranks * factor_of(i))) << i;
  }
}

class ProgramsOver : public testing::TestWithParam<const char*> {
 protected:
  Environment environment() const { return {{"WEIR_TRANSPORT", GetParam()}}; }
};
INSTANTIATE_TEST_SUITE_P(All, ProgramsOver, testing::Values("shm", "tcp"),
                         [](const auto& one) { return std::string(one.param); });

TEST_P(ProgramsOver, ThreadsOfCollectivesAreAddedByAllRanksOrByNone) {
  constexpr int kRanks = 3;
  run_processes(
      kRanks,
      [](int rank, weir_comm_t comm) {
        ASSERT_EQ(add(comm, "first", all_reduce_of(kRanks, true)), WEIR_OK)
            << weir_last_error(comm);
        std::thread adder([&] {
          uint32_t added_count = 0;
          for (int i = 0; i < 60; ++i) {
            const weir_result_t added =
                add(comm, "p" + std::to_string(i), all_reduce_of(kRanks, added_count % 2 == 1));
            ASSERT_THAT(added, AnyOf(Eq(WEIR_OK), Eq(WEIR_ERROR_INVALID_USAGE)))
                << weir_last_error(comm);
            if (added == WEIR_OK) ++added_count;
          }
        });
        for (int i = 0; i < 3000 && !testing::Test::HasFailure(); ++i) {
          if (i % 20 == 19) usleep(1000);
          expect_right_sum(rank, kRanks, comm);
        }
        adder.join();
      },
      environment(), patient());
}

TEST_P(ProgramsOver, AnotherOrderOfCallsAreRefusedOnAllRanksAndNameTwoOfThem) {
  constexpr int kRanks = 3;
  // A broadcast ends on its root before the others call it; an all_reduce waits for them.
  for (const bool waits : {false, true}) {
    run_processes(
        kRanks,
        [waits](int rank, weir_comm_t comm) {
          const auto run = [&] {
            if (waits) return expect_right_sum(rank, kRanks, comm);
            std::vector<float> data(2048, rank == 0 ? 5 : 0);
            ASSERT_EQ(weir_broadcast(comm, data.data(), data.data(), data.size(), WEIR_FLOAT32, 0,
                                     nullptr),
                      WEIR_OK);
            ASSERT_EQ(data, std::vector<float>(2048, 5));
          };
          const std::string text = all_reduce_of(kRanks, false);
          const auto start = Clock::now();
          if (rank == 0) run();
          EXPECT_EQ(add(comm, "late", text), WEIR_ERROR_INVALID_USAGE);
          const std::string told = weir_last_error(comm);
          EXPECT_THAT(told, HasSubstr("rank 0 has begun operation 1, and rank "));
          EXPECT_THAT(told, HasSubstr("has called weir_comm_add_program after operation 0: all "
                                      "ranks must call it between the same operations"));
          if (rank != 0) run();
          EXPECT_LT(Clock::now() - start, kAtOnce);
          // The communicator is as before, and the next call meets those of the other ranks.
          ASSERT_EQ(add(comm, "late", text), WEIR_OK) << weir_last_error(comm);
          expect_right_sum(rank, kRanks, comm);
        },
        environment(), patient());
  }
}

// What a thread calls while another one adds programs begins after that.
TEST_P(ProgramsOver, ACallThatComesMeanwhileWaitsForThem) {
  run_processes(
      2,
      [](int rank, weir_comm_t comm) {
        const std::string text = all_reduce_of(2, false);
        std::atomic<bool> added{false};
        std::thread adder([&] {
          if (rank == 1) usleep(500'000);
          EXPECT_EQ(add(comm, "mine", text), WEIR_OK) << weir_last_error(comm);
          added = true;
        });
        if (rank == 0) usleep(200'000);
        if (rank == 1) adder.join();
        expect_right_sum(rank, 2, comm);
        EXPECT_TRUE(added || rank == 0);
        if (rank == 0) adder.join();
        expect_right_sum(rank, 2, comm);
      },
      environment(), patient());
}

// An operation that rank 0 has called goes on while it waits for the others to come.
TEST_P(ProgramsOver, AnOperationInFlightIsFinishedMeanwhile) {
  run_processes(
      2,
      [](int rank, weir_comm_t comm) {
        int one = 1, sum = 0;
        weir_request_t request = nullptr;
        ASSERT_EQ(weir_all_reduce(comm, &one, &sum, 1, WEIR_INT32, WEIR_SUM, &request), WEIR_OK);
        if (rank == 1) {
          ASSERT_EQ(weir_wait(&request), WEIR_OK) << weir_last_error(comm);
        }
        const auto start = Clock::now();
        const weir_result_t added = add(comm, "mine", all_reduce_of(2, false));
        EXPECT_THAT(added, AnyOf(Eq(WEIR_OK), Eq(WEIR_ERROR_INVALID_USAGE)))
            << weir_last_error(comm);
        EXPECT_LT(Clock::now() - start, kAtOnce);
        if (rank == 0) {
          ASSERT_EQ(weir_wait(&request), WEIR_OK) << weir_last_error(comm);
        }
        EXPECT_EQ(sum, 2);
      },
      environment(), patient());
}

TEST_P(ProgramsOver, ARankThatHasGoneIsNamedAtOnce) {
  constexpr int kRanks = 4;
  constexpr int kLast = kRanks - 1;
  enum End { kDies, kDestroys, kAborts };
  for (const End end : {kDies, kDestroys, kAborts}) {
    run_processes(
        kRanks,
        [end](int rank, weir_comm_t comm) {
          if (rank == kLast) {
            usleep(200'000);
            if (end == kDestroys) return;
            if (end == kAborts) {
              EXPECT_EQ(weir_comm_abort(comm), WEIR_OK);
              usleep(3'000'000);
            }
            _exit(0);
          }
          if (rank == 1) usleep(500'000);
          const auto start = Clock::now();
          EXPECT_EQ(add(comm, "mine", all_reduce_of(kRanks, false)),
                    end == kAborts ? WEIR_ERROR_ABORTED : WEIR_ERROR_PEER_LOST);
          EXPECT_LT(Clock::now() - start, kAtOnce);
          EXPECT_THAT(weir_last_error(comm), HasSubstr("rank 3 "));
        },
        environment(), patient());
  }
}

TEST_P(ProgramsOver, AWrongArgumentOfOneRankIsAnErrorOnAllAtOnce) {
  run_processes(
      3,
      [](int rank, weir_comm_t comm) {
        const std::string right = all_reduce_of(3, false);
        const auto start = Clock::now();
        const auto refused = [&](const char* name, const char* text, uint32_t flags,
                                 const char* expected) {
          const bool mistakes = rank == 1;
          EXPECT_EQ(
              weir_comm_add_program(comm, mistakes ? name : "mine", mistakes ? text : right.data(),
                                    right.size(), mistakes ? flags : 0),
              WEIR_ERROR_INVALID_ARGUMENT);
          EXPECT_THAT(weir_last_error(comm), HasSubstr(expected));
        };
        refused(nullptr, right.data(), 0, "rank 1: name is NULL");
        refused("mine", nullptr, 0, "rank 1: text is NULL");
        refused("mine", right.data(), 2, "rank 1: flags 0x2 are not WEIR_PROGRAM_*");
        EXPECT_LT(Clock::now() - start, kAtOnce);
        EXPECT_EQ(add(comm, "mine", right), WEIR_OK) << weir_last_error(comm);
        expect_right_sum(rank, 3, comm);
      },
      environment(), patient());
}

TEST_P(ProgramsOver, WhatCannotRunIsUnsupported) {
  const bool maps = std::string(GetParam()) == "shm";
  run_processes(
      2,
      [maps](int, weir_comm_t comm) {
        const int lanes = maps ? 14 : 4;
        EXPECT_EQ(add(comm, "most", broadcast_of_lanes(lanes)), WEIR_OK) << weir_last_error(comm);
        EXPECT_EQ(add(comm, "more", broadcast_of_lanes(lanes + 1)), WEIR_ERROR_UNSUPPORTED);
        EXPECT_THAT(weir_last_error(comm), HasSubstr(maps ? "'more' has 15 lanes, and transport "
                                                            "'shm' has 14 for programs"
                                                          : "'more' has 5 lanes, and transport "
                                                            "'tcp' has 4 for programs"));
        algo::Problem problem;
        problem.rank_count = 2;
        problem.mapped = true;
        const algo::Algorithm* direct = algo::find_algorithm(Collective::kAllReduce, "direct");
        const std::string text =
            sched::to_json({algo::access_of(problem), algo::compile_all(*direct, problem)});
        EXPECT_EQ(add(comm, "direct_2", text), maps ? WEIR_OK : WEIR_ERROR_UNSUPPORTED);
        if (!maps) {
          EXPECT_THAT(weir_last_error(comm),
                      HasSubstr("works in memory of peers, which transport 'tcp' does not map"));
        }
      },
      environment(), patient());
}

}  // namespace
}  // namespace weir::test
