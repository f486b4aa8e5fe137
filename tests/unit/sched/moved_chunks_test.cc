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
                                            "gather/binomial", "scatter/binomial"}));
}

}  // namespace
}  // namespace weir::sched
