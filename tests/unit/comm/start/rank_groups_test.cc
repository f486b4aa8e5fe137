// SPDX-License-Identifier: Apache-2.0
// Which ranks share caches, NUMA nodes and packages, from what each has told.
#include "core/comm/start/rank_groups.h"

#include <gtest/gtest.h>

namespace weir::comm {
namespace {

using Numbers = std::vector<uint32_t>;
constexpr uint32_t kSeveral = topo::CpuPlace::kSeveral;

Introduction rank_at(const char* host, topo::CpuPlace place) {
  Introduction it;
  it.host = host;
  it.cpu_place = place;
  return it;
}

TEST(RankGroups, AreNoneWhereAllRanksOfAHostAreTogether) {
  for (const topo::CpuPlace place : {topo::CpuPlace(), topo::CpuPlace{0, 0, 0}}) {
    const RankGroups groups =
        rank_groups({rank_at("a", place), rank_at("b", place), rank_at("a", place)});
    EXPECT_EQ(groups, (RankGroups{{}, {}, {}, 2}));
  }
}

TEST(RankGroups, AreNumberedInOrderOfAppearance) {
  const RankGroups groups =
      rank_groups({rank_at("a", {8, 1, 8}), rank_at("a", {0, 0, 0}), rank_at("a", {12, 1, 8}),
                   rank_at("a", {4, 0, 0}), rank_at("a", {8, 1, 8})});
  EXPECT_EQ(groups.cache_of_rank, (Numbers{0, 1, 2, 3, 0}));
  EXPECT_EQ(groups.numa_of_rank, (Numbers{0, 1, 0, 1, 0}));
  EXPECT_EQ(groups.package_of_rank, (Numbers{0, 1, 0, 1, 0}));
  EXPECT_EQ(groups.ranks_per_cache, 2u);
}

TEST(RankGroups, ARankOnSeveralPartsSharesNone) {
  const RankGroups groups =
      rank_groups({rank_at("a", {0, 0, 0}), rank_at("a", {kSeveral, kSeveral, 0}),
                   rank_at("a", {0, 0, 0}), rank_at("a", {kSeveral, kSeveral, 0})});
  EXPECT_EQ(groups.cache_of_rank, (Numbers{0, 1, 0, 2}));
  EXPECT_EQ(groups.numa_of_rank, (Numbers{0, 1, 0, 2}));
  EXPECT_TRUE(groups.package_of_rank.empty());
  EXPECT_EQ(groups.ranks_per_cache, 4u) << "ranks that may move share with all";
}

TEST(RankGroups, OfDifferentHostsAndPackagesAreNeverTogether) {
  // The caches of the last two have one number, but the ranks say that their packages differ.
  const RankGroups groups = rank_groups({rank_at("a", {0, 0, 0}), rank_at("b", {0, 0, 0}),
                                         rank_at("b", {4, 0, 0}), rank_at("b", {4, 0, 8})});
  EXPECT_EQ(groups.cache_of_rank, (Numbers{0, 1, 2, 3}));
  EXPECT_TRUE(groups.numa_of_rank.empty());
  EXPECT_EQ(groups.package_of_rank, (Numbers{0, 1, 1, 2}));
}

TEST(RankGroups, OnePairOfEachKindOfLinkIsMeasured) {
  const auto text = [](const std::vector<Introduction>& all) {
    std::string pairs;
    for (const Pair& pair : pairs_by_link(rank_groups(all), static_cast<Rank>(all.size()))) {
      pairs += std::to_string(pair.first) + "-" + std::to_string(pair.second) + " " +
               cost::name_of(pair.link) + " ";
    }
    return pairs;
  };
  const auto place = [](uint32_t cache, uint32_t package) {
    return rank_at("a", {cache, package, package});
  };
  EXPECT_EQ(text({place(0, 0)}), "");
  EXPECT_EQ(text({place(0, 0), place(0, 0), place(0, 0)}), "0-1 shm_shared_cache ");
  EXPECT_EQ(text({place(0, 0), place(8, 1), place(0, 0)}),
            "0-1 shm_cross_socket 0-2 shm_shared_cache ");
  EXPECT_EQ(text({place(0, 0), place(8, 1), place(4, 0), place(4, 0)}),
            "0-1 shm_cross_socket 0-2 shm_same_socket 2-3 shm_shared_cache ");
  EXPECT_EQ(text({place(kSeveral, kSeveral), place(kSeveral, kSeveral)}), "0-1 shm_cross_socket ");
}

TEST(RankGroups, AFileThatCannotBeReadChangesNothing) {
  Introduction self = rank_at("a", {0, 0, 0});
  self.cpus = {0};
  place_by_file("/nonexistent.xml", &self);
  EXPECT_EQ(self.cpu_place, (topo::CpuPlace{0, 0, 0}));
  self.cpus = {25};
  place_by_file(std::string(WEIR_TEST_FIXTURES) + "/topologies/dgx2.hwloc.xml", &self);
  EXPECT_EQ(self.cpu_place, (topo::CpuPlace{24, 1, 1}));
  EXPECT_EQ(self.package_link_mbs, 40'000u);
  EXPECT_DOUBLE_EQ(memory_links({self}).package_ns_per_byte, 1 / 40.0);
  // One of NCCL's format says nothing of caches.
  self.cpus = {0};
  self.cpu_place.cache = 7;
  place_by_file(std::string(WEIR_TEST_FIXTURES) + "/topologies/rccl-8p-rome-n4.nccl.xml", &self);
  EXPECT_EQ(self.cpu_place.cache, 7u);
}

}  // namespace
}  // namespace weir::comm
