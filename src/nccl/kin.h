// SPDX-License-Identifier: Apache-2.0
// Kin: what the ranks of a communicator that the real NCCL serves keep of their meeting, so that those
// of them who make a further one can meet again. Every call that makes one has an id of its own, which
// each rank derives from the first; nothing stays open between two of them.
//
// Thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/base/secret.h"
#include "core/comm/bootstrap_place.h"
#include "weir/weir.h"

namespace weir::nccl {

// Where a rank's host is, as in an id.
using PackedPlace = std::array<unsigned char, comm::kPlaceBytesMax>;
PackedPlace packed_place_of_this_host();

// The secret of an id, and the id of a secret and a place.
Secret secret_of(const weir_unique_id_t& id);
weir_unique_id_t make_id(const Secret& secret, const PackedPlace& place);

class Kin {
 public:
  // `places` by rank. `forced`: nothing but the real NCCL is allowed.
  Kin(Secret secret, std::vector<PackedPlace> places, bool forced)
      : secret_(secret), places_(std::move(places)), forced_(forced) {}

  bool forced() const { return forced_; }

  // Where ranks meet that make the call named `label`, for the n-th time: each of them has made as
  // many calls of this label. `first` is one of them, the same for all.
  weir_unique_id_t next_id(const std::string& label, int first);

 private:
  const Secret secret_;
  const std::vector<PackedPlace> places_;
  const bool forced_;
  std::mutex lock_;
  std::map<std::string, uint64_t> counts_;
};

}  // namespace weir::nccl
