// SPDX-License-Identifier: Apache-2.0
#include "core/sched/moved_chunks.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "core/algo/check.h"
#include "sched/problems.h"

namespace weir::sched {
namespace {

// The k-th send of one rank to another and the k-th recv must be told the same chunks.
TEST(MovedChunks, BothEndsOfEveryMessageAgree) {
  std::set<std::string> unknown;
  for (const algo::Algorithm* algorithm : algo::all_algorithms()) {
    for (Rank n : {2u, 3u, 5u, 6u, 8u, 13u}) {
      algo::for_each_problem(*algorithm, n, {n / 2}, [&](const algo::TestProblem& test) {
        std::map<std::tuple<Rank, Rank, uint32_t>, std::deque<std::vector<uint32_t>>> sent;
        const std::vector<Program> programs = algo::compile_all(*algorithm, test.get());
        const auto chunks_of = [](const MovedChunks& moved, uint32_t op_index, uint32_t count) {
          std::vector<uint32_t> chunks;
          for (uint32_t k = 0; k < count; ++k) chunks.push_back(moved.chunk(op_index, k));
          return chunks;
        };
        for (const Program& program : programs) {
          const MovedChunks moved(program);
          if (!moved.all_messages_known()) {
            unknown.insert(std::string(name_of(algorithm->collective)) + "/" + algorithm->name);
          }
          for (uint32_t i = 0; i < program.ops.size(); ++i) {
            const Op& op = program.ops[i];
            if (op.code != OpCode::kSend) continue;
            sent[{program.rank, op.peer, op.lane}].push_back(chunks_of(moved, i, op.count));
          }
        }
        for (const Program& program : programs) {
          const MovedChunks moved(program);
          for (uint32_t i = 0; i < program.ops.size(); ++i) {
            const Op& op = program.ops[i];
            if (op.code != OpCode::kRecv) continue;
            auto& queue = sent[{op.peer, program.rank, op.lane}];
            ASSERT_FALSE(queue.empty());
            const std::vector<uint32_t> received = chunks_of(moved, i, op.count);
            for (uint32_t k = 0; k < op.count; ++k) {
              const uint32_t from = queue.front()[k];
              if (from == MovedChunks::kUnknown || received[k] == MovedChunks::kUnknown) continue;
              EXPECT_EQ(from, received[k]) << test.text;
            }
            queue.pop_front();
          }
        }
      });
    }
  }
  // These pass blocks through ranks that do not name them; all their blocks must be of one length.
  EXPECT_EQ(unknown, (std::set<std::string>{"all_to_all/bruck", "all_to_all/hierarchical",
                                            "gather/binomial", "gather/hierarchical",
                                            "scatter/binomial", "scatter/hierarchical"}));
}

// What one program tells, the verifier has seen in all; and it has seen the rest.
TEST(MovedChunks, TheVerifierFindsThemAllAndTheSame) {
  bool found_more = false;
  for (const algo::Algorithm* algorithm : algo::all_algorithms()) {
    for (const Rank n : {2u, 5u, 8u}) {
      algo::for_each_problem(*algorithm, n, {n / 2}, [&](const algo::TestProblem& test) {
        std::vector<Program> programs = algo::compile_all(*algorithm, test.get());
        std::vector<std::vector<uint32_t>> seen;
        const Verdict verdict =
            verify(programs, {.access = algo::access_of(test.get()), .moved_chunks = &seen});
        ASSERT_TRUE(verdict.ok()) << test.text;
        ASSERT_EQ(seen.size(), n);
        for (Program& program : programs) {
          const MovedChunks alone(program);
          program.moved_chunks = seen[program.rank];
          const MovedChunks told(program);
          EXPECT_TRUE(told.all_messages_known()) << test.text;
          for (uint32_t i = 0; i < program.ops.size(); ++i) {
            const Op& op = program.ops[i];
            if (op.code == OpCode::kSignal || op.code == OpCode::kWait) continue;
            for (uint32_t k = 0; k < op.count; ++k) {
              if (alone.chunk(i, k) == MovedChunks::kUnknown) {
                found_more = found_more || told.chunk(i, k) != MovedChunks::kUnknown;
              } else {
                ASSERT_EQ(told.chunk(i, k), alone.chunk(i, k)) << test.text << " op " << i;
              }
            }
          }
        }
      });
    }
  }
  EXPECT_TRUE(found_more);
}

}  // namespace
}  // namespace weir::sched
