// SPDX-License-Identifier: Apache-2.0
#include "core/engine/context.h"

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

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

// Peers may use the memory meanwhile. Where the kernel has no huge page to give, small ones serve.
void Context::ask_for_huge_pages() {
  lacks_huge_pages = false;
  constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;
  constexpr uint64_t kBytesMax = uint64_t{64} << 20;  // more stays lazy
  if (segment_stride_bytes % kHugePageBytes != 0 || segment_stride_bytes > kBytesMax) return;
  unsigned char* const own = segment_base + rank * segment_stride_bytes;
  const uint64_t used_bytes = kStagingOffset + staging_bytes;
  // A page of which less than half is used would cost more than it saves.
  for (uint64_t at = 0; at + kHugePageBytes / 2 <= used_bytes; at += kHugePageBytes) {
    // The kernel completes a huge page of which a part exists, but makes none from nothing.
    (void)*static_cast<volatile unsigned char*>(own + at);
    (void)madvise(own + at, kHugePageBytes, MADV_COLLAPSE);
  }
}

void Context::wake_all() {
  auto& wakeup = control(rank).wakeup;
  wakeup.sleepers.store(0, std::memory_order_relaxed);
  wakeup.wake.fetch_add(1, std::memory_order_release);
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&wakeup.wake), FUTEX_WAKE, INT_MAX, nullptr,
          nullptr, 0);
}

}  // namespace weir::engine
