// SPDX-License-Identifier: Apache-2.0
#include "plugins/tcp/ways.h"

#include <algorithm>

#include "plugins/tcp/wire.h"

namespace weir::plugins::tcp {
namespace {

constexpr uint32_t kSlowestPart = 8;
constexpr size_t kPairsMax = 32;

std::string with_speed(std::string why, const Offer& offer) {
  if (offer.speed_mbits != 0) why += ", " + std::to_string(offer.speed_mbits) + " Mbit/s";
  return why;
}

// Numbers of the interfaces that are not loopback, in order.
std::vector<uint32_t> order_of(const PeerAddress& address) {
  std::vector<uint32_t> order;
  for (const Offer& offer : address.offers) {
    const bool is_new =
        std::find(order.begin(), order.end(), offer.interface_number) == order.end();
    if (is_new && !offer.is_loopback) order.push_back(offer.interface_number);
  }
  return order;
}

template <typename Fits>
std::vector<RailEnds> pairs_that(const PeerAddress& lower, const PeerAddress& higher,
                                 const char* how, const Fits& fits) {
  std::vector<RailEnds> pairs;
  for (const Offer& above : higher.offers) {
    for (const Offer& below : lower.offers) {
      if (!above.is_loopback && !below.is_loopback && fits(below, above)) {
        pairs.push_back({below, above, how});
      }
    }
  }
  return pairs;
}

std::vector<RailEnds> in_one_subnet(const PeerAddress& lower, const PeerAddress& higher) {
  return pairs_that(lower, higher, "same subnet", [&](const Offer& below, const Offer& above) {
    // An address that both have, such as that of a bridge for containers, leads to oneself.
    const bool is_of_both =
        std::any_of(higher.offers.begin(), higher.offers.end(),
                    [&](const Offer& one) { return one.address == below.address; });
    return !is_of_both && net::same_subnet(above.address, below.address, above.prefix_bits);
  });
}

// The k-th interface to the k-th.
std::vector<RailEnds> in_step(const PeerAddress& lower, const PeerAddress& higher) {
  const std::vector<uint32_t> below_order = order_of(lower);
  const std::vector<uint32_t> above_order = order_of(higher);
  return pairs_that(lower, higher, "by routing", [&](const Offer& below, const Offer& above) {
    const auto place = [](const std::vector<uint32_t>& order, const Offer& offer) {
      return std::find(order.begin(), order.end(), offer.interface_number) - order.begin();
    };
    return below.address.family == above.address.family &&
           place(below_order, below) == place(above_order, above);
  });
}

uint32_t speed_of(const RailEnds& pair) { return pair.lower.speed_mbits; }

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

void put_near_first(const std::vector<std::string>& near, std::vector<net::Interface>* interfaces) {
  const auto place_of = [&](const net::Interface& one) {
    return std::find(near.begin(), near.end(), one.name) - near.begin();
  };
  std::stable_sort(interfaces->begin(), interfaces->end(),
                   [&](const net::Interface& a, const net::Interface& b) {
                     if (a.is_loopback != b.is_loopback) return b.is_loopback;
                     if (a.speed_mbits != b.speed_mbits) return a.speed_mbits > b.speed_mbits;
                     if (a.address.family != b.address.family) {
                       return a.address.family < b.address.family;
                     }
                     return place_of(a) < place_of(b);
                   });
}

std::vector<Way> ways_to(const PeerAddress& own, const std::vector<net::Interface>& interfaces,
                         const PeerAddress& peer, bool all_here) {
  const bool here = own.host.known() && peer.host == own.host;
  std::vector<Way> same_net, others, all;
  for (const Offer& offer : peer.offers) {
    Way way;
    way.offer = offer;
    if (offer.is_loopback) {
      if (!here || !(all_here || offer.is_asked_for)) continue;
      // A rank listens at the first one alone then.
      if (all_here && !all.empty()) continue;
      way.why = all_here ? "loopback: all ranks share a host" : "loopback: asked for";
      all.push_back(way);
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
  if (all_here && !all.empty()) return all;
  const auto faster = [](const Way& a, const Way& b) {
    return a.offer.speed_mbits > b.offer.speed_mbits;
  };
  std::stable_sort(same_net.begin(), same_net.end(), faster);
  std::stable_sort(others.begin(), others.end(), faster);
  for (const auto* list : {&same_net, &others}) all.insert(all.end(), list->begin(), list->end());
  return all;
}

std::vector<RailEnds> rails_between(const PeerAddress& lower, const PeerAddress& higher) {
  if (lower.host.known() && lower.host == higher.host) return {};
  std::vector<RailEnds> pairs = in_one_subnet(lower, higher);
  if (pairs.empty()) pairs = in_step(lower, higher);
  uint32_t fastest = 0;
  for (const RailEnds& pair : pairs) fastest = std::max(fastest, speed_of(pair));
  std::erase_if(pairs, [&](const RailEnds& pair) {
    return speed_of(pair) != 0 && !pair.lower.is_asked_for &&
           speed_of(pair) < fastest / kSlowestPart;
  });
  std::stable_sort(pairs.begin(), pairs.end(),
                   [](const RailEnds& a, const RailEnds& b) { return speed_of(a) > speed_of(b); });
  if (pairs.size() > kPairsMax) pairs.resize(kPairsMax);
  std::vector<RailEnds> chosen;
  for (const RailEnds& pair : pairs) {
    const bool in_use = std::any_of(chosen.begin(), chosen.end(), [&](const RailEnds& other) {
      return other.lower.interface_number == pair.lower.interface_number ||
             other.higher.interface_number == pair.higher.interface_number;
    });
    if (!in_use && chosen.size() < kRailsMax) chosen.push_back(pair);
  }
  if (chosen.size() < 2) chosen.clear();
  return chosen;
}

uint32_t rail_count_between(const PeerAddress& one, const PeerAddress& other, size_t pair_count) {
  const auto pairs = static_cast<uint32_t>(std::max(pair_count, size_t{1}));
  return std::min(pairs * std::min(one.connections, other.connections), kRailsMax);
}

std::string why_rail(const std::string& device, const char* how, const Offer& offer) {
  return with_speed("over " + device + ": " + how, offer);
}

}  // namespace weir::plugins::tcp
