// SPDX-License-Identifier: Apache-2.0
// Makes a transport of several. Thread-safe.
#pragma once

#include <string>
#include <vector>

#include "weir/plugin.h"

namespace weir::plugins::hook_failover {

inline constexpr size_t kTransportsMax = 4;

// The first transport carries all messages until it fails, then the next one, and so on. The table
// is never freed. Null, with the reason, if the transports do not fit.
const weir_transport_functions_t* make(
    const std::vector<const weir_transport_functions_t*>& transports, std::string* reason);

}  // namespace weir::plugins::hook_failover
