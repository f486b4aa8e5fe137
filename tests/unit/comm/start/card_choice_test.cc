// SPDX-License-Identifier: Apache-2.0
#include "core/comm/start/card_choice.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "core/topo/discover.h"

namespace weir::comm {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

net::InterfaceFilter filter_of(const char* text) {
  net::InterfaceFilter filter;
  std::string reason;
  EXPECT_TRUE(net::filter_from(text, nullptr, &filter, &reason)) << reason;
  return filter;
}

Names names_of(const std::vector<topo::PortName>& ports) {
  Names names;
  for (const topo::PortName& port : ports) names.push_back(port.name);
  return names;
}

// A made-up /sys with the files as the kernel writes them.
class CardChoice : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = fs::temp_directory_path() / "weir-card-choice-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    add("mlx5_0", "0000:3b:00.0", "ib0", "4: ACTIVE");
    add("mlx5_1", "0000:5e:00.0", "ib1", "4: ACTIVE");
    add("mlx5_2", "0000:86:00.0", "ib2", "1: DOWN");
    add("mlx5_3", "0000:af:00.0", "", "4: ACTIVE");
    fs::create_directories(root_ / "class" / "net" / "docker0");
    for (const char* name : {"eth0", "ib0", "ib1", "docker0", "ib0"}) {
      interfaces_.push_back({name, {}, 24, 0, false});
    }
  }
  void TearDown() override { fs::remove_all(root_); }

  void add(const std::string& name, const std::string& address, const std::string& interface,
           const std::string& state) {
    const fs::path device = root_ / "devices" / "pci0000:00" / address;
    fs::create_directories(device / "net");
    const fs::path folder = root_ / "class" / "infiniband" / name;
    fs::create_directories(folder / "ports" / "1");
    std::ofstream(folder / "node_type") << "1: CA\n";
    std::ofstream(folder / "ports" / "1" / "state") << state << "\n";
    std::ofstream(folder / "ports" / "1" / "link_layer") << "InfiniBand\n";
    fs::create_directory_symlink(device, folder / "device");
    if (interface.empty()) return;
    fs::create_directories(device / "net" / interface);
    fs::create_directories(root_ / "class" / "net" / interface);
    fs::create_directory_symlink(device, root_ / "class" / "net" / interface / "device");
  }
  Names cards(const char* filter) {
    return names_of(card_candidates(filter_of(filter), interfaces_, root_).cards);
  }

  fs::path root_;
  std::vector<net::Interface> interfaces_;
};

TEST_F(CardChoice, CardsWithAnActivePortAndInterfacesOnPciAreCandidates) {
  const CardCandidates all = card_candidates(filter_of(""), interfaces_, root_);
  EXPECT_EQ(names_of(all.cards), (Names{"mlx5_0", "mlx5_1", "mlx5_3"}));
  EXPECT_EQ(all.cards[1].address, "0000:5e:00.0");
  EXPECT_EQ(names_of(all.interfaces), (Names{"ib0", "ib1"}));
  EXPECT_TRUE(all.several());
  EXPECT_FALSE(card_candidates(filter_of(""), {}, root_ / "none").several());
}

TEST_F(CardChoice, InterfacesThatTheUserNamesChooseCardsIfTheyAreOfCards) {
  EXPECT_EQ(cards("=ib1"), Names{"mlx5_1"});
  EXPECT_EQ(cards("ib"), (Names{"mlx5_0", "mlx5_1"}));
  EXPECT_EQ(cards("=eth0"), (Names{"mlx5_0", "mlx5_1", "mlx5_3"})) << "for connections only";
  EXPECT_EQ(cards("^=ib0"), (Names{"mlx5_1", "mlx5_3"}));
  EXPECT_EQ(cards("^docker"), (Names{"mlx5_0", "mlx5_1", "mlx5_3"}));
}

TEST_F(CardChoice, EightRanksOnEightGpusOfTwoHostsTakeEightCardsEach) {
  auto machine = topo::read_file(std::string(WEIR_TEST_FIXTURES) +
                                 "/topologies/made-nvswitch-8-cards.nccl.xml");
  ASSERT_TRUE(machine.ok()) << machine.status().text();
  CardCandidates all;
  for (int i = 0; i < 8; ++i) all.cards.push_back({"mlx5_" + std::to_string(i), ""});
  std::vector<Names> near;
  std::vector<uint32_t> hosts;
  for (uint32_t rank = 0; rank < 16; ++rank) {
    const topo::RankPlace place{"GPU" + std::to_string(rank / 2), {}};
    near.push_back(near_cards(all, &machine.value(), place).cards.names);
    hosts.push_back(rank % 2);
  }
  std::vector<const Names*> told;
  for (const Names& one : near) told.push_back(&one);
  const auto taken = cards_of_ranks(told, hosts);
  for (uint32_t rank = 0; rank < 16; ++rank) {
    EXPECT_EQ(taken[rank], Names{"mlx5_" + std::to_string(rank / 2)}) << rank;
  }
}

TEST_F(CardChoice, WithoutATopologyRanksOfAHostShareOutAllCards) {
  const Names all =
      near_cards(card_candidates(filter_of(""), interfaces_, root_), nullptr, {}).cards.names;
  const Names none;
  // Ranks 1 and 4 see no cards; hosts 0, 0, 0, 1, 1.
  const std::vector<uint32_t> hosts = {0, 0, 0, 1, 1};
  const auto taken = cards_of_ranks({&all, &none, &all, &all, &none}, hosts);
  EXPECT_EQ(taken[0], (Names{"mlx5_0", "mlx5_3"}));
  EXPECT_EQ(taken[1], none);
  EXPECT_EQ(taken[2], Names{"mlx5_1"});
  EXPECT_EQ(taken[3], all);
  EXPECT_EQ(taken[4], none);
  EXPECT_EQ(cards_of_ranks({&all, &all, &all, &all, &all}, {})[4], Names{"mlx5_1"});
}

TEST(NumbersOfCards, AreThoseOfTheHostWhereItsRanksUseTheSame) {
  using Numbers = std::vector<uint32_t>;
  const Names a = {"a"}, b = {"b"}, both = {"a", "b"}, none;
  const Numbers hosts = {0, 1, 0, 1};
  EXPECT_EQ(numbers_of_cards({a, a, b, b}, hosts), (Numbers{0, 1, 2, 3}));
  EXPECT_EQ(numbers_of_cards({a, both, b, both}, hosts), (Numbers{0, 1, 2, 1}));
  EXPECT_EQ(numbers_of_cards({both, a, both, a}, hosts), Numbers{});
  EXPECT_EQ(numbers_of_cards({none, none, none, none}, hosts), Numbers{});
  EXPECT_EQ(numbers_of_cards({a, b}, {}), (Numbers{0, 1}));
}

TEST_F(CardChoice, EachRankBeginsWithAnotherInterface) {
  EXPECT_EQ(rotated({"a", "b", "c"}, 4), (Names{"b", "c", "a"}));
  EXPECT_EQ(rotated({}, 4), Names{});
  EXPECT_EQ(split_names(join_names({"a", "b", "c"})), (Names{"a", "b", "c"}));
  EXPECT_EQ(split_names(""), Names{});
}

}  // namespace
}  // namespace weir::comm
