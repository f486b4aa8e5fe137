// SPDX-License-Identifier: Apache-2.0
#include "core/comm/start/card_choice.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "core/topo/cards.h"

namespace weir::comm {
namespace {

bool allows_any(const net::InterfaceFilter& filter, const topo::ActiveCard& card) {
  return std::any_of(card.interfaces.begin(), card.interfaces.end(),
                     [&](const std::string& name) { return filter.allows(name); });
}

topo::NearPorts nearest(const std::vector<topo::PortName>& ports, const topo::Topology* topology,
                        const topo::RankPlace& place) {
  if (topology != nullptr) return topo::nearest_ports(*topology, place, ports);
  topo::NearPorts all;
  for (const topo::PortName& port : ports) all.names.push_back(port.name);
  return all;
}

}  // namespace

CardCandidates card_candidates(const net::InterfaceFilter& filter,
                               const std::vector<net::Interface>& interfaces,
                               const std::string& sysfs_root) {
  CardCandidates found;
  for (const net::Interface& one : interfaces) {
    const auto is_it = [&](const topo::PortName& other) { return other.name == one.name; };
    if (std::any_of(found.interfaces.begin(), found.interfaces.end(), is_it)) continue;
    const std::string address = topo::address_of_interface(one.name, sysfs_root);
    if (!address.empty()) found.interfaces.push_back({one.name, address});
  }
  // The only one is the nearest, wherever it is.
  const bool is_one =
      !interfaces.empty() &&
      std::all_of(interfaces.begin(), interfaces.end(), [&](const net::Interface& other) {
        return other.name == interfaces.front().name;
      });
  if (found.interfaces.empty() && is_one) found.interfaces.push_back({interfaces[0].name, ""});
  const std::vector<topo::ActiveCard> all = topo::active_cards(sysfs_root);
  const bool names_cards =
      filter.named() && std::any_of(all.begin(), all.end(), [&](const topo::ActiveCard& card) {
        return allows_any(filter, card);
      });
  for (const topo::ActiveCard& card : all) {
    const bool allowed = names_cards      ? allows_any(filter, card)
                         : filter.named() ? true
                                          : card.interfaces.empty() || allows_any(filter, card);
    if (allowed) found.cards.push_back({card.name, card.address});
  }
  return found;
}

NearCards near_cards(const CardCandidates& candidates, const topo::Topology* topology,
                     const topo::RankPlace& place) {
  return {nearest(candidates.cards, topology, place),
          nearest(candidates.interfaces, topology, place)};
}

std::vector<std::vector<std::string>> cards_of_ranks(
    const std::vector<const std::vector<std::string>*>& near, std::span<const uint32_t> host) {
  using Key = std::pair<uint32_t, std::string>;
  std::vector<Key> keys;
  std::map<Key, size_t> sharers;
  for (size_t rank = 0; rank < near.size(); ++rank) {
    keys.emplace_back(host.empty() ? 0 : host[rank], join_names(*near[rank]));
    ++sharers[keys.back()];
  }
  std::vector<std::vector<std::string>> taken;
  std::map<Key, size_t> turns;
  for (size_t rank = 0; rank < near.size(); ++rank) {
    taken.push_back(topo::share_of_ports(*near[rank], turns[keys[rank]]++, sharers[keys[rank]]));
  }
  return taken;
}

std::vector<uint32_t> numbers_of_cards(const std::vector<std::vector<std::string>>& taken,
                                       std::span<const uint32_t> host) {
  std::map<std::pair<uint32_t, std::string>, uint32_t> numbers;
  std::set<uint32_t> hosts;
  std::vector<uint32_t> of_rank;
  for (size_t rank = 0; rank < taken.size(); ++rank) {
    const uint32_t own = host.empty() ? 0 : host[rank];
    hosts.insert(own);
    const auto next = static_cast<uint32_t>(numbers.size());
    of_rank.push_back(numbers.try_emplace({own, join_names(taken[rank])}, next).first->second);
  }
  if (numbers.size() == hosts.size()) of_rank.clear();
  return of_rank;
}

std::vector<std::string> rotated(std::vector<std::string> names, size_t turn) {
  if (names.empty()) return names;
  const auto first = static_cast<std::ptrdiff_t>(turn % names.size());
  std::rotate(names.begin(), names.begin() + first, names.end());
  return names;
}

std::string join_names(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ",") + name;
  return text;
}

std::vector<std::string> split_names(std::string_view text) {
  std::vector<std::string> names;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    if (comma > 0) names.emplace_back(text.substr(0, comma));
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return names;
}

}  // namespace weir::comm
