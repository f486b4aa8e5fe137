// SPDX-License-Identifier: Apache-2.0
#include "core/comm/start/bootstrap.h"

#include <fmt/format.h>

#include "core/comm/start/bootstrap_tree.h"

namespace weir::comm {

Result<std::unique_ptr<Bootstrap>> Bootstrap::join(const Secret& secret, Rank rank, Rank rank_count,
                                                   uint64_t deadline_ns, const Place& place,
                                                   const JoinOptions& options) {
  if (rank_count == 0 || rank_count > kRankCountMax) {
    return invalid_argument(
        fmt::format("rank_count {} is not in 1..{}", rank_count, kRankCountMax));
  }
  if (rank >= rank_count) {
    return invalid_argument(fmt::format("rank {} is not below rank_count {}", rank, rank_count));
  }
  const Result<bool> tls = is_tls_asked();
  if (!tls.ok()) return tls.status();
  TreeOptions tree;
  tree.join = options;
  tree.tls = tls.value();
  return Tree::join(secret, rank, rank_count, deadline_ns, place, tree);
}

}  // namespace weir::comm
