// SPDX-License-Identifier: Apache-2.0
#include "core/comm/bootstrap_place.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "core/base/log.h"
#include "net/interfaces.h"

namespace weir::comm {
namespace {

constexpr size_t kAddressBytes = 17;

}  // namespace

Place place_of_this_host() {
  Place place;
  net::InterfaceFilter filter;
  std::vector<net::Interface> interfaces;
  std::string reason;
  if (!net::filter_from(std::getenv("WEIR_IFNAME"), std::getenv("NCCL_SOCKET_IFNAME"), &filter,
                        &reason) ||
      !net::list_interfaces(filter, &interfaces, &reason)) {
    log_warn(fmt::format("ranks on other hosts will not find this one: {}", reason));
    return place;
  }
  for (const net::Interface& one : interfaces) {
    if (!one.is_loopback && place.addresses.size() < kPlaceAddressesMax) {
      place.addresses.push_back(one.address);
    }
  }
  return place;
}

std::string pack(const Place& place) {
  const size_t count = std::min(place.addresses.size(), kPlaceAddressesMax);
  std::string bytes(1, static_cast<char>(count));
  for (size_t i = 0; i < count; ++i) {
    const net::IpAddress& address = place.addresses[i];
    bytes.push_back(static_cast<char>(address.family));
    bytes.append(reinterpret_cast<const char*>(address.bytes.data()), address.bytes.size());
  }
  return bytes;
}

bool unpack(std::string_view bytes, Place* place) {
  place->addresses.clear();
  const size_t count = bytes.empty() ? 0 : static_cast<unsigned char>(bytes[0]);
  if (bytes.empty() || count > kPlaceAddressesMax || bytes.size() < 1 + count * kAddressBytes) {
    return false;
  }
  for (size_t i = 0; i < count; ++i) {
    const char* at = bytes.data() + 1 + i * kAddressBytes;
    net::IpAddress address;
    address.family = static_cast<uint8_t>(at[0]);
    std::memcpy(address.bytes.data(), at + 1, address.bytes.size());
    if (!address.is_host()) {
      place->addresses.clear();
      return false;
    }
    place->addresses.push_back(address);
  }
  return true;
}

uint16_t place_port(const Secret& secret, uint32_t index) {
  const Secret derived = secret.derive(fmt::format("bootstrap port {}", index));
  uint32_t number = 0;
  std::memcpy(&number, derived.bytes.data(), sizeof number);
  return static_cast<uint16_t>(kPlacePortFirst + number % kPlacePortRange);
}

}  // namespace weir::comm
