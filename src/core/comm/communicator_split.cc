// SPDX-License-Identifier: Apache-2.0
// Communicators that are made of the ranks of another one.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/base/rank_list.h"
#include "core/comm/communicator.h"
#include "core/comm/process.h"
#include "core/comm/start/bootstrap.h"

namespace weir::comm {

JoinOptions Communicator::joining_in(const char* call, const std::set<Rank>& others) {
  JoinOptions joining;
  joining.still_possible = [this, call, others] {
    return health_.check_survivors(others, call,
                                   "weir_comm_shrink makes a communicator without lost ranks");
  };
  joining.meanwhile = [] { progress_others(nullptr); };
  joining.remedy = fmt::format("every rank of '{}' must call {}", state_.name, call);
  return joining;
}

namespace {

struct SplitEntry {
  int color;
  int key;
};

}  // namespace

Result<std::unique_ptr<Communicator>> Communicator::split(int color, int key,
                                                          const CommOptions& options) {
  uint64_t number;
  {
    std::lock_guard lock(state_.lock);
    number = split_count_++;
  }
  const std::string label = fmt::format("split {}", number);
  const int64_t timeout_ms = options.timeout_ms > 0 ? options.timeout_ms : state_.timeout_ms.load();
  const uint64_t deadline_ns = now_ns() + static_cast<uint64_t>(timeout_ms) * 1'000'000u;
  const JoinOptions joining = joining_in("weir_comm_split");
  // The other ranks find it out, too: none waits for this one.
  const Status possible = joining.still_possible();
  if (!possible.ok()) return possible.with_context("split of '" + state_.name + "'");
  auto bootstrap = Bootstrap::join(state_.secret.derive(label), rank(), rank_count(), deadline_ns,
                                   place_of(0), joining);
  if (!bootstrap.ok()) return bootstrap.status().with_context("split of '" + state_.name + "'");
  const SplitEntry mine{color, key};
  auto blobs = bootstrap.value()->all_gather(
      std::string_view(reinterpret_cast<const char*>(&mine), sizeof mine), deadline_ns);
  if (!blobs.ok()) return blobs.status().with_context("split of '" + state_.name + "'");
  if (color < 0) return std::unique_ptr<Communicator>();
  std::vector<std::pair<int, Rank>> members;  // (key, old rank)
  std::set<Rank> others;
  for (Rank p = 0; p < rank_count(); ++p) {
    SplitEntry entry{};
    if (blobs.value()[p].size() != sizeof entry) {
      return Status(Code::kRefused, fmt::format("rank {} sent a split entry of {} bytes, not {}", p,
                                                blobs.value()[p].size(), sizeof entry));
    }
    std::memcpy(&entry, blobs.value()[p].data(), sizeof entry);
    if (entry.color == color) {
      members.emplace_back(entry.key, p);
    } else {
      others.insert(p);
    }
  }
  std::sort(members.begin(), members.end());
  const auto self = std::find_if(members.begin(), members.end(),
                                 [&](const auto& member) { return member.second == rank(); });
  CommOptions child = options;
  child.timeout_ms = timeout_ms;
  if (child.name.empty()) child.name = fmt::format("{}/{}.{}", state_.name, number, color);
  return create(state_.secret.derive(fmt::format("{} color {}", label, color)),
                static_cast<Rank>(self - members.begin()), static_cast<Rank>(members.size()), child,
                place_of(members[0].second), joining_in("weir_comm_split", others));
}

Result<std::unique_ptr<Communicator>> Communicator::shrink(std::span<const Rank> excluded,
                                                           const CommOptions& options) {
  std::set<Rank> out(excluded.begin(), excluded.end());
  for (const Rank r : out) {
    if (r >= rank_count()) {
      return invalid_argument(
          fmt::format("shrink: excluded rank {} does not exist in a communicator of {} ranks", r,
                      rank_count()));
    }
  }
  if (out.count(rank()) != 0) {
    return invalid_argument(fmt::format("shrink: rank {} excludes itself", rank()));
  }
  // The list is part of the name: ranks that disagree on it do not meet, and the deadline names
  // them. Each list has its own count: a rank that was left out of one shrink may take part in
  // another.
  std::string without;
  for (const Rank r : out) without += fmt::format(" {}", r);
  uint64_t number;
  {
    std::lock_guard lock(state_.lock);
    number = shrink_counts_[without]++;
  }
  const std::string label = fmt::format("shrink {} without{}", number, without);
  Rank new_rank = 0;
  for (Rank r = 0; r < rank(); ++r) new_rank += out.count(r) == 0;
  Rank first = 0;
  while (out.count(first) != 0) ++first;
  CommOptions child = options;
  if (child.timeout_ms <= 0) child.timeout_ms = state_.timeout_ms.load();
  if (child.name.empty()) child.name = fmt::format("{}/shrunk{}", state_.name, number);
  JoinOptions joining;
  joining.still_possible = [&] {
    return health_
        .check_survivors(out, "weir_comm_shrink",
                         "call weir_comm_lost_ranks again and exclude the ranks that it adds")
        .with_context("shrink of '" + state_.name + "'");
  };
  joining.remedy = fmt::format(
      "all ranks of '{}'{} must call weir_comm_shrink and exclude the same ranks; also exclude "
      "ranks that will not call it",
      state_.name, out.empty() ? "" : " except " + describe_ranks({out.begin(), out.end()}));
  return create(state_.secret.derive(label), new_rank, rank_count() - static_cast<Rank>(out.size()),
                child, place_of(first), joining);
}

}  // namespace weir::comm
