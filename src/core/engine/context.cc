// SPDX-License-Identifier: Apache-2.0
#include "core/engine/context.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

namespace weir::engine {

void Context::refresh_done() {
  if (!mapped()) {
    all_done = position;
    return;
  }
  uint64_t least = UINT64_MAX;
  for (Rank p = 0; p < rank_count; ++p) {
    if (p == rank) continue;
    // A value learned through data dependencies can be ahead of the value that the peer has
    // published.
    const uint64_t published = control(p).done.position.load(std::memory_order_acquire);
    peers[p].done = std::max(peers[p].done, published);
    least = std::min(least, peers[p].done);
  }
  all_done = std::max(all_done, least);
}

void Context::wake_all() {
  auto& wakeup = control(rank).wakeup;
  wakeup.sleepers.store(0, std::memory_order_relaxed);
  wakeup.wake.fetch_add(1, std::memory_order_release);
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&wakeup.wake), FUTEX_WAKE, INT_MAX, nullptr,
          nullptr, 0);
}

}  // namespace weir::engine
