// SPDX-License-Identifier: Apache-2.0
// The algorithms by name, grouped by the file that defines them. Constants, initialized at compile
// time.
#pragma once

#include "core/algo/algorithm.h"

namespace weir::algo {

// direct.cc
extern const Algorithm kDirectAllReduce;
extern const Algorithm kDirectReduceScatter;
extern const Algorithm kDirectAllGather;
extern const Algorithm kDirectAllToAll;
extern const Algorithm kDirectBroadcast;
extern const Algorithm kDirectReduce;
extern const Algorithm kDirectGather;
extern const Algorithm kDirectScatter;
extern const Algorithm kDirectBarrier;

// direct_two_phase.cc
extern const Algorithm kDirectTwoPhaseAllReduce;
extern const Algorithm kDirectTwoPhaseReduce;

// grouped_reductions.cc
extern const Algorithm kByCacheAllReduce;
extern const Algorithm kByNumaAllReduce;
extern const Algorithm kByCacheReduce;
extern const Algorithm kByNumaReduce;
extern const Algorithm kByCacheReduceScatter;
extern const Algorithm kByNumaReduceScatter;

// grouped_copies.cc
extern const Algorithm kByCacheAllGather;
extern const Algorithm kByNumaAllGather;
extern const Algorithm kByCacheBroadcast;
extern const Algorithm kByNumaBroadcast;

// window.cc
extern const Algorithm kWindowAllReduce;
extern const Algorithm kWindowReduceScatter;
extern const Algorithm kWindowReduce;
extern const Algorithm kWindowAllGather;
extern const Algorithm kWindowAllToAll;
extern const Algorithm kWindowBroadcast;
extern const Algorithm kWindowGather;
extern const Algorithm kWindowScatter;

// ring.cc
extern const Algorithm kRingAllReduce;
extern const Algorithm kRingReduceScatter;
extern const Algorithm kRingAllGather;

// rings.cc
extern const Algorithm kRingsAllReduce;
extern const Algorithm kRingsReduceScatter;
extern const Algorithm kRingsAllGather;

// chain.cc
extern const Algorithm kChainBroadcast;
extern const Algorithm kChainReduce;

// recursive_doubling.cc
extern const Algorithm kRecursiveDoublingAllReduce;
extern const Algorithm kRecursiveDoublingAllGather;

// recursive_halving.cc
extern const Algorithm kRecursiveHalvingDoublingAllReduce;
extern const Algorithm kRecursiveHalvingReduceScatter;

// binomial.cc
extern const Algorithm kBinomialBroadcast;
extern const Algorithm kBinomialReduce;
extern const Algorithm kBinomialGather;
extern const Algorithm kBinomialScatter;

// double_tree.cc
extern const Algorithm kDoubleTreeAllReduce;
extern const Algorithm kDoubleTreeBroadcast;
extern const Algorithm kDoubleTreeReduce;

// bruck.cc
extern const Algorithm kBruckAllGather;
extern const Algorithm kBruckAllToAll;

// pairwise.cc
extern const Algorithm kPairwiseAllToAll;
extern const Algorithm kPairwiseReduceScatter;
extern const Algorithm kOrderedAllReduce;
extern const Algorithm kOrderedReduce;

// linear.cc
extern const Algorithm kLinearAllToAll;
extern const Algorithm kLinearBroadcast;
extern const Algorithm kLinearGather;
extern const Algorithm kLinearScatter;

// dissemination.cc
extern const Algorithm kDisseminationBarrier;

// forest.cc
extern const Algorithm kForestAllReduce;
extern const Algorithm kForestReduceScatter;
extern const Algorithm kForestAllGather;
extern const Algorithm kForestBroadcast;
extern const Algorithm kForestReduce;

// hierarchical_all_reduce.cc
extern const Algorithm kHierarchicalAllReduce;

// hierarchical_reduce_scatter.cc
extern const Algorithm kHierarchicalReduceScatter;

// hierarchical_all_gather.cc
extern const Algorithm kHierarchicalAllGather;

// hierarchical_broadcast.cc
extern const Algorithm kHierarchicalBroadcast;

// hierarchical_gather.cc
extern const Algorithm kHierarchicalGather;
extern const Algorithm kHierarchicalScatter;

// hierarchical_all_to_all.cc
extern const Algorithm kHierarchicalAllToAll;

}  // namespace weir::algo
