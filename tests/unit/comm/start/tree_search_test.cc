// SPDX-License-Identifier: Apache-2.0
// When trees are offered for the links of machines, and what becomes of the search.
#include "core/comm/start/tree_search.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>

#include "core/base/clock.h"
#include "core/graph/host_networks.h"
#include "core/graph/kept_searches.h"
#include "unit/graph/graph_support.h"

namespace weir::comm {
namespace {

using graph::KilobytesPerSecond;
using graph::LinkGraph;

std::vector<Rank> all_of(const LinkGraph& graph) {
  std::vector<Rank> all(graph.rank_count());
  std::iota(all.begin(), all.end(), 0u);
  return all;
}

class TreeSearchFolder : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = testing::TempDir() + "weir-trees-XXXXXX";
    ASSERT_NE(mkdtemp(directory_.data()), nullptr);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string file_of(const LinkGraph& graph) const {
    return directory_ + "/" + graph::kept_search_name(graph.hash());
  }

  std::string directory_;
};

// Different machines, different plans: each with its reason.
TEST(TreeSearch, IsOfferedByWhatAMachineHas) {
  struct Row {
    const char* file;
    uint32_t hosts;
    size_t gpus;  // of each host, in the order of their numbers
    bool offered;
    const char* reason;  // why
  };
  const std::vector<Row> rows = {
      // Twelve NVLinks of each GPU reach all others alike through NVSwitches.
      {"dgx2.hwloc.xml", 1, 0, false, "(ring)"},
      {"made-nvswitch-8-cards.nccl.xml", 1, 0, false, "(ring)"},
      // Seven links, one to each other GPU. An all_gather goes straight, but an all_reduce uses one
      // link after the other where trees use all.
      {"made-8-fully-linked.nccl.xml", 1, 0, true, "an all_reduce along trees takes 0.25"},
      // xGMI joins some GPUs, PCIe the others.
      {"rccl-8p-rome-n4.nccl.xml", 1, 0, true, "takes 0."},
      // Four GPUs whose NVLinks are in pairs that the file does not name: PCIe joins them.
      {"azure-ncv4-topo.nccl.xml", 1, 0, false, "(ring)"},
      // A card near each GPU: the usual way, host by host, uses all of them in turns with NVLink.
      {"made-nvswitch-8-cards.nccl.xml", 2, 0, true, "an all_reduce along trees takes 0."},
      {"made-nvswitch-1-card.nccl.xml", 2, 0, false, ""},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(std::string(row.file) + " x " + std::to_string(row.hosts));
    auto made = graph::graph_of_gpus(row.file, row.hosts, row.gpus);
    ASSERT_TRUE(made.ok()) << made.status().text();
    const TreeSearch found = search_trees(made.value(), "");
    EXPECT_EQ(found.offered, row.offered) << found.reason;
    EXPECT_NE(found.reason.find(row.reason), std::string::npos) << found.reason;
  }
}

TEST(TreeSearch, IsOfferedWhereTheNetworkOfAHostIsSlow) {
  auto made = graph::graph_of_gpus("made-nvswitch-8-cards.nccl.xml", 3, 2);
  ASSERT_TRUE(made.ok()) << made.status().text();
  EXPECT_FALSE(search_trees(made.value(), "").offered);
  auto networks = graph::network_of_hosts(made.value());
  networks[1] /= 8;
  const TreeSearch found = search_trees(graph::with_network_of_hosts(made.value(), networks), "");
  EXPECT_TRUE(found.offered);
  EXPECT_NE(found.reason.find("differ by a factor of 8"), std::string::npos) << found.reason;
}

// Between hosts with different numbers of ranks no usual way goes host by host.
TEST(TreeSearch, IsOfferedToHostsWithDifferentNumbersOfRanks) {
  const std::vector<topo::Topology> kinds = {graph::recorded("made-nvswitch-8-cards.nccl.xml")};
  const std::vector<topo::NodeId> gpus = kinds[0].all(topo::NodeKind::kGpu);
  const auto offered = [&](const std::vector<size_t>& counts) {
    std::vector<graph::RankPlace> places;
    for (uint32_t host = 0; host < counts.size(); ++host) {
      for (size_t i = 0; i < counts[host]; ++i) places.push_back({host, gpus[i], {}});
    }
    const std::vector<uint32_t> kind_of_host(counts.size(), 0);
    const auto made = graph::machine_graph({kinds, kind_of_host, places});
    EXPECT_TRUE(made.ok()) << made.status().text();
    return search_trees(made.value(), "").offered;
  };
  EXPECT_TRUE(offered({8, 8, 4}));
  EXPECT_TRUE(offered({8, 7, 3, 2}));
  EXPECT_FALSE(offered({8, 8, 8})) << "host by host";
}

// Bounded by steps, whatever the machine; the times are for people.
TEST(TreeSearch, TakesFewStepsAlsoForManyHosts) {
  const std::vector<std::string> files = {
      "made-nvswitch-8-cards.nccl.xml", "made-nvswitch-1-card.nccl.xml",
      "made-8-fully-linked.nccl.xml", "rccl-8p-rome-n4.nccl.xml"};
  std::vector<topo::Topology> kinds;
  for (const std::string& file : files) kinds.push_back(graph::recorded(file));
  std::vector<uint32_t> kind_of_host;
  std::vector<graph::RankPlace> places;
  for (uint32_t host = 0; host < 128; ++host) {
    kind_of_host.push_back(host % 4);
    for (const topo::NodeId gpu : kinds[host % 4].all(topo::NodeKind::kGpu)) {
      places.push_back({host, gpu, {}});
    }
  }
  std::vector<std::pair<std::string, LinkGraph>> graphs;
  graphs.emplace_back("128 hosts of 4 kinds",
                      graph::machine_graph({kinds, kind_of_host, places}).value());
  places.pop_back();
  graphs.emplace_back("the same, and one rank less",
                      graph::machine_graph({kinds, kind_of_host, places}).value());
  graphs.emplace_back("128 hosts of a kind, the last with one rank less",
                      graph::graph_of_gpus("made-nvswitch-8-cards.nccl.xml", 128, 0, 1).value());
  graphs.emplace_back("a DGX-2", graph::graph_of_gpus("dgx2.hwloc.xml", 1).value());
  graphs.emplace_back("2 x 8 GPUs",
                      graph::graph_of_gpus("made-nvswitch-8-cards.nccl.xml", 2).value());
  LinkGraph uneven(16);
  std::mt19937 random(1);
  for (Rank rank = 0; rank < 16; ++rank) uneven.set_rank(rank, 0, std::to_string(rank));
  for (Rank a = 0; a < 16; ++a) {
    uneven.add_links(a, (a + 1) % 16, 25'000'000, 500);
    for (Rank b = a + 2; b < 16; ++b) {
      if (random() % 3 == 0) uneven.add_links(a, b, 25'000'000 * (1 + random() % 3), 500);
    }
  }
  ASSERT_TRUE(uneven.finish().ok());
  graphs.emplace_back("16 GPUs with uneven links", std::move(uneven));
  for (const auto& [name, graph] : graphs) {
    const uint64_t begin = now_ns();
    const TreeSearch found = search_trees(graph, "");
    const uint64_t end = now_ns();
    uint64_t steps = 0;
    for (const auto& [key, forest] : found.searches.all()) steps += forest.steps;
    std::printf("%s: %.1f ms, %llu steps, %zu searches, %s\n", name.c_str(),
                static_cast<double>(end - begin) / 1e6, static_cast<unsigned long long>(steps),
                found.searches.all().size(), found.reason.c_str());
    EXPECT_LE(steps, 8 * graph::ForestOptions().steps_max) << name;
  }
}

TEST_F(TreeSearchFolder, IsKeptWithItsGraph) {
  const LinkGraph graph = graph::star({400'000, 400'000, 400'000, 50'000});
  const TreeSearch found = search_trees(graph, directory_);
  ASSERT_TRUE(found.offered) << found.reason;
  const auto kept = graph::read_search(directory_, graph.hash());
  ASSERT_TRUE(kept.ok()) << kept.status().text();
  ASSERT_TRUE(kept.value().has_value());
  EXPECT_EQ(kept.value()->graph.text(), graph.text());
  ASSERT_EQ(kept.value()->forests.size(), found.searches.all().size());
  for (const graph::Forest& forest : kept.value()->forests) {
    const graph::Forest* const own = forest.for_all_reduce
                                         ? found.searches.find_for_all_reduce(graph.hash())
                                         : found.searches.find(graph.hash(), roots_of(forest));
    ASSERT_NE(own, nullptr);
    EXPECT_EQ(forest.trees, own->trees);
    EXPECT_EQ(forest.steps, own->steps);
  }
  EXPECT_NE(found.searches.find_for_all_reduce(graph.hash()), nullptr);
  ASSERT_TRUE(kept.value()->rings.has_value());
  EXPECT_TRUE(kept.value()->rings->orders.empty()) << "none is worth it, which is kept";
}

TEST_F(TreeSearchFolder, HasRingsThatAreTakenAsTheyAre) {
  const LinkGraph graph = graph::star({900'000, 900'000, 900'000, 90'000});
  const graph::Rings mine = graph::rings_of({{0, 2, 1, 3}, {3, 2, 1, 0}});
  ASSERT_TRUE(graph::store_search(directory_, {graph, {}, mine}).ok());
  const TreeSearch found = search_trees(graph, directory_);
  ASSERT_TRUE(found.offered) << found.reason;
  ASSERT_NE(found.searches.find_rings(graph.hash()), nullptr);
  EXPECT_EQ(*found.searches.find_rings(graph.hash()), mine);
}

// A larger search, made elsewhere, is taken as it is; it is not in this process yet.
TEST_F(TreeSearchFolder, ThatWasMadeElsewhereIsFound) {
  const LinkGraph graph = graph::star({500'000, 500'000, 500'000, 60'000});
  graph::Forest mine;  // other trees than a search finds: chains
  mine.rank_count = 4;
  mine.trees_per_root = 1;
  for (Rank root = 0; root < 4; ++root) {
    graph::Tree tree{.root = root, .first = 0, .count = 1, .links = {}};
    for (uint32_t i = 0; i < 3; ++i)
      tree.links.push_back({(root + i) % 4, (root + i + 1) % 4, i + 1});
    mine.trees.push_back(tree);
  }
  ASSERT_TRUE(graph::store_search(directory_, {graph, {mine}}).ok());
  const TreeSearch found = search_trees(graph, directory_);
  ASSERT_TRUE(found.offered) << found.reason;
  const graph::Forest* const used = found.searches.find(graph.hash(), all_of(graph));
  ASSERT_NE(used, nullptr);
  EXPECT_EQ(used->trees, mine.trees);
}

TEST_F(TreeSearchFolder, ThatIsCorruptIsRefusedAndMadeAgain) {
  const LinkGraph graph = graph::star({600'000, 600'000, 600'000, 70'000});
  const graph::Forest good = *search_trees(graph, "").searches.find(graph.hash(), all_of(graph));
  const LinkGraph other = graph::star({600'000, 600'000, 600'000, 80'000});
  const std::string whole =
      graph::pack(graph::SearchRecord{graph, {good}, graph::rings_of({{0, 1, 2, 3}})}).value();
  const auto write = [&](const std::string& text) {
    std::ofstream(file_of(graph), std::ios::binary) << text;
  };
  std::vector<std::pair<std::string, std::string>> cases;
  std::string flipped = whole;
  flipped[whole.size() / 2] = static_cast<char>(flipped[whole.size() / 2] ^ 4);
  cases.emplace_back(flipped, "checksum");
  cases.emplace_back(whole.substr(0, whole.size() - 1), "checksum");
  cases.emplace_back("", "no record");
  std::string newer = whole;
  newer[4] = 9;
  cases.emplace_back(newer, "version 9");
  cases.emplace_back(graph::pack(graph::SearchRecord{other, {}}).value(), "is of graph");
  for (const auto& [text, words] : cases) {
    SCOPED_TRACE(words);
    write(text);
    const auto read = graph::read_search(directory_, graph.hash());
    ASSERT_FALSE(read.ok());
    EXPECT_NE(read.status().text().find(words), std::string::npos) << read.status().text();
    EXPECT_FALSE(graph::load_search(directory_, graph.hash()).has_value());
    EXPECT_TRUE(search_trees(graph, directory_).offered);
  }
  write(whole);
  ASSERT_TRUE(graph::read_search(directory_, graph.hash()).ok());
  chmod(file_of(graph).c_str(), 0666);
  EXPECT_FALSE(graph::read_search(directory_, graph.hash()).ok()) << "others may write it";
}

// Any bytes are safe, and what is read fits its graph.
TEST_F(TreeSearchFolder, ARecordWithAnyByteChangedIsRefused) {
  const LinkGraph graph = graph::star({700'000, 700'000, 90'000});
  const graph::Forest good = *search_trees(graph, "").searches.find(graph.hash(), all_of(graph));
  const std::string whole =
      graph::pack(graph::SearchRecord{graph, {good}, graph::rings_of({{0, 2, 1}})}).value();
  ASSERT_TRUE(graph::unpack_search_record(whole).ok());
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string changed = whole;
    changed[i] = static_cast<char>(changed[i] ^ 0x10);
    EXPECT_FALSE(graph::unpack_search_record(changed).ok()) << i;
  }
  // Without the checksum of the record in between.
  const std::string rings = graph::pack(graph::rings_of({{0, 2, 1}, {1, 0, 2}})).value();
  for (size_t i = 0; i < rings.size(); ++i) {
    std::string changed = rings;
    changed[i] = static_cast<char>(changed[i] ^ 0x01);
    const auto read = graph::unpack_rings(changed);
    if (read.ok()) {
      EXPECT_EQ(graph::flaw_of(read.value().orders, read.value().rank_count), "") << i;
    }
  }
  const std::string forest = graph::pack(good).value();
  for (size_t i = 0; i < forest.size(); ++i) {
    std::string changed = forest;
    changed[i] = static_cast<char>(changed[i] ^ 0x01);
    const auto read = graph::unpack_forest(changed);
    if (read.ok()) {
      EXPECT_EQ(graph::flaw_of(read.value()), "") << i;
    }
  }
}

}  // namespace
}  // namespace weir::comm
