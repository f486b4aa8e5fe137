// SPDX-License-Identifier: Apache-2.0
// NetworkAddress: the data with which other ranks reach a rank over the control network. Values and
// pure functions; thread-safe.
//
//   offset  bytes  field (integers little-endian)
//        0      4  magic "WCNA"
//        4      2  version, 1
//        6      1  number of offers, at most kOffersMax
//        7      1  net::TlsMode
//        8      4  rank
//       12     24  host: net::HostIdentity, zero when not known
//       36     32  nonce
//       68     25  per offer: family (1), flags (1: 1 loopback, 2 asked for by name), port (2),
//                  speed in Mbit/s (4), bits of the network prefix (1), address (16)
//
// The Unix socket of a rank, for ranks of its host, is the abstract name `socket_name`.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/types.h"
#include "net/interfaces.h"
#include "net/ip_address.h"
#include "net/tls.h"

namespace weir::control {

using Mac32 = std::array<unsigned char, 32>;

inline constexpr size_t kOffersMax = 8;
inline constexpr size_t kAddressBytesMax = 68 + 25 * kOffersMax;

struct Offer {
  net::IpAddress address;
  uint16_t port = 0;
  uint32_t speed_mbits = 0;
  uint32_t prefix_bits = 0;
  bool is_loopback = false;
  bool is_asked_for = false;
};

struct NetworkAddress {
  Rank rank = 0;
  net::TlsMode tls = net::TlsMode::kOff;
  net::HostIdentity host;
  Mac32 nonce{};
  std::vector<Offer> offers;

  std::string pack() const;
  // False: these bytes are no address of this version.
  static bool unpack(std::string_view bytes, NetworkAddress* address);
};

// It is derived from the nonce, and reveals nothing about it.
std::string socket_name(const Mac32& nonce);

}  // namespace weir::control
