// SPDX-License-Identifier: Apache-2.0
#include "plugins/tcp/ways.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "plugins/tcp/wire.h"

namespace weir::plugins::tcp {
namespace {

constexpr uint32_t kSlowestPart = 8;
constexpr size_t kRailWaysMax = 32;

bool faster(const Way& a, const Way& b) { return a.offer.speed_mbits > b.offer.speed_mbits; }

std::string with_speed(std::string why, const Offer& offer) {
  if (offer.speed_mbits != 0) why += ", " + std::to_string(offer.speed_mbits) + " Mbit/s";
  return why;
}

Way rail_way(const net::Interface& own, uint32_t number, const Offer& offer, const char* how) {
  return {offer,  own.address, own.name,
          number, true,        with_speed("over " + own.name + ": " + how, offer)};
}

// The k-th interface to the k-th.
std::vector<Way> in_step(const std::vector<net::Interface>& interfaces, const PeerAddress& peer) {
  const std::vector<uint32_t> numbers = numbers_of(interfaces);
  std::vector<Way> ways;
  std::vector<uint32_t> own_order, peer_order;
  const auto place = [](std::vector<uint32_t>* order, uint32_t number) {
    const auto at = std::find(order->begin(), order->end(), number);
    if (at != order->end()) return static_cast<size_t>(at - order->begin());
    order->push_back(number);
    return order->size() - 1;
  };
  for (size_t i = 0; i < interfaces.size(); ++i) {
    if (interfaces[i].is_loopback) continue;
    const size_t own_place = place(&own_order, numbers[i]);
    peer_order.clear();
    for (const Offer& offer : peer.offers) {
      if (offer.is_loopback) continue;
      const size_t peer_place = place(&peer_order, offer.interface_number);
      if (peer_place == own_place && offer.address.family == interfaces[i].address.family) {
        ways.push_back(rail_way(interfaces[i], numbers[i], offer, "by routing"));
      }
    }
  }
  return ways;
}

std::vector<Way> rails_to(const std::vector<net::Interface>& interfaces, const PeerAddress& peer) {
  const std::vector<uint32_t> numbers = numbers_of(interfaces);
  std::vector<Way> ways;
  for (size_t i = 0; i < interfaces.size(); ++i) {
    if (interfaces[i].is_loopback) continue;
    for (const Offer& offer : peer.offers) {
      // An address that we have too, such as that of a bridge for containers, leads to ourselves.
      const bool is_ours =
          std::any_of(interfaces.begin(), interfaces.end(),
                      [&](const net::Interface& one) { return one.address == offer.address; });
      if (offer.is_loopback || is_ours) continue;
      if (net::same_subnet(interfaces[i].address, offer.address, interfaces[i].prefix_bits)) {
        ways.push_back(rail_way(interfaces[i], numbers[i], offer, "same subnet"));
      }
    }
  }
  if (ways.empty()) ways = in_step(interfaces, peer);
  uint32_t fastest = 0;
  for (const Way& way : ways) fastest = std::max(fastest, way.offer.speed_mbits);
  std::erase_if(ways, [&](const Way& way) {
    return way.offer.speed_mbits != 0 && !way.offer.is_asked_for &&
           way.offer.speed_mbits < fastest / kSlowestPart;
  });
  std::stable_sort(ways.begin(), ways.end(), faster);
  if (ways.size() > kRailWaysMax) ways.resize(kRailWaysMax);
  std::vector<size_t> all(ways.size());
  std::iota(all.begin(), all.end(), size_t{0});
  if (choose_rails(ways, all).size() < 2) ways.clear();
  return ways;
}

// Of those that a rail may use.
uint32_t interface_count(const PeerAddress& address) {
  std::set<uint32_t> numbers;
  for (const Offer& offer : address.offers) {
    if (!offer.is_loopback) numbers.insert(offer.interface_number);
  }
  return static_cast<uint32_t>(numbers.size());
}

}  // namespace

std::vector<uint32_t> numbers_of(const std::vector<net::Interface>& interfaces) {
  std::vector<std::string> names;
  std::vector<uint32_t> numbers;
  for (const net::Interface& one : interfaces) {
    const auto at = std::find(names.begin(), names.end(), one.name);
    numbers.push_back(static_cast<uint32_t>(at - names.begin()));
    if (at == names.end()) names.push_back(one.name);
  }
  return numbers;
}

std::vector<Way> ways_to(const PeerAddress& own, const std::vector<net::Interface>& interfaces,
                         const PeerAddress& peer, bool all_here) {
  const bool here = own.host.known() && peer.host == own.host;
  std::vector<Way> same_net, others, loopback;
  for (const Offer& offer : peer.offers) {
    Way way;
    way.offer = offer;
    if (offer.is_loopback) {
      if (!here || !(all_here || offer.is_asked_for)) continue;
      way.why = all_here ? "loopback: all ranks share a host" : "loopback: asked for";
      loopback.push_back(way);
      continue;
    }
    for (const net::Interface& one : interfaces) {
      if (!one.is_loopback && !way.source.valid() &&
          net::same_subnet(one.address, offer.address, one.prefix_bits)) {
        way.source = one.address;
        way.why = "over " + one.name + ": same subnet";
      }
    }
    const bool near = way.source.valid();
    if (!near) way.why = "by routing";
    way.why = with_speed(way.why, offer);
    (near ? same_net : others).push_back(way);
  }
  std::stable_sort(same_net.begin(), same_net.end(), faster);
  std::stable_sort(others.begin(), others.end(), faster);
  std::vector<Way> all = loopback;
  if (!here) {
    const std::vector<Way> rails = rails_to(interfaces, peer);
    all.insert(all.end(), rails.begin(), rails.end());
  }
  for (const auto* list : {&same_net, &others}) all.insert(all.end(), list->begin(), list->end());
  return all;
}

std::vector<size_t> choose_rails(const std::vector<Way>& ways,
                                 const std::vector<size_t>& answered) {
  std::vector<size_t> chosen;
  for (const size_t i : answered) {
    const bool in_use = std::any_of(chosen.begin(), chosen.end(), [&](size_t other) {
      return ways[other].interface == ways[i].interface ||
             ways[other].offer.interface_number == ways[i].offer.interface_number;
    });
    if (ways[i].is_rail && !in_use && chosen.size() < kRailsMax) chosen.push_back(i);
  }
  if (chosen.empty() && !answered.empty()) chosen.push_back(answered.front());
  return chosen;
}

ConnectionCount connections_between(const PeerAddress& one, const PeerAddress& other) {
  const uint32_t wanted = std::min(one.connections, other.connections);
  const bool here = one.host.known() && one.host == other.host;
  const uint32_t pairs = here ? 1 : std::min(interface_count(one), interface_count(other));
  const auto of = [](uint32_t rails) {
    return rails > 1 ? std::min(rails, kRailsMax) * kConnectionsPerRail : kConnectionsPerPeer;
  };
  const uint32_t most = std::max(pairs, 1u) * wanted;
  const bool lazy = is_lazy(one, other);
  const uint32_t one_rail = lazy ? 1 : of(1);
  // One for control of each rail, and the first one's other.
  if (wanted > 1) return {lazy ? std::min(wanted, kRailsMax) + 1 : of(wanted), of(most)};
  if (most == 1) return {one_rail, of(1)};
  return {std::min(one_rail, of(2)), std::max(of(1), of(most))};
}

}  // namespace weir::plugins::tcp
