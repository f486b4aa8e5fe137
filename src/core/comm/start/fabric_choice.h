// SPDX-License-Identifier: Apache-2.0
// Whether ranks on several hosts use their cards although no transport is named: what each rank
// tells of its cards, and the decision that all ranks make alike from that. Values; thread-safe.
//
// Packed:
//
//   offset  bytes  field
//        0      1  stance: 0 free, 1 named, 2 refused
//        1      1  kinds of cards, bits of topo::CardKind
//        2      2  bytes of the names of near cards, little-endian
//        4  <=4096 these names, with commas
//      ...  <=400  text
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/base/settings.h"
#include "core/base/status.h"
#include "core/base/types.h"
#include "core/topo/cards.h"

namespace weir::comm {

enum class FabricStance : uint8_t {
  kFree,
  kNamed,    // the transports are named
  kRefused,  // WEIR_FABRIC=0
};

FabricStance stance_of(const Settings& settings);

struct CardsSeen {
  FabricStance stance = FabricStance::kFree;
  topo::Cards cards;
  std::vector<std::string> near;  // cards that are nearest to the rank, equally near

  std::string pack() const;
  // False: it cannot be read.
  static bool unpack(const std::string& bytes, CardsSeen* seen);
};

struct FabricChoice {
  std::string transport;  // "ucx", "ofi"; "": no card is used
  std::string reason;     // for a reader who asks why
};

// Whether this rank can use the transport `name`; the status says why not.
using CanUse = std::function<Status(const std::string& name)>;
// Gives each rank's text to all ranks, in the order of ranks.
using Exchange = std::function<Result<std::vector<std::string>>(const std::string& text)>;

// `all`: of each rank. Cards are used if every rank is free, all have an active card of one kind,
// and all can use ucx (not with EFA, which it does not have everywhere), or else ofi. `can_use` and
// `exchange` are called only where every rank has such a card; all ranks call them equally often.
// kRefused, naming the rank, where an answer cannot be read; errors of `exchange`.
Result<FabricChoice> choose_fabric(const std::vector<CardsSeen>& all, const CanUse& can_use,
                                   const Exchange& exchange);

}  // namespace weir::comm
