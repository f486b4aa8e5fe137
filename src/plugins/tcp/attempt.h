// SPDX-License-Identifier: Apache-2.0
// Attempt: a connection that this rank makes, until it is proven or has ended: the guest's end. A value
// that names its connection and does not own it, as Stream. One thread at a time.
#pragma once

#include <poll.h>

#include <cstdint>
#include <optional>

#include "plugins/tcp/exchange.h"
#include "plugins/tcp/handshake.h"
#include "plugins/tcp/stream.h"
#include "plugins/tcp/ways.h"

namespace weir::plugins::tcp {

struct Attempt {
  Stream stream;
  Handshake handshake;
  bool connecting = true;

  // What to poll for.
  short events() const {
    return connecting ? static_cast<short>(POLLOUT) : stream.events(handshake.out_bytes() > 0);
  }
  // As `exchange`, once there is something to be polled.
  Step move(int* error_number);
};

// Begins to connect, for the handshake of `lane` with `peer`. Nothing: `*error_number` tells why.
std::optional<Attempt> begin_attempt(const Identity& identity, const Way& way, uint32_t peer,
                                     uint32_t lane, int* error_number);

}  // namespace weir::plugins::tcp
