// SPDX-License-Identifier: Apache-2.0
// Chain: transports in the order in which they take over from each other. A constant value.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "weir/plugin.h"

namespace weir::plugins::hook_failover {

struct Chain {
  std::vector<weir_transport_part_t> parts;  // two at least, and the end as in a table
  std::string name;                          // "failover(ucx,tcp)"
  weir_transport_caps_t caps = {};

  size_t size() const { return parts.size() - 1; }
};

// The setting for the longest standstill, in milliseconds.
inline constexpr char kStillSetting[] = "WEIR_FAILOVER_MS";
inline constexpr uint64_t kStillDefaultMs = 2000;
inline constexpr uint64_t kStillMinMs = 100;
inline constexpr uint64_t kStillMaxMs = 600'000;

}  // namespace weir::plugins::hook_failover
