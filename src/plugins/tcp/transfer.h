// SPDX-License-Identifier: Apache-2.0
// Transfer: what one system call is to send or receive, with the memory that only the call needs. A
// value of its maker's; it is large, and not cleared when it is made.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "plugins/tcp/wire.h"

namespace weir::plugins::tcp {

struct Transfer {
  static constexpr uint32_t kMessagesMax = 8;
  static constexpr uint64_t kGatheredBytesMax = 2048;
  // After so much of a message the other direction has its turn: two ranks that send to each other
  // then receive what is still in their caches. Above the credit, which one call must be able to
  // send.
  static constexpr uint64_t kPieceBytesMax = 96 << 10;

  Transfer() { clear(); }
  void clear() {
    count = 0;
    bytes = 0;
    shared = timed = ahead = false;
  }

  void add(void* at, uint64_t length) {
    if (length == 0) return;
    length = std::min(length, kPieceBytesMax);
    pieces[count++] = {at, static_cast<size_t>(length)};
    bytes += length;
  }
  bool ends_turn() const { return bytes >= kPieceBytesMax; }

  iovec pieces[2 * kMessagesMax + 1];
  size_t count;
  uint64_t bytes;
  bool shared;  // a send from the caller's memory itself
  bool timed;   // a send whose time counts for the choice
  bool ahead;   // a receive into the room for what is read ahead
  unsigned char headers[kMessagesMax][wire::kHeaderBytes];
  unsigned char gathered[kGatheredBytesMax];
};

}  // namespace weir::plugins::tcp
