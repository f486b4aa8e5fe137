// SPDX-License-Identifier: Apache-2.0
#include "weir_trace/group.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "core/engine/call.h"

namespace weir::trace {

using comm::Life;
using comm::Record;
using comm::RecordKind;
using comm::RecordState;

namespace {

constexpr size_t kMissingMax = 64;

}  // namespace

uint64_t Group::latest_ns() const {
  uint64_t latest = 0;
  for (const Record& record : records) latest = std::max(latest, record.latest_ns);
  return latest;
}

const Record* Group::find(Rank rank) const {
  const auto it =
      std::lower_bound(records.begin(), records.end(), rank,
                       [](const Record& record, Rank wanted) { return record.rank < wanted; });
  return it != records.end() && it->rank == rank ? &*it : nullptr;
}

std::vector<Rank> Group::missing() const {
  std::vector<Rank> ranks;
  for (Rank rank = 0; rank < rank_count() && ranks.size() < kMissingMax; ++rank) {
    if (find(rank) == nullptr) ranks.push_back(rank);
  }
  return ranks;
}

bool Group::forwarded() const { return records.front().transport == comm::kForwardedTransport; }

bool Group::on_streams() const { return records.front().transport == comm::kStreamTransport; }

std::vector<Group> group_records(std::vector<Record> records) {
  using Key = std::tuple<uint64_t, uint64_t,
                         Rank>;  // one group per rank count
  std::map<Key, std::map<Rank, Record>> sorted;
  for (Record& record : records) {
    auto& ranks = sorted[{record.comm_id, record.instance, record.rank_count}];
    const auto [it, is_new] = ranks.try_emplace(record.rank);
    // A copy next to the original: the later one has more.
    if (is_new || it->second.latest_ns < record.latest_ns) it->second = std::move(record);
  }
  std::vector<Group> groups;
  for (auto& [key, ranks] : sorted) {
    Group group;
    for (auto& [rank, record] : ranks) group.records.push_back(std::move(record));
    groups.push_back(std::move(group));
  }
  std::stable_sort(groups.begin(), groups.end(),
                   [](const Group& a, const Group& b) { return a.latest_ns() > b.latest_ns(); });
  return groups;
}

bool failed(const Record& record) { return record.state != RecordState::kOpen; }

bool died(const Group& group, const Record& record) {
  if (record.life != Life::kDead || failed(record)) return false;
  return std::any_of(group.records.begin(), group.records.end(), [](const Record& other) {
    return failed(other) || other.life == Life::kAlive || other.life == Life::kStopped;
  });
}

bool same_process(const Record& a, const Record& b) {
  return a.process == b.process && a.process_start == b.process_start && a.boot_id == b.boot_id &&
         a.pid_namespace == b.pid_namespace;
}

std::vector<Group> latest_job(const std::vector<Group>& groups) {
  using Process = std::tuple<std::string, uint64_t, uint32_t, uint64_t>;
  const auto process_of = [](const Record& record) {
    return Process(record.boot_id, record.pid_namespace, record.process, record.process_start);
  };
  std::map<Process, std::vector<size_t>> groups_of;
  for (size_t i = 0; i < groups.size(); ++i) {
    for (const Record& record : groups[i].records) groups_of[process_of(record)].push_back(i);
  }
  std::vector<bool> taken(groups.size(), false);
  std::vector<size_t> open;
  if (!groups.empty()) {
    taken[0] = true;
    open.push_back(0);
  }
  while (!open.empty()) {
    const size_t at = open.back();
    open.pop_back();
    for (const Record& record : groups[at].records) {
      for (const size_t other : groups_of[process_of(record)]) {
        if (taken[other]) continue;
        taken[other] = true;
        open.push_back(other);
      }
    }
  }
  std::vector<Group> job;
  for (size_t i = 0; i < groups.size(); ++i) {
    if (taken[i]) job.push_back(groups[i]);
  }
  return job;
}

uint64_t called(const Record& record) {
  const bool queued = record.wait.kind == RecordKind::kQueued;
  return std::max(record.begun(), queued ? record.wait.sequence : 0);
}

std::optional<Called> call_of(const Record& record, uint64_t sequence) {
  if (const comm::RecordedOperation* operation = record.find(sequence)) {
    return Called{operation->what, operation->count};
  }
  if (record.wait.kind == RecordKind::kQueued && record.wait.sequence == sequence) {
    return Called{record.wait.what, record.wait.count};
  }
  return std::nullopt;
}

std::string describe(const Called& call) { return engine::describe(call.what, call.count); }

std::string text_of_duration(uint64_t ns) {
  const auto value = static_cast<double>(ns);
  if (value < 1e3) return fmt::format("{} ns", ns);
  if (value < 1e6) return fmt::format("{:.3g} us", value * 1e-3);
  if (value < 1e9) return fmt::format("{:.3g} ms", value * 1e-6);
  if (value < 600e9) return fmt::format("{:.3g} s", value * 1e-9);
  return fmt::format("{:.0f} min", value / 60e9);
}

}  // namespace weir::trace
