// SPDX-License-Identifier: Apache-2.0
#include "core/comm/bootstrap.h"

#include <fmt/format.h>

#include "core/comm/bootstrap_tls.h"
#include "core/comm/bootstrap_tree.h"

namespace weir::comm {
namespace {

// The only rank of its communicator: no sockets.
class Alone final : public Bootstrap {
 public:
  Result<std::vector<std::string>> all_gather(std::string_view blob, uint64_t) override {
    if (blob.size() > kBlobBytesMax) {
      return invalid_argument(fmt::format("all_gather: a blob of {} bytes is above the limit of {}",
                                          blob.size(), kBlobBytesMax));
    }
    return std::vector<std::string>{std::string(blob)};
  }
  Status look() override { return Status(); }
  Status give_up(const Status& reason) override { return reason; }
};

}  // namespace

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
  if (rank_count == 1) return std::unique_ptr<Bootstrap>(new Alone);
  const Result<bool> tls = is_bootstrap_tls_asked();
  if (!tls.ok()) return tls.status();
  TreeOptions tree;
  tree.join = options;
  tree.tls = tls.value();
  return Tree::join(secret, rank, rank_count, deadline_ns, place, tree);
}

}  // namespace weir::comm
