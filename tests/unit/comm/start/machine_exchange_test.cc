// SPDX-License-Identifier: Apache-2.0
// What ranks tell each other of their machines, over a real bootstrap: who tells a topology, what
// becomes of it, and what is refused by the name of its rank.
#include "core/comm/start/machine_exchange.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include "core/graph/kept_searches.h"
#include "core/topo/discover.h"
#include "core/topo/nccl_xml.h"
#include "unit/comm/start/bootstrap_support.h"

namespace weir::comm {
namespace {

ToldTopology told(const std::string& text) {
  auto read = topo::parse_nccl_xml(text, "test");
  EXPECT_TRUE(read.ok()) << read.status().text();
  return {.hash = read.value().hash(), .text = text};
}

// A recorded machine, as its leader tells it.
ToldTopology machine(const std::string& file) {
  auto topology = topo::read_file(WEIR_FIXTURES "/topologies/" + file);
  EXPECT_TRUE(topology.ok()) << topology.status().text();
  auto text = topo::to_nccl_xml(topology.value());
  EXPECT_TRUE(text.ok()) << text.status().text();
  return told(text.value());
}

// One NUMA node and `cards` cards of so many Mbit/s.
ToldTopology made(int cards, int mbps) {
  std::string text =
      "<system version=\"1\"><cpu numaid=\"0\" affinity=\"0000000f\" arch=\"x86_64\" "
      "vendor=\"AuthenticAMD\" familyid=\"25\" modelid=\"1\">";
  for (int i = 0; i < cards; ++i) {
    text += fmt::format(
        "<pci busid=\"0000:{0:02x}:00.0\" class=\"0x020000\" link_speed=\"32 GT/s\" "
        "link_width=\"16\"><nic><net name=\"eth{1}\" port=\"1\" speed=\"{2}\"/></nic></pci>",
        0x10 + i, i, mbps);
  }
  return told(text + "</cpu></system>");
}

// What one rank does in place of Weir, with the blob of each gather.
using Liar = std::function<std::string(uint32_t round)>;

class Exchange : public testing::Test {
 protected:
  struct Answer {
    Status status;
    LinksInUse links;
    uint32_t topologies_told = 0;
    uint64_t bytes_told = 0;  // by this rank
    AgreedCosts costs;
  };

  void SetUp() override {
    std::string name = testing::TempDir() + "weir-exchange-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    settings_.cache_dir = name;
  }
  void TearDown() override { std::filesystem::remove_all(settings_.cache_dir); }

  // Counts what this rank gives.
  class Counting : public Bootstrap {
   public:
    Counting(Bootstrap* inner, uint64_t* bytes) : inner_(*inner), bytes_(*bytes) {}
    Result<std::vector<std::string>> all_gather(std::string_view blob, uint64_t deadline) override {
      bytes_ += blob.size();
      return inner_.all_gather(blob, deadline);
    }
    Status look() override { return inner_.look(); }
    Status give_up(const Status& reason) override { return inner_.give_up(reason); }

   private:
    Bootstrap& inner_;
    uint64_t& bytes_;
  };

  // `host_of_rank`: its ranks; `machines`: of each host. With two gathers of costs if `measures`.
  std::vector<Answer> run(const std::vector<uint32_t>& host_of_rank,
                          const std::vector<ToldTopology>& machines, bool measures = false,
                          std::optional<Rank> liar = {}, const Liar& lie = {}) {
    const auto n = static_cast<Rank>(host_of_rank.size());
    std::vector<Introduction> all(n);
    for (Rank rank = 0; rank < n; ++rank) {
      all[rank].host = fmt::format("host {}", host_of_rank[rank]);
      all[rank].cpus = {0, 1};
      if (!devices_.empty()) all[rank].device = devices_[rank];
      if (numa_of_rank_.empty()) continue;
      all[rank].cpu_place.numa = numa_of_rank_[rank];
      all[rank].cpus = {static_cast<int>(numa_of_rank_[rank] * kCoresOfNode)};
    }
    settings_.probe = measures;
    const Secret secret = fresh_secret();
    std::vector<Answer> answers(n);
    std::vector<std::thread> threads;
    for (Rank rank = 0; rank < n; ++rank) {
      threads.emplace_back([&, rank] {
        auto joined = Bootstrap::join(secret, rank, n, deadline_in_ms(60'000));
        ASSERT_TRUE(joined.ok()) << joined.status().text();
        Answer& answer = answers[rank];
        if (liar == rank) {
          for (uint32_t round = 0; round < 3; ++round) {
            if (!joined.value()->all_gather(lie(round), deadline_in_ms(60'000)).ok()) break;
          }
          return;
        }
        engine::Context context;
        context.rank = rank;
        context.rank_count = n;
        // Not touched: it only says that memory is mapped.
        if (!numa_of_rank_.empty())
          context.segment_base = reinterpret_cast<unsigned char*>(&answer);
        MachineExchange exchange(context, settings_, all, cards_,
                                 [&] { return machines[host_of_rank[rank]]; });
        Counting counting(joined.value().get(), &answer.bytes_told);
        answer.costs.table = cost::built_in_table();
        for (int round = 0; round < (measures ? 2 : 1) && answer.status.ok(); ++round) {
          const auto got =
              exchange.all_gather(counting, fmt::format("costs {}", rank), deadline_in_ms(60'000));
          answer.status = got.status();
          for (Rank p = 0; got.ok() && p < n; ++p) {
            if (p == liar) continue;
            EXPECT_EQ(got.value()[p], fmt::format("costs {}", p)) << "what it carries stays whole";
          }
        }
        if (measures) answer.costs.wire_of_host = measured_;
        if (!answer.status.ok()) return;
        auto links = exchange.agree(counting, &answer.costs, deadline_in_ms(60'000));
        answer.status = links.status();
        if (links.ok()) answer.links = links.take();
        answer.topologies_told = exchange.topologies_told();
      });
    }
    for (std::thread& thread : threads) thread.join();
    return answers;
  }

  // All ranks but the liar say the same.
  void expect_refused(const std::vector<Answer>& answers, Rank liar, const std::string& words) {
    for (Rank rank = 0; rank < answers.size(); ++rank) {
      if (rank == liar) continue;
      EXPECT_FALSE(answers[rank].status.ok());
      EXPECT_NE(answers[rank].status.text().find(fmt::format("rank {} ", liar)), std::string::npos)
          << answers[rank].status.text();
      EXPECT_NE(answers[rank].status.text().find(words), std::string::npos)
          << answers[rank].status.text();
    }
  }

  Settings settings_{};
  std::vector<std::string> devices_;  // of each rank; empty: none
  std::vector<uint32_t> cards_;       // of each rank; empty: one for each host
  // Ranks that map each other's memory, by NUMA node; empty: they do not.
  std::vector<uint32_t> numa_of_rank_;
  static constexpr uint32_t kCoresOfNode = 8;
  std::vector<double> measured_;
};

std::string with_size(std::string text) {
  unsigned char size[4];
  const auto count = static_cast<uint32_t>(text.size());
  for (int i = 0; i < 4; ++i) size[i] = static_cast<unsigned char>(count >> (8 * i));
  return text.append(reinterpret_cast<const char*>(size), sizeof size);
}

std::string hash_of(const ToldTopology& told) {
  std::string text(1, '\1');
  for (int i = 0; i < 8; ++i) text += static_cast<char>(told.hash >> (8 * i));
  return text;
}

// Of data that go from one rank to another, and others that go at the same time: the limited links
// that both take.
size_t links_shared(const cost::MessageWays& ways, std::pair<Rank, Rank> one,
                    std::pair<Rank, Rank> other) {
  const auto first = ways.way(one.first, one.second);
  const auto second = ways.way(other.first, other.second);
  return static_cast<size_t>(std::count_if(first.begin(), first.end(), [&](graph::LinkId link) {
    return ways.is_limited(link) && std::find(second.begin(), second.end(), link) != second.end();
  }));
}

TEST_F(Exchange, RanksOfSeveralNumaNodesThatMapMemoryKnowTheLinksThatTheyShare) {
  // Two packages of four nodes.
  numa_of_rank_ = {0, 1, 2, 3, 4, 5, 6, 7};
  const std::vector<uint32_t> one_host(8, 0);
  const auto answers = run(one_host, {machine("made-eight-numa.hwloc.xml")});
  for (const Answer& answer : answers) {
    ASSERT_TRUE(answer.status.ok()) << answer.status.text();
    ASSERT_NE(answer.links.memory_ways, nullptr) << answer.links.reason;
    EXPECT_EQ(answer.links.forests, nullptr);
    EXPECT_EQ(answer.links.device_ways, nullptr);
    EXPECT_EQ(answer.topologies_told, 1u);
    EXPECT_NE(answer.links.reason.find("NUMA"), std::string::npos) << answer.links.reason;
    const cost::MessageWays& ways = *answer.links.memory_ways;
    EXPECT_EQ(ways.hash(), answers[0].links.memory_ways->hash());
    EXPECT_GE(links_shared(ways, {0, 4}, {1, 5}), 1u) << "the way between the packages";
    EXPECT_EQ(links_shared(ways, {0, 1}, {2, 3}), 0u);
    EXPECT_GE(links_shared(ways, {0, 1}, {0, 2}), 1u) << "the memory of rank 0's node";
  }
}

TEST_F(Exchange, RanksOfOneNumaNodeThatMapMemoryTellNothing) {
  numa_of_rank_ = {3, 3};
  for (const Answer& answer : run({0, 0}, {machine("made-eight-numa.hwloc.xml")})) {
    ASSERT_TRUE(answer.status.ok()) << answer.status.text();
    EXPECT_EQ(answer.links.memory_ways, nullptr);
    EXPECT_EQ(answer.links.reason, "");
    EXPECT_EQ(answer.topologies_told, 0u);
  }
}

TEST_F(Exchange, HostsThatAreAlikeTellHashesOnly) {
  const ToldTopology one = machine("azure-ndv4-topo.nccl.xml");
  for (const Answer& answer : run({0, 0, 1, 1}, {one, one})) {
    ASSERT_TRUE(answer.status.ok()) << answer.status.text();
    EXPECT_EQ(answer.links.forests, nullptr);
    EXPECT_NE(answer.links.reason.find("alike"), std::string::npos) << answer.links.reason;
    EXPECT_EQ(answer.topologies_told, 0u);
    EXPECT_LT(answer.bytes_told, 40u);
  }
}

// Twelve hosts of two kinds: two topologies, however many hosts there are.
TEST_F(Exchange, EqualHostsTellOneTopology) {
  const ToldTopology fast = machine("made-nvswitch-8-cards.nccl.xml");
  const ToldTopology slow = machine("azure-ncv4-topo.nccl.xml");
  std::vector<uint32_t> hosts;
  std::vector<ToldTopology> machines;
  for (uint32_t host = 0; host < 12; ++host) {
    hosts.push_back(host);
    machines.push_back(host == 5 ? slow : fast);
  }
  const std::vector<Answer> answers = run(hosts, machines);
  uint64_t bytes = 0;
  for (Rank rank = 0; rank < answers.size(); ++rank) {
    ASSERT_TRUE(answers[rank].status.ok()) << answers[rank].status.text();
    EXPECT_EQ(answers[rank].topologies_told, 2u);
    EXPECT_NE(answers[rank].links.forests, nullptr) << answers[rank].links.reason;
    EXPECT_EQ(answers[rank].links.reason, answers[0].links.reason);
    const bool tells = rank == 0 || rank == 5;
    if (!tells) {
      EXPECT_LT(answers[rank].bytes_told, 60u);
    }
    if (rank != 0) bytes += answers[rank].bytes_told;
  }
  EXPECT_LT(bytes, slow.text.size() + 11 * 60);
}

// Where the network is measured, three hosts that are alike tell one, for they may turn out to
// differ.
TEST_F(Exchange, OneTopologyServesHostsWhoseMeasuredNetworksDiffer) {
  const ToldTopology one = machine("azure-ndv4-topo.nccl.xml");
  measured_ = {2.5, 2.5, 20.0};
  for (const Answer& answer : run({0, 1, 2}, {one, one, one}, true)) {
    ASSERT_TRUE(answer.status.ok()) << answer.status.text();
    EXPECT_EQ(answer.topologies_told, 1u);
    ASSERT_NE(answer.links.forests, nullptr) << answer.links.reason;
    EXPECT_EQ(answer.costs.wire_of_host, measured_) << "what is measured stays";
    EXPECT_NE(answer.links.reason.find("measured"), std::string::npos) << answer.links.reason;
  }
  measured_.clear();
  for (const Answer& answer : run({0, 1, 2}, {one, one, one}, true)) {
    EXPECT_EQ(answer.links.forests, nullptr) << answer.links.reason;
  }
}

// The nominal figures of cards count where nothing is measured, and only there.
TEST_F(Exchange, NominalNetworksThatDifferAreTakenUnlessMeasured) {
  const ToldTopology fast = made(4, 100'000), slow = made(1, 100'000);
  for (const Answer& answer : run({0, 0, 1, 1, 2, 2}, {fast, fast, slow})) {
    ASSERT_TRUE(answer.status.ok()) << answer.status.text();
    ASSERT_NE(answer.links.forests, nullptr) << answer.links.reason;
    ASSERT_EQ(answer.costs.wire_of_host.size(), 3u);
    EXPECT_NEAR(answer.costs.wire_of_host[0], 1 / 50.0, 1e-3);
    EXPECT_NEAR(answer.costs.wire_of_host[2], 1 / 12.5, 1e-3);
    EXPECT_NE(answer.links.reason.find("differ by a factor of 4"), std::string::npos)
        << answer.links.reason;
  }
  for (const Answer& answer : run({0, 0, 1, 1, 2, 2}, {fast, fast, slow}, true)) {
    ASSERT_TRUE(answer.status.ok()) << answer.status.text();
    EXPECT_EQ(answer.links.forests, nullptr) << answer.links.reason;
    EXPECT_TRUE(answer.costs.wire_of_host.empty());
  }
}

// The figure of a host is that of each card of its ranks, measured or not.
TEST_F(Exchange, TheCardsOfAHostShareItsNominalNetworkAndAddToTheMeasuredOne) {
  const ToldTopology fast = made(4, 100'000), slow = made(1, 50'000);
  cards_ = {0, 1, 2, 3, 4, 4};
  for (const Answer& answer : run({0, 0, 1, 1, 2, 2}, {fast, fast, slow})) {
    ASSERT_TRUE(answer.status.ok()) << answer.status.text();
    ASSERT_EQ(answer.costs.wire_of_host.size(), 3u);
    EXPECT_NEAR(answer.costs.wire_of_host[0], 1 / 25.0, 1e-3);
    EXPECT_NEAR(answer.costs.wire_of_host[2], 1 / 6.25, 1e-3);
    EXPECT_NE(answer.links.reason.find("differ by a factor of 8"), std::string::npos)
        << answer.links.reason;
  }
  measured_ = {1, 1, 2};
  for (const Answer& answer : run({0, 0, 1, 1, 2, 2}, {fast, fast, slow}, true)) {
    ASSERT_TRUE(answer.status.ok()) << answer.status.text();
    EXPECT_EQ(answer.costs.wire_of_host, measured_);
    EXPECT_NE(answer.links.reason.find("differ by a factor of 4"), std::string::npos)
        << answer.links.reason;
  }
}

TEST_F(Exchange, AMachineWhoseNetworkIsUnknownIsNotTakenForSlow) {
  const ToldTopology fast = made(1, 100'000), unknown = made(1, 0);
  for (const Answer& answer : run({0, 1, 2}, {fast, fast, unknown})) {
    ASSERT_TRUE(answer.status.ok()) << answer.status.text();
    EXPECT_EQ(answer.links.forests, nullptr) << answer.links.reason;
    EXPECT_TRUE(answer.costs.wire_of_host.empty());
  }
}

TEST_F(Exchange, WithoutATopologyOfOneHostThereIsNoGraph) {
  const ToldTopology one = made(1, 100'000);
  const std::vector<uint32_t> hosts = {0, 1};
  std::vector<std::optional<LinksInUse>> links(2);
  const Secret secret = fresh_secret();
  std::vector<Introduction> all(2);
  all[0].host = "a";
  all[1].host = "b";
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      auto joined = Bootstrap::join(secret, rank, 2, deadline_in_ms(60'000));
      ASSERT_TRUE(joined.ok()) << joined.status().text();
      engine::Context context;
      context.rank = rank;
      context.rank_count = 2;
      MachineExchange exchange(context, settings_, all, {}, [&]() -> Result<ToldTopology> {
        if (rank == 1) return invalid_argument("topo.xml:3: no such thing");
        return one;
      });
      ASSERT_TRUE(exchange.all_gather(*joined.value(), "", deadline_in_ms(60'000)).ok());
      AgreedCosts costs;
      auto agreed = exchange.agree(*joined.value(), &costs, deadline_in_ms(60'000));
      ASSERT_TRUE(agreed.ok()) << agreed.status().text();
      links[rank] = agreed.take();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& it : links) {
    ASSERT_TRUE(it.has_value());
    EXPECT_EQ(it->forests, nullptr);
    EXPECT_EQ(it->reason, "not known (rank 1: topo.xml:3: no such thing)");
  }
}

TEST_F(Exchange, DevicesAreWhereRanksSit) {
  // Alike hosts of eight GPUs with xGMI to some of each other: trees are better inside.
  const ToldTopology rome = machine("rccl-8p-rome-n4.nccl.xml");
  devices_.clear();
  for (int rank = 0; rank < 8; ++rank) devices_.push_back(fmt::format("ffff:00:00.0 {}", rank));
  for (const Answer& answer : run(std::vector<uint32_t>(8, 0), {rome})) {
    ASSERT_TRUE(answer.status.ok()) << answer.status.text();
    EXPECT_EQ(answer.topologies_told, 1u);
    ASSERT_NE(answer.links.forests, nullptr) << answer.links.reason;
  }
  // NVSwitches join all GPUs alike: a ring is as good.
  const ToldTopology dgx2 = machine("dgx2.hwloc.xml");
  for (const Answer& answer : run(std::vector<uint32_t>(8, 0), {dgx2})) {
    ASSERT_TRUE(answer.status.ok()) << answer.status.text();
    EXPECT_EQ(answer.links.forests, nullptr) << answer.links.reason;
    EXPECT_NE(answer.links.reason.find("ring"), std::string::npos) << answer.links.reason;
  }
}

TEST_F(Exchange, ALiarIsRefusedByName) {
  const ToldTopology fast = made(4, 100'000), slow = made(1, 100'000);
  const auto topology = [](const std::string& text) { return std::string("\1\0", 2) + text; };
  struct Lie {
    std::string first, second, words;
  };
  const std::string honest = with_size(hash_of(slow));
  const std::vector<Lie> lies = {
      {"", "", "nothing about its machine"},
      {std::string("x\xff\xff\0\0", 5), "", "bytes about its machine, and said 65535"},
      {with_size("\2"), "", "a note on its machine that is none"},
      {with_size(hash_of(slow) + "x"), "", "a note on its machine that is none"},
      {honest, with_size(topology(fast.text)), "which was told as"},
      {honest, with_size(topology("<system")), "rank 1"},
      {honest, with_size(topology(std::string(kToldBytesMax + 1, ' '))), "allowed are 262144"},
      {honest, with_size(std::string("\7\0", 2) + slow.text), "a topology of version 7, not 1"},
      {honest, with_size(""), "no topology of its machine"},
  };
  for (const Lie& lie : lies) {
    SCOPED_TRACE(lie.words);
    const auto answers = run({0, 1, 2}, {fast, slow, fast}, false, 1, [&](uint32_t round) {
      return round == 0 ? lie.first : round == 1 ? lie.second : std::string(8, '\0');
    });
    expect_refused(answers, 1, lie.words);
  }
  // A host of a known kind tells another topology.
  const auto unasked = run({0, 1, 2}, {fast, slow, fast}, false, 2, [&](uint32_t round) {
    return with_size(round == 0 ? hash_of(fast) : topology(fast.text));
  });
  expect_refused(unasked, 2, "a topology that was not asked for");
  const auto another = run({0, 1, 2}, {fast, slow, fast}, false, 2, [&](uint32_t round) {
    return round == 0 ? with_size(hash_of(fast)) : round == 1 ? with_size("") : std::string(8, '7');
  });
  expect_refused(another, 2, "another link graph than rank 0");
}

// Rank 0 tells the trees.
TEST_F(Exchange, TreesThatDoNotFitAreRefused) {
  const ToldTopology fast = made(4, 100'000), slow = made(1, 100'000);
  const auto honest = run({0, 1, 2}, {fast, slow, fast});
  ASSERT_NE(honest[1].links.forests, nullptr);
  const uint64_t graph = honest[1].links.forests->graph().hash();
  const auto number = [](uint64_t value, int bytes) {
    std::string text;
    for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i));
    return text;
  };
  graph::Forest star;  // each rank sends straight to the others
  star.rank_count = 3;
  star.trees_per_root = 1;
  for (Rank root = 0; root < 3; ++root) {
    graph::Tree tree{.root = root, .first = 0, .count = 1, .links = {}};
    for (Rank to = 0; to < 3; ++to) {
      if (to != root) tree.links.push_back({root, to, 1});
    }
    star.trees.push_back(tree);
  }
  const std::string good = graph::pack(star).value();
  std::string loop = good;
  loop[40 + 12 + 2] = 0;  // rank 0 receives from itself
  const std::string rings = graph::pack(graph::rings_of({{2, 0, 1}})).value();
  std::string twice = rings;
  twice[8] = 0;
  const std::string larger = graph::pack(graph::rings_of({{0, 1, 2, 3}})).value();
  struct Case {
    uint64_t of_graph;
    std::string forest, rings, words;
  };
  for (const Case& it : {Case{graph, good, "", ""}, Case{graph, good, rings, ""},
                         Case{graph, loop, "", "does not continue the tree"},
                         Case{graph + 1, good, "", "links that are not there"},
                         Case{graph, good.substr(1), "", "trees that are none"},
                         Case{graph, good, twice, "passes rank 0 twice"},
                         Case{graph, good, larger, "rings of other ranks"},
                         Case{graph, good, rings.substr(1), "rings that are none"}}) {
    SCOPED_TRACE(it.words);
    const auto answers = run({0, 1, 2}, {fast, slow, fast}, false, 0, [&](uint32_t round) {
      if (round == 0) return with_size(std::string(1, '\0') + hash_of(fast));
      if (round == 1) return with_size(std::string("\1\0", 2) + fast.text);
      return number(graph, 8) + number(1, 1) + number(0, 2) + number(1, 4) +
             number(it.of_graph, 8) + number(it.forest.size(), 4) + it.forest +
             number(it.rings.size(), 4) + it.rings;
    });
    if (it.words.empty()) {
      ASSERT_TRUE(answers[1].status.ok()) << answers[1].status.text();
      ASSERT_NE(answers[1].links.forests, nullptr);
      // What was told is used, though a search finds none that is better than the order of ranks.
      const graph::Rings* const used = answers[1].links.forests->rings();
      if (it.rings.empty()) continue;
      ASSERT_NE(used, nullptr);
      EXPECT_EQ(used->orders, (std::vector<std::vector<Rank>>{{2, 0, 1}}));
    } else {
      expect_refused(answers, 0, it.words);
    }
  }
}

TEST_F(Exchange, ASearchIsKeptAndFoundAgain) {
  const ToldTopology fast = made(4, 100'000), slow = made(2, 40'000);
  const auto first = run({0, 1, 2, 2}, {fast, fast, slow});
  ASSERT_NE(first[0].links.forests, nullptr) << first[0].links.reason;
  const uint64_t hash = first[0].links.forests->graph().hash();
  const auto kept = graph::read_search(settings_.cache_dir, hash);
  ASSERT_TRUE(kept.ok()) << kept.status().text();
  ASSERT_TRUE(kept.value().has_value());
  EXPECT_EQ(kept.value()->graph.hash(), hash);
  EXPECT_FALSE(kept.value()->forests.empty());
  // Trees for all_reduce and rings, too: no rank searches them again.
  ASSERT_TRUE(kept.value()->rings.has_value());
  for (const auto& rank : first) {
    const graph::Searches& told = rank.links.forests->searches();
    ASSERT_NE(told.find_rings(hash), nullptr);
    EXPECT_EQ(*told.find_rings(hash), *kept.value()->rings);
    ASSERT_NE(told.find_for_all_reduce(hash), nullptr);
    EXPECT_TRUE(told.find_for_all_reduce(hash)->for_all_reduce);
  }
}

}  // namespace
}  // namespace weir::comm
