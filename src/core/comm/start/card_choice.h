// SPDX-License-Identifier: Apache-2.0
// Which network cards and interfaces a rank uses: the nearest ones that may be used, of which ranks
// of a host with the same ones near take different ones. Values and pure functions, except that
// /sys is read; thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/types.h"
#include "core/topo/near_ports.h"
#include "net/interfaces.h"

namespace weir::comm {

// What a rank may use.
struct CardCandidates {
  std::vector<topo::PortName> cards;       // with an active port
  std::vector<topo::PortName> interfaces;  // on PCI
  // Several of one sort: it matters which are nearest.
  bool several() const { return cards.size() > 1 || interfaces.size() > 1; }
};

// Interfaces that `filter` allows, and cards: if `filter` names interfaces and some are of cards,
// those cards; if it excludes interfaces, the cards that have others or none. `sysfs_root` is
// "/sys", or a copy of one.
CardCandidates card_candidates(const net::InterfaceFilter& filter,
                               const std::vector<net::Interface>& interfaces,
                               const std::string& sysfs_root);

struct NearCards {
  topo::NearPorts cards;
  topo::NearPorts interfaces;
};
// `topology` may be null: then all are equally near.
NearCards near_cards(const CardCandidates& candidates, const topo::Topology* topology,
                     const topo::RankPlace& place);

// What each rank takes of the cards that are near to it. `near`: of each rank, `host`: its host's
// number (empty: one host). Ranks of a host with the same cards near share them out in the order of
// ranks.
std::vector<std::vector<std::string>> cards_of_ranks(
    const std::vector<const std::vector<std::string>*>& near, std::span<const uint32_t> host);

// Which ranks use the same cards: one number per rank, from 0 in order of first appearance; ranks
// of different hosts share none. `taken`: of each rank. Empty: the ranks of each host are together.
std::vector<uint32_t> numbers_of_cards(const std::vector<std::vector<std::string>>& taken,
                                       std::span<const uint32_t> host);

// Interfaces, the first of which is another for each rank.
std::vector<std::string> rotated(std::vector<std::string> names, size_t turn);

// With commas, and back.
std::string join_names(const std::vector<std::string>& names);
std::vector<std::string> split_names(std::string_view text);

}  // namespace weir::comm
