// SPDX-License-Identifier: Apache-2.0
// Bootstrap: how ranks that share only a secret find each other and exchange their first bytes,
// before any transport exists. The first rank on the host that all know of is the root of a tree;
// the others try to connect at a place derived from the secret until it is there, and are
// redirected where it has no room; both sides of each connection prove that they hold the secret;
// then small blobs are gathered and broadcast over the tree. It is used while a communicator is
// being made and closed afterwards. One thread at a time per object.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/secret.h"
#include "core/base/status.h"
#include "core/base/types.h"
#include "core/comm/start/bootstrap_place.h"

namespace weir::comm {

// The most ranks of a communicator. A rank is sent in 16 bits (reports/health_report.h).
inline constexpr Rank kRankCountMax = 65536;

// Blobs larger than this are refused before allocation.
inline constexpr size_t kBlobBytesMax = 1u << 20;

// Called by ranks other than 0 between two attempts to reach the root. If the secret and place have
// changed, fills in the new ones and returns true.
using LookAgain = std::function<Result<bool>(Secret* secret, Place* place)>;

// Called every few milliseconds while ranks are missing; an error ends the joining for all ranks
// that have come. For callers that can learn elsewhere that a missing rank will not come.
using StillPossible = std::function<Status()>;

struct JoinOptions {
  LookAgain look_again{};          // may be empty; with it the root is rank 0
  StillPossible still_possible{};  // may be empty
  // Called every 20 ms while a call waits for other ranks, which may wait for this one elsewhere.
  std::function<void()> meanwhile{};  // may be empty
  // When the time up to the deadline began, for the text of a timeout; 0: now.
  uint64_t began_ns = 0;
  // What to do about ranks that do not come; "": start them.
  std::string remedy{};
};

// How long the parts of `join` took.
struct JoinTimes {
  uint64_t rendezvous_ns = 0;  // until this rank had its place in the tree
  uint64_t handshake_ns = 0;   // until all ranks had one
};

class Bootstrap {
 public:
  // Blocks until all `rank_count` ranks have joined or the deadline (CLOCK_MONOTONIC, ns) has
  // passed; the error then names the ranks that are missing (the root finds them and tells the
  // others). Errors: kTimeout, kRefused (credentials, secret, version, two ranks with one number,
  // different rank_count), kSystem. Ranks of one host meet at an abstract socket. `place` is a host
  // on which at least one rank runs and where the ranks of other hosts look for it; when it is
  // empty, only ranks of one host can meet. The secret must then be random: over the network it
  // alone identifies a rank.
  static Result<std::unique_ptr<Bootstrap>> join(const Secret& secret, Rank rank, Rank rank_count,
                                                 uint64_t deadline_ns, const Place& place = {},
                                                 const JoinOptions& options = {});
  virtual ~Bootstrap() = default;

  // Every rank gives a blob and receives all, by rank. Also a barrier. The round is decided when
  // the root has the last blob: a rank that ends after that fails the next round, not this one.
  virtual Result<std::vector<std::string>> all_gather(std::string_view blob,
                                                      uint64_t deadline_ns) = 0;

  // Between two gathers: ok, or the reason why another rank has given up or a neighbor has ended.
  // Never waits.
  virtual Status look() = 0;
  // This rank cannot go on: tells `reason` to all others, whose gather then fails with it, and ends
  // this object. Returns the reason, or the one that another rank told earlier. A timeout or a loss
  // may follow from a parent in the tree that is stopped: where that one takes no notice for 0.3 s,
  // the text names it.
  virtual Status give_up(const Status& reason) = 0;

  const JoinTimes& times() const { return times_; }

 protected:
  JoinTimes times_;
};

}  // namespace weir::comm
