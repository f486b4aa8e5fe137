// SPDX-License-Identifier: Apache-2.0
// What the caller of `connect` hears of the other ranks meanwhile (weir_host_t::look). In the
// thread of the call.
#pragma once

#include <stddef.h>

#include "weir/plugin.h"

namespace weir::plugins::common {

// How long a death may stay unnoticed.
inline constexpr uint64_t kLookNs = 20'000'000;

// WEIR_OK, or why it is in vain to wait for the peers; the host has kept the reason.
inline weir_result_t look(const weir_host_t* host) {
  constexpr size_t kEnd = offsetof(weir_host_t, look) + sizeof(host->look);
  if (host == nullptr || host->struct_bytes < kEnd || host->look == nullptr) return WEIR_OK;
  return host->look(host->context);
}

}  // namespace weir::plugins::common
