// SPDX-License-Identifier: Apache-2.0
// The step by which both makers of connections (meeting.h, joiner.h) move a handshake over a socket, and
// what both know of a connection that somebody made to this rank. Thread-safe.
#pragma once

#include <cstdint>

#include "net/ip_address.h"
#include "plugins/tcp/handshake.h"
#include "plugins/tcp/stream.h"

namespace weir::plugins::tcp {

enum class Step { kGoesOn, kProven, kEnded };

// Puts a new connection inside TLS where the identity asks for it. False: no memory.
bool begin_tls(const Identity& identity, net::Stream::Role role, Stream* stream);

// Sends and receives what can be without waiting. kGoesOn also in kChallenged and kClaimed. kEnded:
// by the handshake's own state, or by `*error_number`. kProven: outside TLS again, where messages are.
Step exchange(Stream* stream, Handshake* handshake, int* error_number);

// Without a proof yet.
struct Visitor {
  Stream stream;
  net::IpAddress from;
  uint64_t expiry_ns;
  Handshake handshake;
};

}  // namespace weir::plugins::tcp
