// SPDX-License-Identifier: Apache-2.0
// What only hosts of later versions offer: news of the other ranks for the caller of `connect`
// (weir_host_t::look, in the thread of the call), and the control network.
#pragma once

#include <stddef.h>

#include "weir/plugin.h"

namespace weir::plugins::common {

// The longest time for which a death may go unnoticed.
inline constexpr uint64_t kLookNs = 20'000'000;

// WEIR_OK, or the error because of which waiting for the peers is useless; the host has kept the
// reason.
inline weir_result_t look(const weir_host_t* host) {
  constexpr size_t kEnd = offsetof(weir_host_t, look) + sizeof(host->look);
  if (host == nullptr || host->struct_bytes < kEnd || host->look == nullptr) return WEIR_OK;
  return host->look(host->context);
}

// The host's control network; null: it offers none.
inline const weir_control_t* control_of(const weir_host_t* host) {
  constexpr size_t kEnd = offsetof(weir_host_t, control) + sizeof(void*);
  return host == nullptr || host->struct_bytes < kEnd ? nullptr : host->control;
}

}  // namespace weir::plugins::common
