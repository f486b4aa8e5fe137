// SPDX-License-Identifier: Apache-2.0
// DerivedIds: the ids at which the ranks of a communicator that the real NCCL serves meet again to
// make a further one. Every such call has an id of its own, which each rank derives from the
// communicator's own id; no connection stays open between two of them.
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
#include "core/comm/start/bootstrap_place.h"
#include "weir/weir.h"

namespace weir::nccl {

// The addresses of a rank's host, as an id holds them.
using PackedAddresses = std::array<unsigned char, comm::kPlaceBytesMax>;
PackedAddresses packed_addresses_of_this_host();

// The secret of an id, and the id of a secret and addresses.
Secret secret_of(const weir_unique_id_t& id);
weir_unique_id_t make_id(const Secret& secret, const PackedAddresses& addresses);

class DerivedIds {
 public:
  // `addresses` by rank. `forced`: nothing but the real NCCL is allowed.
  DerivedIds(const Secret& secret, std::vector<PackedAddresses> addresses, bool forced)
      : secret_(secret), addresses_(std::move(addresses)), forced_(forced) {}

  bool forced() const { return forced_; }

  // The id of the next call named `label`: all ranks that make it have made the same number of
  // calls with this label. They meet at the addresses of rank `first`, which is one of them and the
  // same for all.
  weir_unique_id_t next_id(const std::string& label, int first);

 private:
  const Secret secret_;
  const std::vector<PackedAddresses> addresses_;
  const bool forced_;
  std::mutex lock_;
  std::map<std::string, uint64_t> counts_;
};

}  // namespace weir::nccl
