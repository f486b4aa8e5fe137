// SPDX-License-Identifier: Apache-2.0
// 10,240 ranks on 1,280 nodes, within 1 GB for each algorithm; sanitizers are let off the memory.
// Algorithms whose work grows with the square of the ranks take 1,280 ranks, unless
// WEIR_SIMULATE_ALL is defined.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "sim/sim_support.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define WEIR_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define WEIR_SANITIZED 1
#endif
#endif

namespace weir::sim {
namespace {

#if defined(WEIR_SANITIZED)
constexpr Rank kNodes = 32;
constexpr Rank kNodesOfQuadraticWork = 32;
#elif defined(WEIR_SIMULATE_ALL)
constexpr Rank kNodes = 1280;
constexpr Rank kNodesOfQuadraticWork = 1280;
#else
constexpr Rank kNodes = 1280;
constexpr Rank kNodesOfQuadraticWork = 160;
#endif
constexpr Rank kRanksPerNode = 8;
constexpr long kResidentKibMax = 1'000'000;

Report run_large(Collective collective, const char* name, Rank node_count = kNodes) {
  const Rank n = node_count * kRanksPerNode;
  const std::vector<uint32_t> nodes = even_nodes(n, kRanksPerNode);
  algo::Problem p = problem(collective, n);
  p.mapped = p.inputs_mapped = p.outputs_mapped = false;
  p.node_of_rank = nodes;
  const Report report = run(algorithm(collective, name), p, uint64_t{64} << 20, Options{});
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  EXPECT_TRUE(report.complete);
#if !defined(WEIR_SANITIZED)
  EXPECT_LT(usage.ru_maxrss, kResidentKibMax);
#endif
  return report;
}

TEST(TenThousandRanks, RecursiveHalvingDoublingAllReduce) {
  run_large(Collective::kAllReduce, "recursive_halving_doubling");
}
TEST(TenThousandRanks, DoubleBinaryTreeAllReduce) {
  run_large(Collective::kAllReduce, "double_binary_tree");
}
TEST(TenThousandRanks, BinomialBroadcast) { run_large(Collective::kBroadcast, "binomial"); }
TEST(TenThousandRanks, DisseminationBarrier) { run_large(Collective::kBarrier, "dissemination"); }
TEST(TenThousandRanks, HierarchicalAllReduce) { run_large(Collective::kAllReduce, "hierarchical"); }

TEST(QuadraticWork, BruckAllToAll) {
  run_large(Collective::kAllToAll, "bruck", kNodesOfQuadraticWork);
}
TEST(QuadraticWork, PairwiseAllToAll) {
  run_large(Collective::kAllToAll, "pairwise", kNodesOfQuadraticWork);
}
TEST(QuadraticWork, RingAllReduce) {
  const Report report = run_large(Collective::kAllReduce, "ring", kNodesOfQuadraticWork);
  const uint64_t n = uint64_t{kNodesOfQuadraticWork} * kRanksPerNode;
  EXPECT_EQ(report.messages, 2 * n * (n - 1));
}

}  // namespace
}  // namespace weir::sim
