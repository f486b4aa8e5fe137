// SPDX-License-Identifier: Apache-2.0
#include "core/comm/start/bootstrap_place.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <set>

#include "core/base/log.h"
#include "net/interfaces.h"

namespace weir::comm {
namespace {

constexpr size_t kAddressBytes = 17;
constexpr size_t kHeadBytes = 9;

// The addresses that others can reach on the interfaces that a list allows. False with a reason.
bool find_addresses(const char* nccl_list, Place* place, std::string* reason) {
  net::InterfaceFilter filter;
  std::vector<net::Interface> interfaces;
  if (!net::filter_from(std::getenv("WEIR_IFNAME"), nccl_list, &filter, reason) ||
      !net::list_interfaces(filter, &interfaces, reason)) {
    return false;
  }
  for (const net::Interface& one : interfaces) {
    if (!one.is_loopback && place->addresses.size() < kPlaceAddressesMax) {
      place->addresses.push_back(one.address);
    }
  }
  return true;
}

}  // namespace

Status check_interfaces() {
  const char* wanted = std::getenv("WEIR_IFNAME");
  if (wanted == nullptr || *wanted == '\0') return Status();
  net::InterfaceFilter filter;
  std::string reason;
  if (!net::filter_from(wanted, nullptr, &filter, &reason)) return invalid_argument(reason);
  std::vector<net::Interface> allowed;
  std::vector<net::Interface> all;
  if (!net::list_interfaces(filter, &allowed, &reason) ||
      !net::list_interfaces({}, &all, &reason)) {
    return Status(Code::kSystem, reason);
  }
  if (!allowed.empty()) return Status();
  std::set<std::string> names;
  for (const net::Interface& one : all) names.insert(one.name);
  return invalid_argument(fmt::format(
      "WEIR_IFNAME={} allows no network interface of this host that is up and has an address{}; "
      "name one of them, or unset it",
      wanted,
      names.empty() ? " (it has none)" : fmt::format(" (those are {})", fmt::join(names, ", "))));
}

Place place_of_this_host() {
  Place place;
  std::string reason;
  const char* oob = std::getenv("NCCL_OOB_NET_IFNAME");
  // With some values of NCCL_NET that list names InfiniBand devices; ranks meet over IP.
  const bool found = oob != nullptr && *oob != '\0' && find_addresses(oob, &place, &reason) &&
                     !place.addresses.empty();
  if (!found && !find_addresses(std::getenv("NCCL_SOCKET_IFNAME"), &place, &reason)) {
    log_warn(fmt::format("ranks on other hosts will not find this one: {}", reason));
    return place;
  }
  place.host = host_tag();
  return place;
}

uint64_t host_tag() {
  const net::HostIdentity host = net::this_host();
  if (!host.known()) return 0;
  const Secret hash =
      secret_from_text({reinterpret_cast<const char*>(host.bytes.data()), host.bytes.size()});
  uint64_t tag = 0;
  std::memcpy(&tag, hash.bytes.data(), sizeof tag);
  return tag;
}

bool is_here(const Place& place) {
  if (place.host != 0) return place.host == host_tag();
  std::vector<net::Interface> interfaces;
  std::string reason;
  if (!net::list_interfaces({}, &interfaces, &reason)) return false;
  return std::any_of(interfaces.begin(), interfaces.end(), [&](const net::Interface& one) {
    return std::find(place.addresses.begin(), place.addresses.end(), one.address) !=
           place.addresses.end();
  });
}

std::string pack(const Place& place) {
  const size_t count = std::min(place.addresses.size(), kPlaceAddressesMax);
  std::string bytes(1, static_cast<char>(count));
  for (size_t i = 0; i < sizeof place.host; ++i) {
    bytes.push_back(static_cast<char>(place.host >> (8 * i)));
  }
  for (size_t i = 0; i < count; ++i) {
    const net::IpAddress& address = place.addresses[i];
    bytes.push_back(static_cast<char>(address.family));
    bytes.append(reinterpret_cast<const char*>(address.bytes.data()), address.bytes.size());
  }
  return bytes;
}

bool unpack(std::string_view bytes, Place* place) {
  *place = Place();
  const size_t count = bytes.empty() ? 0 : static_cast<unsigned char>(bytes[0]);
  if (count > kPlaceAddressesMax || bytes.size() < kHeadBytes + count * kAddressBytes) {
    return false;
  }
  for (size_t i = 0; i < sizeof place->host; ++i) {
    place->host |= uint64_t{static_cast<unsigned char>(bytes[1 + i])} << (8 * i);
  }
  for (size_t i = 0; i < count; ++i) {
    const char* at = bytes.data() + kHeadBytes + i * kAddressBytes;
    net::IpAddress address;
    address.family = static_cast<uint8_t>(at[0]);
    std::memcpy(address.bytes.data(), at + 1, address.bytes.size());
    if (!address.is_host()) {
      *place = Place();
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
