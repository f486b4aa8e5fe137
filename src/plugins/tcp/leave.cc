// SPDX-License-Identifier: Apache-2.0
// How one peer is given up while the others stay.
#include <algorithm>

#include "plugins/tcp/instance.h"

namespace weir::plugins::tcp {

// Buffers are written only within calls, and read by the kernel only where a send shares them with
// it.
weir_result_t peer_leave(weir_transport_t* instance, uint32_t peer) {
  Instance* self = from(instance);
  if (!self->joined || peer >= self->rank_count || peer == self->rank) {
    return self->report.fail(self->joined ? WEIR_ERROR_INVALID_ARGUMENT : WEIR_ERROR_INVALID_USAGE,
                             "tcp: peer_leave of rank " + text_of(peer) + " of " +
                                 text_of(self->rank_count) + " by rank " + text_of(self->rank));
  }
  Peer* it = self->use(peer);
  if (it == nullptr) return WEIR_ERROR_NO_MEMORY;
  if (Bundle* bundle = it->bundle.get(); bundle != nullptr) {
    bundle->leave();
    bundle->active = false;
    std::erase(self->active_bundles, peer);
    return WEIR_OK;
  }
  bool is_free = true;
  for (uint32_t lane = 0; lane < kLaneCount; ++lane) {
    is_free = it->lanes[lane].leave() && is_free;
  }
  if (is_free) return WEIR_OK;
  return self->report.fail(
      WEIR_ERROR_SYSTEM,
      "tcp: a network interface still uses the buffer of a send to rank " + text_of(peer));
}

}  // namespace weir::plugins::tcp
