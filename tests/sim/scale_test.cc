// SPDX-License-Identifier: Apache-2.0
// 10,240 ranks on 1,280 nodes: the budget is 60 s and 1 GB for each algorithm. Time is that of this
// process's core, so that a busy machine does not decide; sanitizers are let off it.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdio>

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
#else
constexpr Rank kNodes = 1280;
#endif
constexpr Rank kRanksPerNode = 8;
constexpr double kSecondsMax = 60;
constexpr long kResidentKibMax = 1'000'000;

double core_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

Report run_large(Collective collective, const char* name) {
  const Rank n = kNodes * kRanksPerNode;
  const std::vector<uint32_t> nodes = even_nodes(n, kRanksPerNode);
  algo::Problem p = problem(collective, n);
  p.mapped = p.inputs_mapped = p.outputs_mapped = false;
  p.node_of_rank = nodes;
  const double begin = core_seconds();
  const Report report = run(algorithm(collective, name), p, uint64_t{64} << 20, Options{});
  const double seconds = core_seconds() - begin;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  std::printf("%s of %s, %u ranks: %.2f s, %.1f M events/s, %ld MiB so far, %llu messages\n", name,
              name_of(collective), n, seconds, static_cast<double>(report.events) / seconds / 1e6,
              usage.ru_maxrss / 1024, static_cast<unsigned long long>(report.messages));
  EXPECT_TRUE(report.complete);
#if !defined(WEIR_SANITIZED)
  EXPECT_LT(seconds, kSecondsMax);
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
TEST(TenThousandRanks, BruckAllToAll) { run_large(Collective::kAllToAll, "bruck"); }
TEST(TenThousandRanks, PairwiseAllToAll) { run_large(Collective::kAllToAll, "pairwise"); }

TEST(TenThousandRanks, RingAllReduce) {
  const Report report = run_large(Collective::kAllReduce, "ring");
  const uint64_t n = uint64_t{kNodes} * kRanksPerNode;
  EXPECT_EQ(report.messages, 2 * n * (n - 1));
}

}  // namespace
}  // namespace weir::sim
