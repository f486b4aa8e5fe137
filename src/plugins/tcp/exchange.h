// SPDX-License-Identifier: Apache-2.0
// The step by which both ends of a new connection (attempt.h, acceptor.h) move its handshake over the
// socket. Thread-safe.
#pragma once

#include "plugins/tcp/handshake.h"
#include "plugins/tcp/stream.h"

namespace weir::plugins::tcp {

enum class Step { kGoesOn, kProven, kEnded };

// Puts a new connection inside TLS where the identity asks for it. False: no memory.
bool begin_tls(const Identity& identity, net::Stream::Role role, Stream* stream);

// Sends and receives what can be without waiting. kGoesOn also in kChallenged and kClaimed. kEnded:
// by the handshake's own state, or by `*error_number`. kProven: outside TLS again, where messages are.
Step exchange(Stream* stream, Handshake* handshake, int* error_number);

}  // namespace weir::plugins::tcp
