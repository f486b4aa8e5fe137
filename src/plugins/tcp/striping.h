// SPDX-License-Identifier: Apache-2.0
// Striping: how the bytes of a message are shared out among rails so that all of them end together.
// Pure functions; thread-safe.
#pragma once

#include <cstdint>

#include "plugins/tcp/wire.h"

namespace weir::plugins::tcp {

// The properties of a rail that matter for that.
struct Flow {
  double rate = 1;           // bytes per ns, above 0
  uint64_t ahead_bytes = 0;  // that leave before anything new
  uint64_t least_bytes = 0;  // fewer are not worth a fragment
};

// Sets shares[i] of `flow_count` (1 to kRailsMax) flows; their sum is `bytes`. Flows that get a
// share end at one time, no later than any flow would with all bytes; where several get one, each
// gets its least_bytes.
void share_out(const Flow* flows, uint32_t flow_count, uint64_t bytes, uint64_t* shares);

// Parts that are not measured but given (WEIR_TCP_SHARES); rails beyond `count` have 1.
inline constexpr uint32_t kShareMax = 1000;
struct Shares {
  uint32_t count = 0;  // 0: none are given
  uint32_t part[kRailsMax] = {1, 1, 1, 1, 1, 1, 1, 1};
};
// "2:1": 2 to kRailsMax numbers from 1 to kShareMax. Null or "" is none. False: it is none of these.
bool parse_shares(const char* text, Shares* shares);

}  // namespace weir::plugins::tcp
