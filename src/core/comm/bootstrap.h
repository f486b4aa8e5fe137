// SPDX-License-Identifier: Apache-2.0
// Bootstrap: how ranks that share only a secret find each other and exchange their first bytes,
// before any transport exists. Rank 0 listens at a place derived from the secret; the others knock
// until it is there; both sides prove that they hold the secret; then small blobs are gathered and
// broadcast. It is used while a communicator is being made and closed afterwards. One thread at a
// time per object.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/secret.h"
#include "core/base/status.h"
#include "core/base/types.h"
#include "core/comm/bootstrap_place.h"

namespace weir::comm {

// Blobs larger than this are refused before allocation.
inline constexpr size_t kBlobBytesMax = 1u << 20;

class Bootstrap {
 public:
  // Blocks until all `rank_count` ranks have joined or the deadline (CLOCK_MONOTONIC, ns) has
  // passed; the error then names the ranks that are missing (on rank 0, and told by it to the
  // others). Errors: kTimeout, kRefused (credentials, secret, version, two ranks with one number,
  // different rank_count), kSystem.
  // Ranks of this host meet at an abstract socket. `place` is where rank 0 listens for the others,
  // and where they look for it; when it is empty, only ranks of one host can meet. The secret must
  // then be a random one: over the network it is all that a rank is known by.
  static Result<std::unique_ptr<Bootstrap>> join(const Secret& secret, Rank rank, Rank rank_count,
                                                 uint64_t deadline_ns, const Place& place = {});
  virtual ~Bootstrap() = default;

  // Every rank gives a blob and receives all, by rank. Also a barrier.
  virtual Result<std::vector<std::string>> all_gather(std::string_view blob,
                                                      uint64_t deadline_ns) = 0;
};

}  // namespace weir::comm
