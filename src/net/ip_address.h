// SPDX-License-Identifier: Apache-2.0
// IpAddress: an IPv4 or IPv6 address as a value, without a port. Pure functions; thread-safe.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace weir::net {

struct IpAddress {
  uint8_t family = 0;                     // 4 or 6; 0: none
  std::array<unsigned char, 16> bytes{};  // network order; IPv4 in the first four

  bool valid() const { return family == 4 || family == 6; }
  size_t byte_count() const { return family == 4 ? 4 : 16; }
  bool is_loopback() const;
  // Neither wildcard nor multicast nor broadcast: something that one host can have.
  bool is_host() const;
  bool operator==(const IpAddress&) const = default;
};

// "10.0.0.1", "fd00::1"; "none" when not valid.
std::string to_string(const IpAddress& address);
// "10.0.0.1:4000", "[fd00::1]:4000"
std::string to_string(const IpAddress& address, uint16_t port);

// The first `prefix_bits` bits are the same.
bool same_subnet(const IpAddress& a, const IpAddress& b, uint32_t prefix_bits);

// Not valid for other families.
IpAddress from_sockaddr(const sockaddr* address);
// Returns the length.
socklen_t to_sockaddr(const IpAddress& address, uint16_t port, sockaddr_storage* out);
// The port of an IPv4 or IPv6 socket address, host order.
uint16_t port_of(const sockaddr_storage& address);

}  // namespace weir::net
