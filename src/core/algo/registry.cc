// SPDX-License-Identifier: Apache-2.0
// The list of all algorithms, written by hand: no static constructors. Within a collective, the
// order is the order in which weir-sched lists them and has no other meaning.
#include <array>

#include "core/algo/catalog.h"

namespace weir::algo {
namespace {

constexpr std::array kAll = {
    // AllReduce
    &kDirectAllReduce,
    &kDirectTwoPhaseAllReduce,
    &kByCacheAllReduce,
    &kByNumaAllReduce,
    &kWindowAllReduce,
    &kRingAllReduce,
    &kRingsAllReduce,
    &kRecursiveDoublingAllReduce,
    &kRecursiveHalvingDoublingAllReduce,
    &kDoubleTreeAllReduce,
    &kOrderedAllReduce,
    &kHierarchicalAllReduce,
    &kForestAllReduce,
    // ReduceScatter
    &kDirectReduceScatter,
    &kByCacheReduceScatter,
    &kByNumaReduceScatter,
    &kWindowReduceScatter,
    &kRingReduceScatter,
    &kRingsReduceScatter,
    &kRecursiveHalvingReduceScatter,
    &kPairwiseReduceScatter,
    &kHierarchicalReduceScatter,
    &kForestReduceScatter,
    // AllGather
    &kDirectAllGather,
    &kByCacheAllGather,
    &kByNumaAllGather,
    &kWindowAllGather,
    &kRingAllGather,
    &kRingsAllGather,
    &kRecursiveDoublingAllGather,
    &kBruckAllGather,
    &kHierarchicalAllGather,
    &kForestAllGather,
    // AllToAll
    &kDirectAllToAll,
    &kWindowAllToAll,
    &kBruckAllToAll,
    &kPairwiseAllToAll,
    &kLinearAllToAll,
    &kHierarchicalAllToAll,
    // Broadcast
    &kDirectBroadcast,
    &kByCacheBroadcast,
    &kByNumaBroadcast,
    &kWindowBroadcast,
    &kChainBroadcast,
    &kBinomialBroadcast,
    &kDoubleTreeBroadcast,
    &kLinearBroadcast,
    &kHierarchicalBroadcast,
    &kForestBroadcast,
    // Reduce
    &kDirectReduce,
    &kDirectTwoPhaseReduce,
    &kByCacheReduce,
    &kByNumaReduce,
    &kWindowReduce,
    &kChainReduce,
    &kBinomialReduce,
    &kDoubleTreeReduce,
    &kOrderedReduce,
    &kForestReduce,
    // Gather
    &kDirectGather,
    &kWindowGather,
    &kBinomialGather,
    &kLinearGather,
    &kHierarchicalGather,
    // Scatter
    &kDirectScatter,
    &kWindowScatter,
    &kBinomialScatter,
    &kLinearScatter,
    &kHierarchicalScatter,
    // Barrier
    &kDirectBarrier,
    &kDisseminationBarrier,
};

}  // namespace

std::span<const Algorithm* const> all_algorithms() { return kAll; }

const Algorithm* find_algorithm(Collective collective, std::string_view name) {
  return find_algorithm(collective, name, kAll);
}

const Algorithm* find_algorithm(Collective collective, std::string_view name,
                                std::span<const Algorithm* const> among) {
  for (const Algorithm* algorithm : among) {
    if (algorithm->collective == collective && name == algorithm->name) return algorithm;
  }
  return nullptr;
}

}  // namespace weir::algo
