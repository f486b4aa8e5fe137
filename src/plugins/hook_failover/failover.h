// SPDX-License-Identifier: Apache-2.0
// Makes a transport of several. Called under the registry's lock.
#pragma once

#include <string>
#include <vector>

#include "weir/plugin.h"

namespace weir::plugins::hook_failover {

inline constexpr size_t kTransportsMax = 4;

// The first of them carries all messages until it fails, and so on. The table lives for ever; the same
// list gives the same one. Null with the reason.
const weir_transport_functions_t* wrap(
    const std::vector<const weir_transport_functions_t*>& transports, std::string* reason);

}  // namespace weir::plugins::hook_failover
