// SPDX-License-Identifier: Apache-2.0
// The verdict, on records that are made up: each way in which ranks diverge, and those in which
// they only seem to.
#include "weir_trace/judge.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/engine/call.h"
#include "weir_trace/report.h"

namespace weir::trace {
namespace {

using comm::Life;
using comm::Record;
using comm::RecordKind;
using comm::RecordState;

constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint64_t kNow = 1000 * kSecond;

uint64_t what_of(Collective collective, DataType type = DataType::kFloat32, Rank root = 0) {
  engine::Call call;
  call.collective = collective;
  call.type = type;
  call.root = root;
  return engine::pack_what(call);
}

// Ranks of one communicator that have all called all_reduce(count 10 k) as operation k, 1 to 5, and
// completed it.
struct World {
  std::vector<Record> records;

  explicit World(Rank rank_count, uint32_t first_process = 100) {
    for (Rank rank = 0; rank < rank_count; ++rank) {
      Record record;
      record.name = "world";
      record.comm_id = first_process;
      record.rank = rank;
      record.rank_count = rank_count;
      record.process = first_process + rank;
      record.life = Life::kAlive;
      record.latest_ns = kNow;
      for (uint64_t k = 1; k <= 5; ++k) call(record, Collective::kAllReduce, 10 * k);
      record.completed = 5;
      records.push_back(std::move(record));
    }
  }
  static void call(Record& record, Collective collective, uint64_t count,
                   DataType type = DataType::kFloat32, Rank root = 0) {
    comm::RecordedOperation operation;
    operation.sequence = record.begun() + 1;
    operation.what = what_of(collective, type, root);
    operation.count = count;
    record.operations.push_back(operation);
  }
  // The rank has called a barrier and waits in it for `awaited`.
  void barrier(Rank rank, std::vector<Rank> awaited, uint64_t waited_ns = 10 * kSecond) {
    Record& record = records[rank];
    call(record, Collective::kBarrier, 0);
    record.wait.kind = RecordKind::kCollective;
    record.wait.sequence = record.begun();
    record.wait.what = what_of(Collective::kBarrier);
    record.wait.since_ns = kNow - waited_ns;
    record.wait.awaited_count = static_cast<uint32_t>(awaited.size());
    record.wait.awaited = std::move(awaited);
    record.looked_ns = kNow;
  }
  Group group() const { return group_records(records).front(); }
  Verdict verdict() const {
    JudgeOptions options;
    options.now_ns = kNow;
    return judge(group(), options);
  }
};

void expect(const Verdict& verdict, Finding finding, const std::vector<Rank>& ranks,
            const std::string& part) {
  EXPECT_STREQ(name_of(verdict.finding), name_of(finding)) << verdict.text;
  EXPECT_EQ(verdict.ranks, ranks) << verdict.text;
  EXPECT_NE(verdict.text.find(part), std::string::npos)
      << "no '" << part << "' in " << verdict.text;
}

TEST(Judge, FindsNothingWhereAllIsDone) {
  expect(World(4).verdict(), Finding::kNothing, {}, "no rank has waited");
}

TEST(Judge, FindsNothingWhereWaitsAreShort) {
  World world(3);
  world.barrier(0, {2}, kSecond / 2);
  world.barrier(1, {2}, kSecond / 10);
  expect(world.verdict(), Finding::kNothing, {}, "");
}

TEST(Judge, FindsWhoNeverCalled) {
  World world(4);
  for (const Rank rank : {0, 1, 3}) world.barrier(rank, {2});
  const Verdict verdict = world.verdict();
  expect(verdict, Finding::kNeverCalled, {2}, "rank 2 never called operation 6");
  EXPECT_EQ(verdict.sequence, 6u);
}

TEST(Judge, FindsTheMinorityThatCalledOtherwise) {
  World world(4);
  for (const Rank rank : {0, 1, 2, 3}) {
    World::call(world.records[rank], Collective::kAllReduce, rank == 1 ? 64 : 65);
  }
  const Verdict verdict = world.verdict();
  expect(verdict, Finding::kCalledOtherwise, {1}, "another count");
  EXPECT_EQ(verdict.sequence, 6u);
}

TEST(Judge, TellsTypeRootAndOperationApart) {
  struct Case {
    Collective collective;
    DataType type;
    Rank root;
    const char* text;
  };
  for (const Case& other :
       {Case{Collective::kBroadcast, DataType::kInt32, 0, "another type"},
        Case{Collective::kBroadcast, DataType::kFloat32, 1, "another root"},
        Case{Collective::kAllGather, DataType::kFloat32, 0, "another operation"}}) {
    World world(3);
    for (const Rank rank : {0, 1}) World::call(world.records[rank], Collective::kBroadcast, 9);
    World::call(world.records[2], other.collective, 9, other.type, other.root);
    expect(world.verdict(), Finding::kCalledOtherwise, {2}, other.text);
  }
}

// As a communicator of the real NCCL: nobody is seen to wait, and calls have times. All ranks have
// made five calls, the last of them ten seconds ago.
World forwarded(Rank rank_count) {
  World world(rank_count);
  for (Record& record : world.records) {
    record.transport = comm::kForwardedTransport;
    for (auto& operation : record.operations) {
      operation.begin_ns = kNow - (15 - operation.sequence) * kSecond;
    }
  }
  return world;
}

void call_forwarded(World& world, Rank rank, uint64_t ago_ns) {
  Record& record = world.records[rank];
  World::call(record, Collective::kAllReduce, 60);
  record.operations.back().begin_ns = kNow - ago_ns;
}

TEST(JudgeForwarded, FindsNothingWhereAllRanksMadeTheSameCalls) {
  expect(forwarded(3).verdict(), Finding::kNothing, {}, "every rank made the same calls");
}

TEST(JudgeForwarded, FindsWhoNeverCalledOnceTheOthersCallIsOld) {
  World world = forwarded(3);
  for (const Rank rank : {0, 2}) call_forwarded(world, rank, kSecond / 2);
  expect(world.verdict(), Finding::kNothing, {}, "");
  world = forwarded(3);
  for (const Rank rank : {0, 2}) call_forwarded(world, rank, 2 * kSecond);
  for (const Rank rank : {0, 2}) world.records[rank].completed = 6;
  expect(world.verdict(), Finding::kNeverCalled, {1}, "rank 1 never called operation 6");
}

TEST(JudgeForwarded, ACallThatHasLeftTheRingIsOld) {
  World world = forwarded(2);
  world.records[0].completed = 900;
  world.records[0].operations.clear();
  expect(world.verdict(), Finding::kNeverCalled, {1}, "long ago");
}

TEST(JudgeForwarded, FindsWhoDiedOrIsStopped) {
  for (const auto& [life, finding] :
       {std::pair(Life::kDead, Finding::kDied), std::pair(Life::kStopped, Finding::kStopped)}) {
    World world = forwarded(3);
    for (const Rank rank : {0, 1}) call_forwarded(world, rank, 2 * kSecond);
    world.records[2].life = life;
    expect(world.verdict(), finding, {2}, "before operation 6");
  }
}

TEST(JudgeForwarded, FindsWhoDidNotComeBackFromTheCall) {
  World world = forwarded(3);
  for (const Rank rank : {0, 1, 2}) call_forwarded(world, rank, 2 * kSecond);
  for (const Rank rank : {0, 1}) world.records[rank].completed = 6;
  expect(world.verdict(), Finding::kStuckInside, {2}, "rank 2 did not come back");
  for (const Rank rank : {0, 1}) world.records[rank].completed = 5;
  expect(world.verdict(), Finding::kStuckInside, {}, "every rank called it");
}

TEST(JudgeForwarded, OfAJobThatHasEndedTheLatestSignOfLifeCounts) {
  for (const uint64_t looked_ago_ns : {uint64_t{4 * kSecond}, uint64_t{8 * kSecond}}) {
    World world = forwarded(2);
    call_forwarded(world, 0, 8 * kSecond);
    world.records[0].completed = 6;
    for (Record& record : world.records) {
      record.life = Life::kDead;
      record.latest_ns = kNow - looked_ago_ns;
    }
    const bool long_enough = looked_ago_ns < 7 * kSecond;
    EXPECT_EQ(world.verdict().finding, long_enough ? Finding::kNeverCalled : Finding::kNothing);
  }
}

TEST(JudgeForwarded, AMismatchComesFirst) {
  World world = forwarded(3);
  for (const Rank rank : {0, 1, 2}) call_forwarded(world, rank, 2 * kSecond);
  world.records[1].operations.back().count = 61;
  call_forwarded(world, 0, kSecond);
  expect(world.verdict(), Finding::kCalledOtherwise, {1}, "another count");
}

TEST(Judge, SeesThatACallWasSkipped) {
  World world(3);
  for (const Rank rank : {0, 1, 2}) {
    if (rank != 2) World::call(world.records[rank], Collective::kBroadcast, 7);
    World::call(world.records[rank], Collective::kAllGather, 8);
  }
  expect(world.verdict(), Finding::kCalledOtherwise, {2},
         "rank 2 skipped broadcast(float32, count 7, root 0)");
}

TEST(Judge, SaysThatOfTwoRanksEitherMayBeWrong) {
  World world(2);
  World::call(world.records[0], Collective::kBroadcast, 7);
  World::call(world.records[1], Collective::kAllGather, 8);
  expect(world.verdict(), Finding::kCalledOtherwise, {1}, "either may be");
}

TEST(Judge, TheFirstMismatchCountsAndNotTheLatest) {
  World world(3);
  World::call(world.records[0], Collective::kAllReduce, 1);
  World::call(world.records[1], Collective::kAllReduce, 2);
  World::call(world.records[2], Collective::kAllReduce, 1);
  for (const Rank rank : {0, 1, 2}) {
    World::call(world.records[rank], Collective::kAllReduce, rank == 2 ? 3 : 4);
  }
  expect(world.verdict(), Finding::kCalledOtherwise, {1}, "operation 6");
}

TEST(Judge, ADeadRankIsBlamedBeforeALateOne) {
  World world(4);
  for (const Rank rank : {0, 1}) world.barrier(rank, {2, 3});
  world.records[3].life = Life::kDead;
  expect(world.verdict(), Finding::kDied, {3},
         "after operation 5 and before it called operation 6");
}

TEST(Judge, ARankThatDiedIsNamedByWhatTheOthersFailedOf) {
  World world(3);
  for (Record& record : world.records) {
    record.life = Life::kDead;
    if (record.rank == 1) continue;
    record.state = RecordState::kFailed;
    record.code = 9;
    record.why = "rank 1 died while rank 0 waited for it";
  }
  expect(world.verdict(), Finding::kDied, {1}, "rank 1 died");
}

TEST(Judge, AStoppedRankIsBlamedEvenWhereItWaitedItself) {
  World world(3);
  world.barrier(0, {1});
  world.barrier(1, {2});
  world.barrier(2, {1});
  world.records[1].life = Life::kStopped;
  expect(world.verdict(), Finding::kStopped, {1}, "inside operation 6");
}

TEST(Judge, ARankOfAnotherMachineThatFellSilentIsBlamed) {
  World world(3);
  for (const Rank rank : {0, 1, 2}) world.barrier(rank, {(rank + 1) % 3});
  for (Record& record : world.records) record.life = Life::kUnknown;
  world.records[1].latest_ns = kNow - 5 * kSecond;
  expect(world.verdict(), Finding::kStopped, {1}, "it reported nothing");
}

TEST(Judge, ACircleOfWaitsBlamesNobody) {
  World world(3);
  for (const Rank rank : {0, 1, 2}) world.barrier(rank, {(rank + 1) % 3});
  expect(world.verdict(), Finding::kStuckInside, {}, "every rank began operation 6");
}

TEST(Judge, ARankThatBeganAndDoesNotWaitIsStuckInside) {
  World world(3);
  world.barrier(0, {2});
  world.barrier(1, {2});
  World::call(world.records[2], Collective::kBarrier, 0);
  expect(world.verdict(), Finding::kStuckInside, {2}, "went no further");
}

TEST(Judge, ARankWithoutARecordIsNamed) {
  World world(3);
  world.barrier(0, {2});
  world.barrier(1, {2});
  world.records.pop_back();
  expect(world.verdict(), Finding::kNeverCalled, {2}, "left no record here");
}

TEST(Judge, AQueuedCallCountsAsCalled) {
  World world(2);
  world.barrier(0, {1});
  Record& record = world.records[1];
  record.wait.kind = RecordKind::kQueued;
  record.wait.sequence = 6;
  record.wait.what = what_of(Collective::kBarrier);
  record.wait.since_ns = kNow - 10 * kSecond;
  record.wait.awaited = {0};
  expect(world.verdict(), Finding::kStuckInside, {}, "waits for another");
}

TEST(Judge, ADeadlockAcrossCommunicatorsBeginsWhereNobodyIsHeldUp) {
  // Rank 1 of `first` waits in `second` for a rank that is in neither.
  World first(2, 100);
  first.barrier(0, {1});
  World second(2, 200);
  second.records[0].process = first.records[1].process;
  second.barrier(0, {1});
  std::vector<Record> records = first.records;
  records.insert(records.end(), second.records.begin(), second.records.end());
  for (size_t i = 2; i < 4; ++i) records[i].name = "second";
  const std::vector<Group> groups = group_records(records);
  JudgeOptions options;
  options.now_ns = kNow;
  const std::vector<Verdict> verdicts = judge_all(groups, options);
  const int cause = first_cause(groups, verdicts);
  ASSERT_GE(cause, 0);
  EXPECT_EQ(groups[static_cast<size_t>(cause)].name(), "second");
  for (size_t i = 0; i < groups.size(); ++i) {
    if (groups[i].name() != "world") continue;
    EXPECT_NE(verdicts[i].text.find("waits in communicator 'second' as rank 0"), std::string::npos)
        << verdicts[i].text;
  }
}

TEST(Group, LatestJobIsWhatSharesProcessesWithTheNewest) {
  World old_job(2, 100);
  for (Record& record : old_job.records) record.latest_ns = kNow - 100 * kSecond;
  World new_job(2, 200);
  World child(2, 300);
  for (Record& record : child.records) record.latest_ns = kNow - 50 * kSecond;
  child.records[1].process = new_job.records[0].process;
  std::vector<Record> records = old_job.records;
  records.insert(records.end(), new_job.records.begin(), new_job.records.end());
  records.insert(records.end(), child.records.begin(), child.records.end());
  const std::vector<Group> groups = group_records(records);
  EXPECT_EQ(groups.size(), 3u);
  const std::vector<Group> job = latest_job(groups);
  ASSERT_EQ(job.size(), 2u);
  EXPECT_EQ(job[0].records[0].comm_id, 200u);
  EXPECT_EQ(job[1].records[0].comm_id, 300u);
}

TEST(Group, OfTwoRecordsOfARankTheLaterCounts) {
  World world(2);
  std::vector<Record> records = world.records;
  records.push_back(world.records[1]);
  records.back().latest_ns += kSecond;
  records.back().completed = 4;
  const std::vector<Group> groups = group_records(records);
  ASSERT_EQ(groups.size(), 1u);
  ASSERT_EQ(groups[0].records.size(), 2u);
  EXPECT_EQ(groups[0].records[1].completed, 4u);
}

TEST(Report, IsValidJsonInBothForms) {
  World world(3);
  world.records[0].name = "name with \xff \"quotes\"";
  for (const Rank rank : {0, 1}) world.barrier(rank, {2});
  Report report;
  report.now_ns = kNow;
  report.groups = {world.group()};
  report.verdicts = {world.verdict()};
  EXPECT_FALSE(nlohmann::json::parse(json_of(report), nullptr, false).is_discarded());
  EXPECT_FALSE(nlohmann::json::parse(chrome_of(report), nullptr, false).is_discarded());
  EXPECT_NE(text_of(report).find("waits 10 s for rank 2"), std::string::npos) << text_of(report);
}

}  // namespace
}  // namespace weir::trace
