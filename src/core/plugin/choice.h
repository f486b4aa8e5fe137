// SPDX-License-Identifier: Apache-2.0
// Chooses the transport of a communicator from WEIR_TRANSPORT, WEIR_FAILOVER, WEIR_HOOKS and
// WEIR_TLS, from the transports that are viable here, and from whether ranks share hosts. Every
// rank decides alike. Thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "core/base/settings.h"
#include "core/base/status.h"
#include "core/base/types.h"
#include "weir/plugin.h"

namespace weir::plugin {

// The ranks of such a transport must be able to map each other's memory.
bool needs_one_host(const weir_transport_functions_t& transport);

// It, or a part of it, uses the cards of a configuration's hints: ucx or ofi.
bool uses_cards(const weir_transport_functions_t& transport);

enum class Spread : uint8_t {
  kOneHost,
  kOneRankPerHost,
  kHosts,  // of which one or more have several ranks
};

// The best of the transports that WEIR_TRANSPORT names, or of all, with its hooks, failover and
// local transport. kUnsupported, with the reason for each transport that is not taken.
Result<const weir_transport_functions_t*> choose_transport(const Settings& settings,
                                                           const weir_host_t& host, Rank rank_count,
                                                           Spread spread);

// `name` between hosts, with tcp to take over from it, as WEIR_TRANSPORT=shm,NAME and
// WEIR_FAILOVER=tcp would choose; `spread` is not kOneHost. The error says why `name` or tcp
// cannot be used.
Result<const weir_transport_functions_t*> choose_before_tcp(const Settings& settings,
                                                            const weir_host_t& host,
                                                            Rank rank_count, Spread spread,
                                                            const std::string& name);

}  // namespace weir::plugin
