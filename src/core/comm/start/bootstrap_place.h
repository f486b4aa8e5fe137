// SPDX-License-Identifier: Apache-2.0
// Place: where ranks on other hosts find the root. It is a list of addresses of its host; the ports
// are derived from the secret, so that a place can be told before its rank listens there, and no
// rank needs to listen between two communicators. Values and pure functions; thread-safe.
//
// Packed, at most kPlaceBytesMax bytes:
//
//   offset  bytes  field
//        0      1  number of addresses
//        1      8  the host: first bytes of a hash of its net::HostIdentity; 0: not known
//        9     17  for each: family (4 or 6), address in network order (IPv4 in the first four)
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/secret.h"
#include "core/base/status.h"
#include "net/ip_address.h"

namespace weir::comm {

inline constexpr size_t kPlaceAddressesMax = 4;
inline constexpr size_t kPlaceBytesMax = 9 + 17 * kPlaceAddressesMax;
inline constexpr uint32_t kPlacePortCount = 4;  // that the root tries
inline constexpr uint32_t kPlacePortFirst = 16384;
inline constexpr uint32_t kPlacePortRange = 16384;

struct Place {
  std::vector<net::IpAddress> addresses;  // empty: all ranks are on this host
  uint64_t host = 0;                      // as packed
  uint16_t port = 0;                      // one more where it listens; 0: none. Not packed
  bool empty() const { return addresses.empty(); }
};

// Addresses of this host on the interfaces that WEIR_IFNAME (or NCCL_OOB_NET_IFNAME, or
// NCCL_SOCKET_IFNAME) allows, the fastest first, without loopback. Empty where there is none.
Place place_of_this_host();

// Checks the user's settings before this rank waits for others: WEIR_IFNAME must be a list of
// names, of which one at least is an interface of this host that is up and has an address.
Status check_interfaces();

// Names this host and its network namespace in a Place; 0: the kernel does not say.
uint64_t host_tag();
// Whether `place` is on this host: compares its tag, or, where it has none, its addresses.
bool is_here(const Place& place);

std::string pack(const Place& place);
// False: these are not the bytes of a place. Bytes after the place are ignored.
bool unpack(std::string_view bytes, Place* place);

// The `index`-th port at which the root listens if those before are taken; below the kernel's range
// of ephemeral ports.
uint16_t place_port(const Secret& secret, uint32_t index);

}  // namespace weir::comm
