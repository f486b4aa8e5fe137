// SPDX-License-Identifier: Apache-2.0
#include "plugins/tcp/exchange.h"

#include <errno.h>

#include <algorithm>

namespace weir::plugins::tcp {

bool begin_tls(const Identity& identity, net::Stream::Role role, Stream* stream) {
  return identity.tls == nullptr || stream->secure(*identity.tls, role);
}

Step exchange(Stream* stream, Handshake* handshake, int* error_number) {
  for (;;) {
    while (handshake->out_bytes() > 0) {
      const iovec piece = {const_cast<unsigned char*>(handshake->out()), handshake->out_bytes()};
      const ssize_t sent = stream->send(&piece, 1);
      if (sent < 0) {
        if (errno == EINTR) continue;
        if (Stream::is_temporary(errno)) return Step::kGoesOn;
        *error_number = errno;
        return Step::kEnded;
      }
      handshake->sent(static_cast<size_t>(sent));
    }
    if (handshake->state() == Handshake::State::kProven) {
      if (!handshake->ends_tls() || stream->leave_tls()) return Step::kProven;
      *error_number = EPROTO;
      return Step::kEnded;
    }
    if (handshake->state() != Handshake::State::kBusy) return Step::kEnded;
    unsigned char bytes[wire::kHeaderBytes + wire::kPayloadBytesMax];
    const iovec piece = {bytes, std::min(handshake->wanted(), sizeof bytes)};
    const ssize_t got = stream->receive(&piece, 1);
    if (got < 0) {
      if (errno == EINTR) continue;
      if (Stream::is_temporary(errno)) return Step::kGoesOn;
      *error_number = errno;
      return Step::kEnded;
    }
    if (got == 0) {
      *error_number = ECONNRESET;
      return Step::kEnded;
    }
    const Handshake::State state = handshake->feed(bytes, static_cast<size_t>(got));
    if (state == Handshake::State::kChallenged || state == Handshake::State::kClaimed) {
      return Step::kGoesOn;
    }
  }
}

}  // namespace weir::plugins::tcp
