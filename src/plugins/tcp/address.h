// SPDX-License-Identifier: Apache-2.0
// A rank's address, which tells the others where it listens. Pure functions; thread-safe.
//
//   offset  bytes  field (integers little-endian)
//        0      4  magic "WTAD"
//        4      2  protocol version
//        6      1  number of offers, 1 to kOffersMax
//        7      1  connections wanted for each pair of interfaces, 1 to kRailsMax
//        8      4  rank
//       12     24  identity of the host: kernel and network namespace; zero when unknown
//       36      1  1: this rank would make connections when they are needed; else 0
//       37      3  zero
//       40     26  for each offer:
//                    0   1  family: 4 or 6
//                    1   1  flags: 1 loopback, 2 asked for by name
//                    2   2  port
//                    4   4  speed of the interface, Mbit/s; 0 when unknown
//                    8   1  bits of the subnet's prefix
//                    9   1  number of the interface on its host: some have several addresses
//                   10  16  address, network order
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "net/interfaces.h"

namespace weir::plugins::tcp {

inline constexpr size_t kOffersMax = 16;

struct Offer {
  net::IpAddress address;
  uint16_t port = 0;
  uint32_t speed_mbits = 0;
  uint32_t prefix_bits = 0;
  uint32_t interface_number = 0;
  bool is_loopback = false;
  bool is_asked_for = false;
};

struct PeerAddress {
  uint32_t rank = 0;
  uint32_t connections = 1;
  bool is_lazy = false;
  net::HostIdentity host;
  std::vector<Offer> offers;
};

// Writes at most WEIR_TRANSPORT_ADDRESS_BYTES_MAX bytes and returns how many.
size_t encode(const PeerAddress& address, unsigned char* out);
// False: these bytes are no address of this version, or not that of a listener.
bool decode(const unsigned char* bytes, size_t byte_count, PeerAddress* address);

}  // namespace weir::plugins::tcp
