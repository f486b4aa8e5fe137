// SPDX-License-Identifier: Apache-2.0
// Nonblocking, close-on-exec TCP sockets, bound to one address and never to a wildcard. Functions
// return a descriptor that the caller owns, or -1 with errno set. Thread-safe.
#pragma once

#include <cstdint>

#include "net/ip_address.h"

namespace weir::net {

// Listens at `address`; port 0: the kernel chooses, and `*port` tells which. EADDRINUSE: taken.
int listen_at(const IpAddress& address, uint16_t* port, int backlog);

// Begins to connect, from `source` when it is valid, over the interface `device` when one is given
// and the kernel permits it; the socket is writable when the connection is established or has
// failed (`connect_error`).
int begin_connect(const IpAddress& address, uint16_t port, const IpAddress& source,
                  const char* device = nullptr);

// 0: connected; else the errno of the failed connection.
int connect_error(int fd);

// A connection that waits at the listener; -1 with EAGAIN when there is none.
int accept_from(int listener, IpAddress* from);

// Messages leave at once, and a peer whose host is gone is found within half a minute.
void prepare_stream(int fd);

// The address of either end of a connection; not valid if it is not known.
IpAddress local_address(int fd);
IpAddress peer_address(int fd);

// What has come, and what comes next, is acknowledged without delay, as long as nothing is sent.
void acknowledge_at_once(int fd);

// The peer's host has not answered for so long, although something was sent again: its network or
// this host's has failed. A peer that does not read is no stall.
bool is_stalled(int fd, uint32_t patience_ms);

}  // namespace weir::net
