// SPDX-License-Identifier: Apache-2.0
// Ranks on several hosts decide alike whether they use their cards, and say why.
#include "core/comm/start/fabric_choice.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace weir::comm {
namespace {

using topo::CardKind;

// What one rank has.
struct Made {
  std::vector<CardKind> kinds = {CardKind::kInfiniBand};
  std::string text = "mlx5_0 (InfiniBand)";
  FabricStance stance = FabricStance::kFree;
  std::map<std::string, std::string> lacks = {};  // by transport, why it cannot be used
};

CardsSeen seen_by(const Made& rank) {
  CardsSeen seen;
  seen.stance = rank.stance;
  for (const CardKind kind : rank.kinds) seen.cards.kinds |= static_cast<uint8_t>(kind);
  seen.cards.text = rank.text;
  return seen;
}

Made without_card() { return {.kinds = {}, .text = ""}; }

struct Decision {
  FabricChoice choice;
  int asked_count = 0;  // questions whether a rank can use a transport
};

// What all ranks decide. All are run again for each exchange, up to the next one.
Decision decide(const std::vector<Made>& ranks) {
  std::vector<CardsSeen> all;
  for (const Made& rank : ranks) {
    CardsSeen seen;
    EXPECT_TRUE(CardsSeen::unpack(seen_by(rank).pack(), &seen));
    all.push_back(seen);
  }
  // Of each exchange, what each rank gives.
  std::vector<std::vector<std::string>> known;
  std::vector<FabricChoice> choices(ranks.size());
  Decision decision;
  for (bool whole = false; !whole;) {
    std::vector<std::string> next(ranks.size());
    size_t waiting = 0;
    decision.asked_count = 0;
    for (size_t p = 0; p < ranks.size(); ++p) {
      size_t exchange_count = 0;
      const auto can_use = [&](const std::string& name) {
        ++decision.asked_count;
        const auto found = ranks[p].lacks.find(name);
        return found == ranks[p].lacks.end() ? Status() : Status(Code::kUnsupported, found->second);
      };
      const auto exchange = [&](const std::string& text) -> Result<std::vector<std::string>> {
        if (exchange_count < known.size()) return known[exchange_count++];
        next[p] = text;
        ++waiting;
        return Status(Code::kTimeout, "the others");
      };
      auto choice = choose_fabric(all, can_use, exchange);
      if (choice.ok()) choices[p] = choice.take();
    }
    EXPECT_TRUE(waiting == 0 || waiting == ranks.size()) << "some ranks have decided already";
    whole = waiting == 0 || testing::Test::HasFailure();
    known.push_back(next);
  }
  for (const FabricChoice& choice : choices) {
    EXPECT_EQ(choice.transport, choices[0].transport);
    EXPECT_EQ(choice.reason, choices[0].reason);
  }
  decision.choice = choices[0];
  return decision;
}

TEST(FabricChoice, UcxIsTakenWhereEveryRankHasACardAndUcx) {
  const Decision made = decide({{}, {}, {}});
  EXPECT_EQ(made.choice.transport, "ucx");
  EXPECT_EQ(made.choice.reason,
            "all ranks have active InfiniBand, rank 0: mlx5_0 (InfiniBand); all can use ucx");
  EXPECT_EQ(made.asked_count, 3) << "ofi is not asked";
}

TEST(FabricChoice, ARankWithoutACardIsNamedAndNoTransportIsAsked) {
  const Decision made = decide({{}, without_card(), {}, without_card()});
  EXPECT_EQ(made.choice.transport, "");
  EXPECT_EQ(made.choice.reason, "no active InfiniBand, RoCE or EFA on ranks 1, 3");
  EXPECT_EQ(made.asked_count, 0);
}

TEST(FabricChoice, ARankWhosePortIsDownIsNamedWithTheState) {
  EXPECT_EQ(decide({{}, {}, {.kinds = {}, .text = "mlx5_0 (port 1 is DOWN)"}}).choice.reason,
            "no active InfiniBand, RoCE or EFA on rank 2; rank 2 has mlx5_0 (port 1 is DOWN)");
}

TEST(FabricChoice, OfiIsTakenWhereARankHasNoUcx) {
  const Decision made = decide({{}, {.lacks = {{"ucx", "there is no transport 'ucx'"}}}});
  EXPECT_EQ(made.choice.transport, "ofi");
  EXPECT_EQ(made.choice.reason,
            "all ranks have active InfiniBand, rank 0: mlx5_0 (InfiniBand); rank 1 cannot use ucx: "
            "there is no transport 'ucx'; all can use ofi");
  EXPECT_EQ(made.asked_count, 4);
}

TEST(FabricChoice, WithoutUcxAndOfiTheRanksAndReasonsAreTold) {
  const Decision made = decide(
      {{.lacks = {{"ofi", "libfabric is too old"}}}, {.lacks = {{"ucx", "it does\nnot work"}}}});
  EXPECT_EQ(made.choice.transport, "");
  EXPECT_EQ(made.choice.reason,
            "all ranks have active InfiniBand, rank 0: mlx5_0 (InfiniBand); rank 1 cannot use ucx: "
            "it does?not work; rank 0 cannot use ofi: libfabric is too old");
}

TEST(FabricChoice, OneRankRefusesForAll) {
  const Decision made = decide({{}, {.stance = FabricStance::kRefused}});
  EXPECT_EQ(made.choice.transport, "");
  EXPECT_EQ(made.choice.reason, "WEIR_FABRIC=0 on rank 1");
  EXPECT_EQ(made.asked_count, 0);
}

TEST(FabricChoice, NamedTransportsWin) {
  const Made named = {.stance = FabricStance::kNamed};
  for (const std::vector<Made>& ranks : {std::vector<Made>{named, named}, {{}, named}}) {
    const Decision made = decide(ranks);
    EXPECT_EQ(made.choice.transport, "");
    EXPECT_TRUE(made.choice.reason.starts_with("the program, WEIR_TRANSPORT or WEIR_FAILOVER"));
    EXPECT_EQ(made.asked_count, 0);
  }
}

TEST(FabricChoice, CardsOfKindsThatDoNotReachEachOtherAreNotUsed) {
  const Made roce = {.kinds = {CardKind::kRoce}, .text = "mlx5_0 (RoCE)"};
  const Made both = {.kinds = {CardKind::kRoce, CardKind::kInfiniBand}, .text = "two"};
  EXPECT_EQ(decide({both, {}}).choice.transport, "ucx");
  EXPECT_EQ(decide({both, {}, roce}).choice.reason,
            "the ranks have no kind of card in common: rank 0 has InfiniBand and RoCE, rank 1 "
            "InfiniBand, rank 2 RoCE");
  EXPECT_EQ(decide({{}, roce, roce}).choice.reason,
            "the ranks have no kind of card in common: rank 0 has InfiniBand, rank 1 RoCE");
}

TEST(FabricChoice, EfaIsLeftToOfi) {
  const Made efa = {.kinds = {CardKind::kEfa}, .text = "efa_0 (EFA)"};
  EXPECT_EQ(decide({efa, efa}).choice.transport, "ofi");
  Made lacking = efa;
  lacking.lacks = {{"ofi", "no libfabric"}};
  EXPECT_EQ(decide({efa, lacking}).choice.transport, "");
}

TEST(FabricChoice, AnAnswerThatCannotBeReadIsRefusedWithItsRank) {
  const std::vector<CardsSeen> all(3, seen_by({}));
  for (const std::string bad : {"", "x", "-line\n", "++"}) {
    const auto exchange = [&](const std::string& text) -> Result<std::vector<std::string>> {
      return std::vector<std::string>{text, text, bad};
    };
    const auto choice = choose_fabric(
        all, [](const std::string&) { return Status(); }, exchange);
    EXPECT_EQ(choice.status().code(), Code::kRefused) << bad;
    EXPECT_NE(choice.status().text().find("rank 2"), std::string::npos);
  }
}

TEST(FabricChoice, WhatIsSeenPassesThroughItsBytesAndNonsenseIsRefused) {
  Made rank = {.kinds = {CardKind::kEfa}, .stance = FabricStance::kRefused};
  rank.text = std::string(1000, 'x') + "\n";
  CardsSeen read;
  ASSERT_TRUE(CardsSeen::unpack(seen_by(rank).pack(), &read));
  EXPECT_EQ(read.stance, FabricStance::kRefused);
  EXPECT_EQ(read.cards.kinds, static_cast<uint8_t>(CardKind::kEfa));
  EXPECT_EQ(read.cards.text, std::string(400, 'x'));
  EXPECT_TRUE(read.near.empty());
  CardsSeen with_near = seen_by(rank);
  with_near.near = {"mlx5_0", "mlx5_3"};
  ASSERT_TRUE(CardsSeen::unpack(with_near.pack(), &read));
  EXPECT_EQ(read.near, with_near.near);
  EXPECT_EQ(read.cards.text, std::string(400, 'x'));
  using std::string_literals::operator""s;
  for (const std::string& bad : {""s, "\0\0\0"s, "\3\0\0\0"s, "\0\x08\0\0"s, "\0\1\0\0line\n"s,
                                 "\0\1\0\0"s + std::string(401, 'x'), "\0\1\5\0abcd"s,
                                 "\0\1\3\0a\nb"s, "\0\1\1\x10"s + std::string(4097, 'a')}) {
    EXPECT_FALSE(CardsSeen::unpack(bad, &read)) << bad;
  }
}

}  // namespace
}  // namespace weir::comm
