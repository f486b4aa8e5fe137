// SPDX-License-Identifier: Apache-2.0
// The step by which both makers of connections move a handshake over a socket. Thread-safe.
#pragma once

#include "plugins/tcp/handshake.h"

namespace weir::plugins::tcp {

enum class Step { kGoesOn, kProven, kEnded };

// Sends and receives what can be without waiting. kGoesOn also in kChallenged and kClaimed. kEnded:
// by the handshake's own state, or by `*error_number`.
Step exchange(int fd, Handshake* handshake, int* error_number);

}  // namespace weir::plugins::tcp
