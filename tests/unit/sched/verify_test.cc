// SPDX-License-Identifier: Apache-2.0
// Programs that are wrong by hand, one for each way to be wrong, and the text that says so.
#include "core/sched/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

namespace weir::sched {
namespace {

using testing::HasSubstr;

// Programs of `rank_count` ranks to write by hand.
class Hand {
 public:
  Hand(Collective collective, Rank rank_count, const Shape& shape) : programs_(rank_count) {
    for (Rank rank = 0; rank < rank_count; ++rank) {
      programs_[rank].collective = collective;
      programs_[rank].rank = rank;
      programs_[rank].rank_count = rank_count;
      programs_[rank].shape = shape;
    }
  }
  Builder at(Rank rank) { return {rank, &programs_[rank].ops, &programs_[rank].operands}; }
  Program& program(Rank rank) { return programs_[rank]; }
  Verdict verify(const Access& access = {}, uint32_t credit = 1) const {
    return sched::verify(programs_, {.access = access, .credit = credit});
  }

 private:
  std::vector<Program> programs_;
};

// A correct exchange of two ranks: send, receive, fold.
Hand exchange() {
  Hand hand(Collective::kAllReduce, 2, {.chunk_count = 1, .scratch_slots = 1});
  for (Rank rank : {0u, 1u}) {
    Builder b = hand.at(rank);
    b.send(1 - rank, b.input(0));
    b.recv(1 - rank, b.scratch(0));
    b.reduce(b.output(0), rank == 0 ? std::array{b.input(0), b.scratch(0)}
                                    : std::array{b.scratch(0), b.input(0)});
  }
  return hand;
}

void expect_flaw(const Verdict& verdict, Flaw::Kind kind, Rank rank,
                 std::initializer_list<const char*> parts) {
  EXPECT_EQ(verdict.flaw.kind, kind) << verdict.flaw.text;
  EXPECT_EQ(verdict.flaw.rank, rank) << verdict.flaw.text;
  for (const char* part : parts) EXPECT_THAT(verdict.flaw.text, HasSubstr(part));
}

TEST(Verifier, AcceptsACorrectExchangeAndSeesItsOrder) {
  const Verdict verdict = exchange().verify();
  EXPECT_TRUE(verdict.ok()) << verdict.flaw.text;
  EXPECT_TRUE(verdict.rank_order);
  EXPECT_EQ(verdict.op_count, 6u);
  EXPECT_EQ(verdict.message_count, 2u);
}

TEST(Verifier, SeesThatRanksFoldInDifferentOrders) {
  Hand hand = exchange();
  std::swap(hand.program(1).operands[0], hand.program(1).operands[1]);
  expect_flaw(hand.verify(), Flaw::Kind::kOrder, 1,
              {"out[0] is folded in another order on rank 1", "rank 0 op 2"});
}

TEST(Verifier, TellsASingleFoldFromTheSameFoldInTwoReduces) {
  Hand hand(Collective::kReduce, 3, {.chunk_count = 1, .scratch_slots = 2});
  for (Rank rank : {1u, 2u}) hand.at(rank).send(0, hand.at(rank).input(0));
  Builder b = hand.at(0);
  b.recv(1, b.scratch(0));
  b.recv(2, b.scratch(1));
  b.reduce(b.output(0), std::array{b.input(0), b.scratch(0)});
  b.reduce_into(b.output(0), b.scratch(1));
  EXPECT_TRUE(hand.verify().ok()) << hand.verify().flaw.text;
  EXPECT_FALSE(hand.verify().rank_order);
  hand.program(0).ops.resize(2);
  b.reduce(b.output(0), std::array{b.input(0), b.scratch(0), b.scratch(1)});
  EXPECT_TRUE(hand.verify().rank_order);
}

TEST(Verifier, NamesTheCycleOfReceivesThatAllComeFirst) {
  Hand hand(Collective::kAllReduce, 3, {.chunk_count = 1, .scratch_slots = 1});
  for (Rank rank = 0; rank < 3; ++rank) {
    Builder b = hand.at(rank);
    b.recv((rank + 2) % 3, b.scratch(0));
    b.send((rank + 1) % 3, b.input(0));
  }
  expect_flaw(hand.verify(), Flaw::Kind::kDeadlock, 0,
              {"cycle of 3 waits", "rank 0 op 0 (lane 0: recv scratch[0] <- rank 2)", "rank 1 op 0",
               "rank 2 op 0"});
}

TEST(Verifier, FindsADeadlockAtCreditOneThatMoreCreditWouldHide) {
  Hand hand(Collective::kAllGather, 2, {.chunk_count = 4});
  for (Rank rank : {0u, 1u}) {
    Builder b = hand.at(rank);
    for (uint32_t i = 0; i < 2; ++i) {
      b.send(1 - rank, b.input(2 * rank + i));
      b.copy(b.output(2 * rank + i), b.input(2 * rank + i));
    }
    for (uint32_t i = 0; i < 2; ++i) b.recv(1 - rank, b.output(2 * (1 - rank) + i));
  }
  expect_flaw(hand.verify({}, 1), Flaw::Kind::kDeadlock, 0,
              {"rank 0 op 2 (lane 0: send in[1] -> rank 1)",
               "receive an earlier message (credit 1)", "rank 1 op 2"});
  expect_flaw(hand.verify({}, 2), Flaw::Kind::kDeadlock, 0, {"credit 2 is enough"});
}

// Rank 0 sends twice from one place, and rank 1 takes the first only after what follows the second.
Hand sends_twice_from_one_place(bool from_one_place) {
  Hand hand(Collective::kAllGather, 3, {.chunk_count = 3, .scratch_slots = 2});
  Builder zero = hand.at(0);
  const Ref again = zero.scratch(from_one_place ? 0 : 1);
  zero.copy(zero.scratch(0), zero.input(0));
  zero.send(1, zero.scratch(0));
  zero.copy(again, zero.input(0));
  zero.send(2, again);
  zero.recv(1, zero.output(1));
  zero.recv(2, zero.output(2));
  zero.copy(zero.output(0), zero.input(0));
  Builder one = hand.at(1);
  one.recv(2, one.output(2));
  one.recv(0, one.output(0));
  one.send(0, one.input(1));
  one.send(2, one.input(1));
  one.copy(one.output(1), one.input(1));
  Builder two = hand.at(2);
  two.recv(0, two.output(0));
  two.send(1, two.input(2));
  two.send(0, two.input(2));
  two.recv(1, two.output(1));
  two.copy(two.output(2), two.input(2));
  return hand;
}

TEST(Verifier, FindsADeadlockThatOnlyKeptMessagesHide) {
  EXPECT_TRUE(sends_twice_from_one_place(false).verify().ok());
  expect_flaw(sends_twice_from_one_place(true).verify(), Flaw::Kind::kDeadlock, 0,
              {"a cycle of 3 waits where no message is kept", "rank 0 op 2",
               "rank 1 to receive what rank 0 op 1", "rank 1 op 0", "rank 2 op 0"});
}

TEST(Verifier, AReceiveGoesAsideWhileItsMemoryIsStillToBeSent) {
  Hand hand(Collective::kAllGather, 2, {.chunk_count = 2, .scratch_slots = 1});
  for (Rank rank : {0u, 1u}) {
    Builder b = hand.at(rank);
    b.copy(b.scratch(0), b.input(rank));
    b.send(1 - rank, b.scratch(0));
    b.recv(1 - rank, b.scratch(0));
    b.copy(b.output(1 - rank), b.scratch(0));
    b.copy(b.output(rank), b.input(rank));
  }
  EXPECT_TRUE(hand.verify().ok()) << hand.verify().flaw.text;
}

TEST(Verifier, NamesAReceiveThatNobodyServes) {
  Hand hand = exchange();
  hand.program(1).ops.erase(hand.program(1).ops.begin());
  expect_flaw(hand.verify(), Flaw::Kind::kDeadlock, 0,
              {"rank 0 op 1", "waits for rank 1 to send", "no such operation left"});
}

TEST(Verifier, NamesAMessageThatNobodyReceives) {
  Hand hand = exchange();
  hand.at(1).send(0, hand.at(1).input(0));
  expect_flaw(hand.verify(), Flaw::Kind::kDeadlock, 1,
              {"rank 1 op 3", "rank 0 never receives this message"});
}

TEST(Verifier, NamesASignalThatNeverComes) {
  Hand hand(Collective::kBarrier, 2, {.signal_count = 1});
  hand.at(0).wait(1, 0, 1);
  hand.at(1).wait(0, 0, 1);
  hand.at(1).signal(0, 0);
  expect_flaw(hand.verify({.mapped = true}), Flaw::Kind::kDeadlock, 1,
              {"rank 1 op 0 (lane 0: wait #0 of rank 0 >= 1)", "rank 0 to signal #0"});
}

// All-gather over staging; what is left out is the parameter.
Hand staged_gather(bool with_wait) {
  Hand hand(Collective::kAllGather, 2, {.chunk_count = 2, .staging_slots = 1, .signal_count = 1});
  for (Rank rank : {0u, 1u}) {
    Builder b = hand.at(rank);
    b.copy(b.staging(0), b.input(rank));
    b.signal(kAllRanks, 0);
    b.copy(b.output(rank), b.input(rank));
    if (with_wait || rank == 1) b.wait(kAllRanks, 0, 1);
    b.copy(b.output(1 - rank), Builder::staging_at(1 - rank, 0));
  }
  return hand;
}

TEST(Verifier, FindsAReadOfStagingThatNoWaitOrders) {
  EXPECT_TRUE(staged_gather(true).verify({.mapped = true}).ok());
  const Verdict verdict = staged_gather(false).verify({.mapped = true});
  ASSERT_FALSE(verdict.ok());
  EXPECT_THAT(verdict.flaw.text, HasSubstr("rank 0 op 3"));
}

TEST(Verifier, FindsARaceOfAReadAndAWriteOfAPeer) {
  Hand hand = staged_gather(true);
  // Rank 1 uses its staging again while rank 0 may still read it.
  hand.at(1).copy(hand.at(1).staging(0), hand.at(1).input(1));
  const Verdict verdict = hand.verify({.mapped = true});
  EXPECT_EQ(verdict.flaw.kind, Flaw::Kind::kRace) << verdict.flaw.text;
  EXPECT_THAT(verdict.flaw.text, HasSubstr("staging[0] of rank 1, unordered with the"));
  EXPECT_THAT(verdict.flaw.text, HasSubstr("rank 1 op 5"));
  EXPECT_THAT(verdict.flaw.text, HasSubstr("rank 0 op 4"));
}

TEST(Verifier, FindsARaceOfTwoLanesOfOneRank) {
  Hand hand(Collective::kBroadcast, 1, {.chunk_count = 1, .scratch_slots = 1, .lane_count = 2});
  Builder b = hand.at(0);
  b.copy(b.scratch(0), b.input(0));
  b.lane(1);
  b.copy(b.output(0), b.scratch(0));
  EXPECT_FALSE(hand.verify().ok());
  b = hand.at(0);
  hand.program(0).ops.clear();
  hand.program(0).shape.signal_count = 1;
  b.copy(b.scratch(0), b.input(0));
  b.signal(0, 0);
  b.lane(1);
  b.wait(0, 0, 1);
  b.copy(b.output(0), b.scratch(0));
  EXPECT_TRUE(hand.verify().ok()) << hand.verify().flaw.text;
}

// Rank 0 writes into the staging of rank 1, which reads it once it has seen the signal, if it
// waits.
TEST(Verifier, DemandsAWaitBetweenACopyToAPeerAndItsUseThere) {
  for (const bool waits : {false, true}) {
    Hand hand(Collective::kBroadcast, 2, {.chunk_count = 1, .staging_slots = 1, .signal_count = 1});
    Builder b = hand.at(0);
    b.copy(Builder::staging_at(1, 0), b.input(0));
    b.signal(1, 0);
    b.copy(b.output(0), b.input(0));
    Builder c = hand.at(1);
    if (waits) c.wait(0, 0, 1);
    c.copy(c.output(0), c.staging(0));
    EXPECT_EQ(hand.verify({.mapped = true}).ok(), waits);
  }
}

// Rank 1 reads the Input of rank 0: rank 0 must have entered, and may not return before.
Hand window_broadcast(bool enters, bool leaves) {
  Hand hand(Collective::kBroadcast, 2, {.chunk_count = 1, .signal_count = 2});
  Builder root = hand.at(0);
  root.signal(1, 0);
  root.copy(root.output(0), root.input(0));
  if (leaves) root.wait(1, 1, 1);
  Builder b = hand.at(1);
  if (enters) b.wait(0, 0, 1);
  b.copy(b.output(0), Builder::input_at(0, 0));
  b.signal(0, 1);
  return hand;
}

TEST(Verifier, KeepsUsersMemoryToTheTimeOfTheCall) {
  const Access access{.mapped = true, .inputs_mapped = true};
  EXPECT_TRUE(window_broadcast(true, true).verify(access).ok());
  expect_flaw(window_broadcast(false, true).verify(access), Flaw::Kind::kRace, 1,
              {"rank 1 op 0", "before a signal of rank 0"});
  expect_flaw(window_broadcast(true, false).verify(access), Flaw::Kind::kRace, 1,
              {"rank 1 op 1", "rank 0 may return to its user"});
}

TEST(Verifier, NamesAContributorThatIsMissingOrDouble) {
  Hand missing = exchange();
  missing.program(0).ops[2].operand_count = 1;
  expect_flaw(missing.verify(), Flaw::Kind::kValue, 0,
              {"rank 0: out[0] holds 1 contributions and should hold 2",
               "that of rank 1 is missing", "last written by rank 0 op 2"});
  Hand twice = exchange();
  Builder b = twice.at(1);
  b.reduce_into(b.output(0), b.scratch(0));
  expect_flaw(twice.verify(), Flaw::Kind::kValue, 1,
              {"that of rank 0 is double", "last written by rank 1 op 3"});
}

TEST(Verifier, FindsChunksThatAreMixedOrMisplaced) {
  Hand hand(Collective::kBroadcast, 1, {.chunk_count = 2});
  Builder b = hand.at(0);
  b.copy(b.output(0), b.input(1));
  expect_flaw(hand.verify(), Flaw::Kind::kValue, 0, {"op 0", "writes chunk 1 to out[0]"});
  hand.program(0).ops.clear();
  b.reduce(b.output(0), std::array{b.input(0), b.input(1)});
  expect_flaw(hand.verify(), Flaw::Kind::kValue, 0,
              {"op 0", "operand 1 holds chunk 1 and those before it chunk 0"});
}

TEST(Verifier, FindsAnOutputThatIsNeverWritten) {
  Hand hand(Collective::kBroadcast, 1, {.chunk_count = 2});
  hand.at(0).copy(hand.at(0).output(0), hand.at(0).input(0));
  expect_flaw(hand.verify(), Flaw::Kind::kValue, 0, {"out[1] holds nothing", "never written"});
}

TEST(Verifier, FindsABarrierThatARankLeavesEarly) {
  Hand hand(Collective::kBarrier, 2, {.signal_count = 1});
  hand.at(0).signal(1, 0);
  hand.at(1).wait(0, 0, 1);
  expect_flaw(hand.verify({.mapped = true}), Flaw::Kind::kValue, 0,
              {"rank 0 leaves the barrier without knowing that rank 1 has come"});
}

TEST(Verifier, FindsAnInPlaceProgramThatOverwritesItsInput) {
  // Two ranks exchange blocks of all_to_all, receiving before sending.
  Hand hand(Collective::kAllToAll, 2, {.chunk_count = 4});
  for (Rank rank : {0u, 1u}) {
    Builder b = hand.at(rank);
    b.copy(b.output(3 * rank), b.input(3 * rank));
    if (rank == 0) b.send(1, b.input(1));
    b.recv(1 - rank, b.output(rank == 0 ? 2 : 1));
    if (rank == 1) b.send(0, b.input(2));
  }
  EXPECT_TRUE(hand.verify().ok()) << hand.verify().flaw.text;
  expect_flaw(hand.verify({.in_place = true}), Flaw::Kind::kValue, 0, {"writes chunk 1 to out[2]"});
}

TEST(Verifier, RejectsWhatIsOutOfBounds) {
  struct Case {
    const char* expected;
    void (*change)(Program& program);
  };
  const Case cases[] = {
      {"lane 1 is out of range", [](Program& p) { p.ops[0].lane = 1; }},
      {"peer 2 is out of range", [](Program& p) { p.ops[0].peer = 2; }},
      {"does not send to itself", [](Program& p) { p.ops[0].peer = 0; }},
      {"src: Input of rank 0 does not hold chunk 1", [](Program& p) { p.ops[0].src.chunk = 1; }},
      {"dst: Scratch of rank 0 does not hold the 2 chunks from 0",
       [](Program& p) { p.ops[1].count = 2; }},
      {"send buffer, which is never written",
       [](Program& p) { p.ops[2].dst.space = Space::kInput; }},
      {"operands 0..2 are out of range", [](Program& p) { p.ops[2].operand_count = 3; }},
      {"operand_count is 0", [](Program& p) { p.ops[2].operand_count = 0; }},
      {"operand 1 of 2: operand is private scratch of rank 1",
       [](Program& p) { p.operands[1].rank = 1; }},
      {"operand is at rank 1, whose Input is not mapped",
       [](Program& p) { p.operands[0].rank = 1; }},
      {"signal 0 is out of range",
       [](Program& p) {
         p.ops[0].code = OpCode::kSignal;
         p.ops[0].peer = 1;
       }},
      {"unknown operation code", [](Program& p) { p.ops[0].code = static_cast<OpCode>(77); }},
      {"lane_count is not that of rank 0", [](Program& p) { p.shape.lane_count = 2; }},
      {"src of a message must be local", [](Program& p) { p.ops[0].src.rank = 1; }},
      {"dst.rank 9 is out of range",
       [](Program& p) {
         p.ops[0].code = OpCode::kCopy;
         p.ops[0].dst = {0, 9, Space::kOutput};
       }},
  };
  for (const Case& test : cases) {
    Hand hand = exchange();
    test.change(hand.program(0));
    const Verdict verdict = hand.verify();
    EXPECT_EQ(verdict.flaw.kind, Flaw::Kind::kBounds) << test.expected;
    EXPECT_THAT(verdict.flaw.text, HasSubstr(test.expected));
  }
}

}  // namespace
}  // namespace weir::sched
