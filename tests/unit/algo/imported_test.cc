// SPDX-License-Identifier: Apache-2.0
// A set of programs from elsewhere is an algorithm like any other, or is refused.
#include "core/algo/imported.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "core/algo/check.h"
#include "core/algo/program_text.h"
#include "core/sched/moved_chunks.h"
#include "sched/msccl_documents.h"
#include "sched/mutation.h"
#include "sched/oracle.h"
#include "sched/problems.h"

namespace weir::algo {
namespace {

using sched::Op;
using sched::OpCode;
using sched::Program;
using sched::ProgramSet;
using testing::HasSubstr;

ProgramSet set_of(const Algorithm& algorithm, const Problem& problem) {
  return {access_of(problem), compile_all(algorithm, problem)};
}

ProgramSet set_of(const char* name, Collective collective, Rank n) {
  Problem problem;
  problem.collective = collective;
  problem.rank_count = n;
  problem.mapped = problem.inputs_mapped = problem.outputs_mapped =
      !uses_messages(*find_algorithm(collective, name));
  return set_of(*find_algorithm(collective, name), problem);
}

// Every program of Weir's own, written and read again, is an algorithm with the same properties.
TEST(Imported, FilesMayBeginWithAByteOrderMark) {
  const std::string mark = "\xef\xbb\xbf";
  const auto xml = read_programs(mark + msccl_ring_all_gather(3, true), "a.xml");
  ASSERT_TRUE(xml.ok()) << xml.status().text();
  const auto json = read_programs(mark + sched::to_json(xml.value().set), "a.json");
  ASSERT_TRUE(json.ok()) << json.status().text();
}

TEST(Imported, OneLineSaysTheSameInFewerBytes) {
  const auto xml = read_programs(msccl_ring_all_gather(3, true), "a.xml");
  ASSERT_TRUE(xml.ok()) << xml.status().text();
  const std::string lines = sched::to_json(xml.value().set);
  const std::string line = sched::to_json(xml.value().set, sched::JsonForm::kOneLine);
  EXPECT_LT(line.size() * 3, lines.size() * 2);
  const auto again = read_programs(line, "a.json");
  ASSERT_TRUE(again.ok()) << again.status().text();
  EXPECT_EQ(sched::to_json(again.value().set), lines);
}

TEST(Imported, TheProgramsOfEveryAlgorithmBecomeOneAgain) {
  std::set<std::string> refused;
  for (const Algorithm* algorithm : all_algorithms()) {
    for (const Rank n : {2u, 3u, 6u}) {
      for_each_problem(*algorithm, n, {n / 2}, [&](const TestProblem& test) {
        const Problem problem = test.get();
        const std::string text = sched::to_json(set_of(*algorithm, problem));
        const auto read = read_programs(text, "a.json");
        ASSERT_TRUE(read.ok()) << test.text << read.status().text();
        const auto made = Imported::make(read.value().set, "imported");
        if (!made.ok()) {
          refused.insert(std::string(weir::name_of(algorithm->collective)) + "/" + algorithm->name);
          return;
        }
        const Algorithm& again = made.value()->algorithm();
        EXPECT_EQ(again.collective, algorithm->collective);
        EXPECT_EQ(uses_messages(again), uses_messages(*algorithm)) << test.text;
        EXPECT_TRUE(again.rank_order || !algorithm->rank_order) << test.text;
        ASSERT_TRUE(again.supports(problem)) << test.text;
        for (const bool in_place : {false, true}) {
          if (algorithm->collective == Collective::kBarrier && in_place) continue;
          Problem variant = problem;
          variant.in_place = in_place;
          const sched::Verdict verdict = verify(again, variant);
          EXPECT_TRUE(verdict.ok()) << test.text << ": " << verdict.flaw.text;
          EXPECT_TRUE(!again.rank_order || verdict.rank_order) << test.text;
        }
        Problem other = problem;
        other.rank_count = n + 1;
        EXPECT_FALSE(again.supports(other)) << test.text;
        if (is_rooted(problem.collective)) {
          other = problem;
          other.root = (problem.root + 1) % n;
          EXPECT_FALSE(again.supports(other)) << test.text;
        }
      });
    }
  }
  // In place it emits other operations, which are wrong apart, and memory of peers is not copied
  // first. A file cannot say of a fold that it is partial.
  EXPECT_EQ(refused,
            (std::set<std::string>{"all_to_all/window", "all_reduce/by_cache", "all_reduce/by_numa",
                                   "reduce/by_cache", "reduce/by_numa", "reduce_scatter/by_cache",
                                   "reduce_scatter/by_numa"}));
}

TEST(Imported, AChangedProgramIsRefusedWithAnOperationOrIsRight) {
  Problem problem;
  problem.rank_count = 4;
  const auto programs = compile_all(*find_algorithm(Collective::kAllReduce, "ring"), problem);
  int refused = 0, right = 0;
  sched::for_each_mutant(programs, {1}, [&](const sched::Mutant& mutant) {
    const auto made = Imported::make({{}, *mutant.programs}, "mutant");
    if (!made.ok()) {
      ++refused;
      EXPECT_EQ(made.status().code(), Code::kInvalidArgument);
      const std::string text = made.status().text();
      EXPECT_TRUE(text.find(" op ") != std::string::npos ||
                  text.find("never written") != std::string::npos)
          << mutant.text << ": " << text;
      return;
    }
    ++right;
    for (const bool in_place : {false, true}) {
      const auto judged =
          sched::run_oracle(made.value()->programs(), {.access = {.in_place = in_place}});
      EXPECT_EQ(judged.error, "") << mutant.text;
    }
  });
  EXPECT_GT(refused, 50);
  EXPECT_GT(right, 0);
}

// The programs, once more after themselves, as the engine runs them for the next slices.
std::vector<Program> twice(const std::vector<Program>& programs) {
  std::vector<Program> all = programs;
  for (Program& program : all) {
    std::vector<uint32_t> given(program.shape.signal_count, 0);
    for (const Op& op : program.ops) given[op.signal] += op.code == OpCode::kSignal;
    const std::vector<Op> ops = program.ops;
    for (Op op : ops) {
      if (op.code == OpCode::kWait) op.value += given[op.signal];
      program.ops.push_back(op);
    }
  }
  return all;
}

ProgramSet two_lanes() {
  const auto read = read_programs(msccl_ring_all_gather(3, true), "a.xml");
  ProgramSet set = read.value().set;
  // Lane 1 receives into a slot what lane 0 stores.
  for (Program& program : set.programs) {
    const Rank next = (program.rank + 1) % 3, previous = (program.rank + 2) % 3;
    program.shape = {.chunk_count = 3, .scratch_slots = 1, .lane_count = 2, .signal_count = 1};
    program.ops.clear();
    const auto op = [&](OpCode code, uint8_t lane) -> Op& {
      Op& made = program.ops.emplace_back();
      made.code = code;
      made.lane = lane;
      return made;
    };
    const sched::Ref slot{0, program.rank, sched::Space::kScratch};
    const auto out = [&](uint32_t chunk) {
      return sched::Ref{chunk, program.rank, sched::Space::kOutput};
    };
    Op& copy = op(OpCode::kCopy, 1);
    copy.dst = out(program.rank);
    copy.src = {program.rank, program.rank, sched::Space::kInput};
    for (const Rank peer : {next, previous}) {
      Op& send = op(OpCode::kSend, 1);
      send.peer = peer;
      send.src = {program.rank, program.rank, sched::Space::kInput};
      if (peer == next) {
        Op& recv = op(OpCode::kRecv, 1);
        recv.peer = previous;
        recv.dst = slot;
        Op& signal = op(OpCode::kSignal, 1);
        signal.peer = program.rank;
      } else {
        Op& recv = op(OpCode::kRecv, 1);
        recv.peer = next;
        recv.dst = out(next);
      }
    }
    Op& wait = op(OpCode::kWait, 0);
    wait.peer = program.rank;
    wait.value = 1;
    Op& store = op(OpCode::kCopy, 0);
    store.dst = out(previous);
    store.src = slot;
  }
  return set;
}

TEST(Imported, LanesThatShareSlotsEndTogetherBecauseTheyRunAgain) {
  const ProgramSet given = two_lanes();
  ASSERT_TRUE(sched::verify(given.programs, {}).ok()) << "it is right once";
  const auto repeated = sched::verify(twice(given.programs), {});
  EXPECT_EQ(repeated.flaw.kind, sched::Flaw::Kind::kRace) << "a slot is overwritten too early";
  const auto made = Imported::make(given, "lanes");
  ASSERT_TRUE(made.ok()) << made.status().text();
  EXPECT_EQ(made.value()->program(0).shape.signal_count, 3u);
  const auto verdict = sched::verify(twice(made.value()->programs()), {});
  EXPECT_TRUE(verdict.ok()) << verdict.flaw.text;
}

// What crosses lanes cannot be told from one program; the verifier has seen it.
TEST(Imported, BothEndsOfAMessageKnowItsChunk) {
  const auto read = read_programs(msccl_pairs_all_reduce(5), "a.xml");
  const auto made = Imported::make(read.value().set, "pairs");
  ASSERT_TRUE(made.ok()) << made.status().text();
  Problem problem;
  problem.rank_count = 5;
  bool unknown = false;
  for (Rank rank = 0; rank < 5; ++rank) {
    const Program program = compile(made.value()->algorithm(), problem, rank);
    EXPECT_TRUE(sched::MovedChunks(program).all_messages_known());
    Program alone = program;
    alone.moved_chunks.clear();
    unknown = unknown || !sched::MovedChunks(alone).all_messages_known();
  }
  EXPECT_TRUE(unknown) << "else this test shows nothing";
}

TEST(Imported, ASetThatIsRightOnlyApartCopiesItsInputFirst) {
  // All ranks read their Input after they have written Output.
  ProgramSet set = set_of("recursive_doubling", Collective::kAllReduce, 2);
  for (Program& program : set.programs) {
    Op copy;
    copy.code = OpCode::kCopy;
    copy.dst = {0, program.rank, sched::Space::kScratch};
    copy.src = {0, program.rank, sched::Space::kInput};
    program.ops.push_back(copy);
    Op again = program.ops[2];  // the fold
    ASSERT_EQ(again.code, OpCode::kReduce);
    program.ops.insert(program.ops.begin() + 3, again);
  }
  const auto apart = sched::verify(set.programs, {});
  ASSERT_TRUE(apart.ok()) << apart.flaw.text;
  ASSERT_FALSE(sched::verify(set.programs, {.access = {.in_place = true}}).ok());
  const auto made = Imported::make(set, "late");
  ASSERT_TRUE(made.ok()) << made.status().text();
  EXPECT_TRUE(made.value()->copies_input());
  set.access.in_place = true;
  const auto refused = Imported::make(set, "late");
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().text(), HasSubstr("in place, where the file says"));
  EXPECT_THAT(refused.status().text(), HasSubstr("rank 0 op 3"));
}

TEST(Imported, OnlyWholeFoldsAreInRankOrder) {
  EXPECT_TRUE(Imported::make(set_of("ordered", Collective::kAllReduce, 4), "a")
                  .value()
                  ->algorithm()
                  .rank_order);
  EXPECT_FALSE(Imported::make(set_of("ring", Collective::kAllReduce, 4), "a")
                   .value()
                   ->algorithm()
                   .rank_order);
  // A useless partial fold: an average would be divided in it.
  ProgramSet set = set_of("ordered", Collective::kAllReduce, 4);
  for (Program& program : set.programs) {
    program.shape.scratch_slots += 1;
    Op fold;
    fold.code = OpCode::kReduce;
    fold.dst = {program.shape.scratch_slots - 1, program.rank, sched::Space::kScratch};
    fold.first_operand = static_cast<uint32_t>(program.operands.size());
    fold.operand_count = 2;
    program.operands.resize(program.operands.size() + 2, {0, program.rank, sched::Space::kInput});
    program.ops.insert(program.ops.begin(), fold);
  }
  const auto made = Imported::make(set, "a");
  ASSERT_TRUE(made.ok()) << made.status().text();
  EXPECT_FALSE(made.value()->algorithm().rank_order);
}

TEST(Imported, WhatCannotRunIsRefusedWithTheReason) {
  struct Case {
    ProgramSet set;
    std::string name;
    const char* expected;
  };
  const ProgramSet ring = set_of("ring", Collective::kAllReduce, 4);
  std::vector<Case> cases = {
      {ring, "", "the name of a set"},
      {ring, "a b", "the name of a set"},
      {ring, "ring", "'ring' is the name of an algorithm of all_reduce"},
      {ring, std::string(65, 'a'), "the name of a set"},
  };
  ProgramSet broken = ring;
  for (Program& program : broken.programs) program.shape.scratch_slots = 5000;
  cases.push_back({broken, "a", "5000 scratch slots are more than the 4096"});
  broken = ring;
  for (Program& program : broken.programs) program.shape.staging_slots = 513;
  cases.push_back({broken, "a", "513 staging slots are more than the 512"});
  broken = ring;
  broken.programs[2].ops[1].peer = 9;
  cases.push_back({broken, "a", "rank 2 op 1"});
  broken = ring;
  broken.programs[0].ops[2].first_operand = 1000;
  cases.push_back({broken, "a", "rank 0 op 2"});
  broken = set_of("direct", Collective::kAllReduce, 4);
  for (Program& program : broken.programs) {
    Op op;
    op.code = program.rank == 0 ? OpCode::kSend : OpCode::kRecv;
    op.count = 0;
    op.peer = program.rank == 0 ? 1 : 0;
    if (program.rank < 2) program.ops.push_back(op);
  }
  cases.push_back({broken, "a", "use both messages and memory of peers"});
  // Folds of two in memory of peers.
  broken = set_of("direct", Collective::kAllReduce, 4);
  for (Program& program : broken.programs) {
    for (Op& op : program.ops) {
      if (op.code != OpCode::kReduce) continue;
      Op first = op;
      first.operand_count = 2;
      first.dst = {0, program.rank, sched::Space::kScratch};
      program.operands.push_back(first.dst);
      const sched::Ref two = program.operands[op.first_operand + 2];
      const sched::Ref three = program.operands[op.first_operand + 3];
      op.first_operand = static_cast<uint32_t>(program.operands.size()) - 1;
      program.operands.push_back(two);
      program.operands.push_back(three);
      op.operand_count = 3;
      program.shape.scratch_slots = 1;
      program.ops.insert(program.ops.end() - 1, first);
      break;
    }
    for (Op& op : program.ops) {
      if (op.code == OpCode::kReduce && op.operand_count == 3) continue;
    }
  }
  for (Program& program : broken.programs) {
    program.shape.scratch_slots = 1;
    const auto three = std::find_if(program.ops.begin(), program.ops.end(), [](const Op& op) {
      return op.code == OpCode::kReduce && op.operand_count == 3;
    });
    const auto two = std::find_if(program.ops.begin(), program.ops.end(), [](const Op& op) {
      return op.code == OpCode::kReduce && op.operand_count == 2;
    });
    if (three < two) std::rotate(three, two, two + 1);
  }
  cases.push_back({broken, "a", "folds 2 operands of 4 ranks"});
  for (const Case& test : cases) {
    const auto made = Imported::make(test.set, test.name);
    ASSERT_FALSE(made.ok()) << test.expected;
    EXPECT_THAT(made.status().text(), HasSubstr(test.expected));
  }
}

}  // namespace
}  // namespace weir::algo
