// SPDX-License-Identifier: Apache-2.0
// The measured times of calls between runs: one JSON file per topology, transport and layout of the
// ranks, beside the cached tables. Like these it only saves time: a file with a defect is ignored,
// with a line in the log. Thread- and process-safe: files are replaced whole, by rename; of two
// processes that write at the same time one loses what it measured.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/cost/learned.h"

namespace weir::cost {

// What the times hold for.
struct LearnedFor {
  uint64_t topology_hash = 0;
  std::string transport;
  std::string layout;  // for people: ranks, hosts, cores, and settings that matter
  Rank rank_count = 1;

  bool operator==(const LearnedFor&) const = default;
};

struct Learned {
  LearnedFor of;
  std::vector<LearnedCall> calls;  // distinct shapes
};

// More calls than these are not kept: the ones measured last are.
inline constexpr size_t kLearnedCallsMax = 256;
// Earlier calls of an algorithm count for at most so many when new ones are added.
inline constexpr uint64_t kLearnedCountKept = 1024;
// Times are not used after this, of a call and of a whole file.
inline constexpr int64_t kLearnedAgeMaxSeconds = int64_t{30} * 24 * 3600;
// Of the median over calls, measured over predicted, either way: the same as for tables
// (kTimesBuiltInMax).
inline constexpr double kLearnedFactorMax = 16;

// "decisions-v1-0123456789abcdef.json"
std::string learned_file_name(const LearnedFor& of);
// The names of all such files in a directory, in order; empty where it cannot be read.
std::vector<std::string> learned_files(const std::string& directory);

std::string to_json(const Learned& learned);
// kInvalidArgument: no such file, of a newer version, or with figures that are no times; the text
// says what is wrong. `table_version`: of the table by which the candidates were predicted; may be
// nullptr.
Result<Learned> learned_from_json(const std::string& text, uint32_t* table_version = nullptr);

// Why the times cannot be those of an idle machine: the least times of the choices are, in the
// median over calls, more than kLearnedFactorMax times as long as predicted, or as much shorter.
// Empty: they can.
std::string why_implausible(const std::vector<LearnedCall>& calls);

struct LearnedLookup {
  std::vector<LearnedCall> calls;
  std::string ignored;  // why an existing file is not used; logged already
};
// The file must pass the checks of read_private_file, hold times of `of` in order, predicted by
// this version's table, be at most kLearnedAgeMaxSeconds old, and be plausible. Calls that were
// measured longer ago are left out.
LearnedLookup load_learned(const std::string& directory, const LearnedFor& of);
// Replaces the file; keeps the latest kLearnedCallsMax calls.
Status store_learned(const std::string& directory, Learned learned);

// Adds what was measured since: counts add up, averages are weighted by them, and the choice is the
// newer one.
void merge(const std::vector<LearnedCall>& newer, std::vector<LearnedCall>* into);

}  // namespace weir::cost
