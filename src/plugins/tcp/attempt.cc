// SPDX-License-Identifier: Apache-2.0
#include "plugins/tcp/attempt.h"

#include <errno.h>

#include "net/ip_socket.h"

namespace weir::plugins::tcp {

std::optional<Attempt> begin_attempt(const Identity& identity, const Way& way, uint32_t peer,
                                     uint32_t lane, int* error_number) {
  wire::Nonce nonce;
  int fd = -1;
  if (net::fill_random(nonce.data(), nonce.size())) {
    fd = net::begin_connect(way.offer.address, way.offer.port, way.source, way.device.c_str());
  }
  if (fd < 0) {
    *error_number = errno;
    return {};
  }
  Stream stream(fd);
  if (!begin_tls(identity, net::Stream::Role::kClient, &stream)) {
    stream.close();
    *error_number = ENOMEM;
    return {};
  }
  return Attempt{stream, Handshake(identity, nonce, peer, lane)};
}

Step Attempt::move(int* error_number) {
  if (connecting) {
    *error_number = net::connect_error(stream.fd());
    if (*error_number != 0) return Step::kEnded;
    connecting = false;
  }
  return exchange(&stream, &handshake, error_number);
}

}  // namespace weir::plugins::tcp
