// SPDX-License-Identifier: Apache-2.0
// Which ways there are from this rank's interfaces to the addresses of a peer, in the order in which
// they are likely to be good, and which of them can be rails side by side. Only trying tells which
// lead to the peer (meeting.h). Pure functions; thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "net/interfaces.h"
#include "plugins/tcp/address.h"

namespace weir::plugins::tcp {

struct Way {
  Offer offer;             // the peer's end
  net::IpAddress source;   // our end; not valid: by routing
  std::string device;      // our interface, for a rail; "": by routing
  uint32_t interface = 0;  // its number
  bool is_rail = false;    // from one interface to one, and others may stand beside it
  std::string why;         // it is where it is in the order
};

// Interfaces by number, which is their place among the names: 0, 1, …
std::vector<uint32_t> numbers_of(const std::vector<net::Interface>& interfaces);

// `all_here`: all ranks share a host. Loopback where they do or where it is asked for, then common
// subnets, the fastest first, then others. Between two hosts that share several subnets, or none
// while both have several interfaces, the ways from one interface to one stand first. One that is
// said to be slower than an eighth of the fastest is no rail unless it is asked for by name.
std::vector<Way> ways_to(const PeerAddress& own, const std::vector<net::Interface>& interfaces,
                         const PeerAddress& peer, bool all_here);

// Of the ways whose indices are in `answered`, in order: those that use each interface of either end
// once; or the first one alone when there is no such.
std::vector<size_t> choose_rails(const std::vector<Way>& ways, const std::vector<size_t>& answered);

// Whether two ranks make the connections of their lanes, or of their rails but the first, when they are
// needed.
inline bool is_lazy(const PeerAddress& one, const PeerAddress& other) {
  return one.is_lazy && other.is_lazy;
}

// How many connections two ranks make at least and at most: which of their interfaces reach each
// other only trying tells, and which lanes are used.
struct ConnectionCount {
  uint32_t least = 0;
  uint32_t most = 0;
};
ConnectionCount connections_between(const PeerAddress& one, const PeerAddress& other);

}  // namespace weir::plugins::tcp
