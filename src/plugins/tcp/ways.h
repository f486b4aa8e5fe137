// SPDX-License-Identifier: Apache-2.0
// Which ways there are from this rank's interfaces to the addresses of a peer, in the order in
// which they are likely to be good, and which pairs of interfaces are rails side by side. Only
// trying tells which lead to the peer. Pure functions; thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "net/interfaces.h"
#include "plugins/tcp/address.h"

namespace weir::plugins::tcp {

struct Way {
  Offer offer;            // the peer's end
  net::IpAddress source;  // our end; not valid: by routing
  std::string device;     // our interface, for a rail; "": by routing
  std::string why;        // why it has its place in the order
};

// Interfaces by number, which is their place among the names: 0, 1, …
std::vector<uint32_t> numbers_of(const std::vector<net::Interface>& interfaces);

// Of interfaces of one speed, those in `near` come first, in that order.
void put_near_first(const std::vector<std::string>& near, std::vector<net::Interface>* interfaces);

// `all_here`: all ranks share a host. Where they do and the peer offers loopback, only that. Else
// loopback where it is asked for, then common subnets, the fastest first, then others.
std::vector<Way> ways_to(const PeerAddress& own, const std::vector<net::Interface>& interfaces,
                         const PeerAddress& peer, bool all_here);

// A rail between two ranks.
struct RailEnds {
  Offer lower;  // of the lower rank
  Offer higher;
  const char* how;
};

// The rails between two hosts that share several subnets, or none while both have several
// interfaces: each uses one interface of either end, and none twice. Both ends compute the same.
// Empty where there are not several. An interface that is said to be slower than an eighth of the
// fastest is in no rail unless it is asked for by name.
std::vector<RailEnds> rails_between(const PeerAddress& lower, const PeerAddress& higher);

// How many rails two ranks have, with those over one pair of interfaces; 1: none.
uint32_t rail_count_between(const PeerAddress& one, const PeerAddress& other, size_t pair_count);

// "over eth0: same subnet, 10000 Mbit/s"
std::string why_rail(const std::string& device, const char* how, const Offer& offer);

// Whether two ranks make their connections when they are needed.
inline bool is_lazy(const PeerAddress& one, const PeerAddress& other) {
  return one.is_lazy && other.is_lazy;
}

}  // namespace weir::plugins::tcp
