// SPDX-License-Identifier: Apache-2.0
// Documents in MSCCL's XML, written as its exporters write them: the same elements and attributes,
// fused steps, dependences with nop, buffers in place and apart. Pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "core/base/types.h"

namespace weir::algo {

// One block per gpu and channel: s, rrs …, rrcs, rcs …, r.
std::string msccl_ring_all_reduce(Rank n, uint32_t channels, bool in_place);
// One block per peer; blocks wait for each other. Every gpu folds its own chunk in its own order.
std::string msccl_pairs_all_reduce(Rank n);
// Ranks exchange everything with one peer after the other; n is a power of two.
std::string msccl_doubling_all_reduce(Rank n);
// A ring of separate blocks that send and receive, as of a synthesizer; in place with <copy>.
std::string msccl_ring_all_gather(Rank n, bool in_place);
std::string msccl_ring_reduce_scatter(Rank n, bool in_place);
// `chunks` per block.
std::string msccl_pairs_all_to_all(Rank n, uint32_t chunks, bool in_place);
// Each block sends all its chunks, a message each, before it receives the first: a connection holds
// as many messages.
std::string msccl_eager_all_to_all(Rank n, uint32_t chunks);

}  // namespace weir::algo
