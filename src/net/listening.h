// SPDX-License-Identifier: Apache-2.0
// Listening: a socket at the address of each interface that a rank may use, never at a wildcard.
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "net/interfaces.h"

namespace weir::net {

struct Listening {
  int fd;  // the caller's
  uint16_t port;
  size_t interface;  // index into what `listen_at_all` was given
};

// At most `count_max` sockets, of which one is kept for loopback, which comes last; the backlog of
// each has room for `connection_count` connections. Empty: `*reason` is the whole text of the
// error.
std::vector<Listening> listen_at_all(const std::vector<Interface>& interfaces,
                                     const InterfaceFilter& filter, size_t count_max,
                                     uint64_t connection_count, std::string* reason);

}  // namespace weir::net
