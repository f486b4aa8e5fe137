// SPDX-License-Identifier: Apache-2.0
// The records of many ranks, sorted into communicators. Values; thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/comm/record/record_file.h"

namespace weir::trace {

// A rank's call with a given sequence number: a collective that it began, or one that waits to
// begin.
struct Called {
  uint64_t what = 0;
  uint64_t count = 0;
  bool operator==(const Called&) const = default;
};

// The records of one communicator in one run, ascending by rank, at most one each.
struct Group {
  std::vector<comm::Record> records;

  const std::string& name() const { return records.front().name; }
  Rank rank_count() const { return records.front().rank_count; }
  uint64_t latest_ns() const;
  const comm::Record* find(Rank rank) const;
  std::vector<Rank> missing() const;  // ranks that left no record; the first 64
  bool forwarded() const;             // its calls go to the real NCCL
  bool on_streams() const;            // its calls are work of streams of devices
};

// Sorts records into groups, the most recently active first.
std::vector<Group> group_records(std::vector<comm::Record> records);

// The newest group and all that share a process with it, directly or through other groups.
std::vector<Group> latest_job(const std::vector<Group>& groups);

bool failed(const comm::Record& record);
// The rank ended without an error of its own, while others went on or failed.
bool died(const Group& group, const comm::Record& record);

bool same_process(const comm::Record& a, const comm::Record& b);

// The sequence number of the latest collective that the rank has called.
uint64_t called(const comm::Record& record);
// nullopt: not called, or so long ago that it is no longer known.
std::optional<Called> call_of(const comm::Record& record, uint64_t sequence);

// "all_reduce(float32, sum, count 8)"
std::string describe(const Called& call);
// "2.5 s", "40 ms", "3 us"
std::string text_of_duration(uint64_t ns);

}  // namespace weir::trace
