// SPDX-License-Identifier: Apache-2.0
#include "net/ip_address.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>

namespace weir::net {

bool IpAddress::is_loopback() const {
  if (family == 4) return bytes[0] == 127;
  return family == 6 &&
         std::all_of(bytes.begin(), bytes.end() - 1, [](auto b) { return b == 0; }) &&
         bytes[15] == 1;
}

bool IpAddress::is_host() const {
  if (family == 4) return bytes[0] != 0 && bytes[0] < 224;
  if (family != 6 || bytes[0] == 0xff) return false;
  return std::any_of(bytes.begin(), bytes.end(), [](auto b) { return b != 0; });
}

std::string to_string(const IpAddress& address) {
  char text[INET6_ADDRSTRLEN] = "none";
  if (address.valid()) {
    inet_ntop(address.family == 4 ? AF_INET : AF_INET6, address.bytes.data(), text, sizeof text);
  }
  return text;
}

std::string to_string(const IpAddress& address, uint16_t port) {
  const std::string host = to_string(address);
  return (address.family == 6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

bool same_subnet(const IpAddress& a, const IpAddress& b, uint32_t prefix_bits) {
  if (!a.valid() || a.family != b.family) return false;
  const size_t bits = std::min<size_t>(prefix_bits, a.byte_count() * 8);
  if (!std::equal(a.bytes.begin(), a.bytes.begin() + static_cast<std::ptrdiff_t>(bits / 8),
                  b.bytes.begin())) {
    return false;
  }
  const size_t rest = bits % 8;
  return rest == 0 || (a.bytes[bits / 8] ^ b.bytes[bits / 8]) >> (8 - rest) == 0;
}

IpAddress from_sockaddr(const sockaddr* address) {
  IpAddress out;
  if (address == nullptr) return out;
  if (address->sa_family == AF_INET) {
    sockaddr_in in;
    std::memcpy(&in, address, sizeof in);
    out.family = 4;
    std::memcpy(out.bytes.data(), &in.sin_addr, 4);
  } else if (address->sa_family == AF_INET6) {
    sockaddr_in6 in;
    std::memcpy(&in, address, sizeof in);
    out.family = 6;
    std::memcpy(out.bytes.data(), &in.sin6_addr, 16);
  }
  return out;
}

socklen_t to_sockaddr(const IpAddress& address, uint16_t port, sockaddr_storage* out) {
  std::memset(out, 0, sizeof *out);
  if (address.family == 4) {
    sockaddr_in in{};
    in.sin_family = AF_INET;
    in.sin_port = htons(port);
    std::memcpy(&in.sin_addr, address.bytes.data(), 4);
    std::memcpy(out, &in, sizeof in);
    return sizeof in;
  }
  sockaddr_in6 in{};
  in.sin6_family = AF_INET6;
  in.sin6_port = htons(port);
  std::memcpy(&in.sin6_addr, address.bytes.data(), 16);
  std::memcpy(out, &in, sizeof in);
  return sizeof in;
}

uint16_t port_of(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    sockaddr_in in;
    std::memcpy(&in, &address, sizeof in);
    return ntohs(in.sin_port);
  }
  sockaddr_in6 in;
  std::memcpy(&in, &address, sizeof in);
  return ntohs(in.sin6_port);
}

}  // namespace weir::net
