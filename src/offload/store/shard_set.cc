// SPDX-License-Identifier: Apache-2.0
#include "offload/store/shard_set.h"

#include <fmt/format.h>

#include <algorithm>

namespace weir::offload {

namespace {

Status mismatch(size_t rank, const std::string& what) {
  return Status(Code::kMismatch, fmt::format("shard {}: {}", rank, what));
}

// Everything that the ranks of one run have in common.
Status check_alike(const Store& first, const Store& other, size_t rank) {
  StoreDescription a = first.description();
  StoreDescription b = other.description();
  for (StoreDescription* d : {&a, &b}) {
    d->rank = 0;
    for (GroupDescription& group : d->groups) group.element_count = group.first_element = 0;
  }
  if (Status status = compare(a, b); !status.ok()) return mismatch(rank, status.text());
  if (first.committed()->step != other.committed()->step) {
    return mismatch(rank, fmt::format("expected step {} as in shard 0, found step {}; take "
                                      "checkpoints of one step",
                                      first.committed()->step, other.committed()->step));
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<ShardSet>> ShardSet::open(
    Disk& disk, const std::vector<std::vector<std::string>>& directories, StoreOptions options) {
  if (directories.empty()) return invalid_argument("no shards are given");
  options.read_only = true;
  std::unique_ptr<ShardSet> set(new ShardSet());
  for (size_t rank = 0; rank < directories.size(); ++rank) {
    Result<std::unique_ptr<Store>> store = Store::open(disk, directories[rank], nullptr, options);
    if (!store.ok()) return store.status().with_context(fmt::format("shard {}", rank));
    const Store& one = *store.value();
    if (one.committed() == nullptr) return mismatch(rank, "nothing was committed yet");
    if (one.description().rank_count != directories.size()) {
      return mismatch(rank, fmt::format("expected one of {} ranks, found one of {}",
                                        directories.size(), one.description().rank_count));
    }
    if (one.description().rank != rank) {
      return mismatch(rank,
                      fmt::format("expected rank {}, found rank {}", rank, one.description().rank));
    }
    set->stores_.push_back(store.take());
    WEIR_RETURN_IF_ERROR(check_alike(*set->stores_[0], *set->stores_.back(), rank));
  }
  return set;
}

Result<uint32_t> ShardSet::find_group(const std::string& name) const {
  const std::vector<GroupDescription>& groups = stores_[0]->description().groups;
  for (uint32_t g = 0; g < groups.size(); ++g) {
    if (groups[g].name == name) return g;
  }
  return Status(Code::kRefused, fmt::format("the shards hold no group '{}'", name));
}

uint64_t ShardSet::element_count(uint32_t group) const {
  uint64_t end = 0;
  for (const auto& store : stores_) {
    const GroupDescription& g = store->description().groups[group];
    if (g.element_count > 0) end = std::max(end, g.first_element + g.element_count);
  }
  return end;
}

Result<std::vector<ShardPiece>> ShardSet::pieces(uint32_t group, uint64_t first_element,
                                                 uint64_t element_count) const {
  if (group >= stores_[0]->description().groups.size() ||
      first_element + element_count < first_element) {
    return invalid_argument(fmt::format("elements {} to {} of group {}", first_element,
                                        first_element + element_count, group));
  }
  std::vector<ShardPiece> pieces;
  uint64_t at = first_element;
  const uint64_t end = first_element + element_count;
  while (at < end) {
    const auto holder = std::find_if(stores_.begin(), stores_.end(), [&](const auto& store) {
      const GroupDescription& g = store->description().groups[group];
      return at >= g.first_element && at - g.first_element < g.element_count;
    });
    if (holder == stores_.end()) {
      return Status(Code::kRefused, fmt::format("no shard holds element {} of group '{}'", at,
                                                stores_[0]->description().groups[group].name));
    }
    const StoreDescription& description = (*holder)->description();
    const GroupDescription& g = description.groups[group];
    const uint64_t local = at - g.first_element;
    ShardPiece piece;
    piece.shard = static_cast<uint32_t>(holder - stores_.begin());
    piece.chunk = description.first_chunk(group) + local / g.chunk_elements;
    piece.element_in_chunk = local % g.chunk_elements;
    piece.chunk_elements =
        std::min(g.chunk_elements, g.element_count - (local - piece.element_in_chunk));
    piece.first_element = at;
    piece.element_count = std::min(piece.chunk_elements - piece.element_in_chunk, end - at);
    at += piece.element_count;
    pieces.push_back(piece);
  }
  return pieces;
}

}  // namespace weir::offload
