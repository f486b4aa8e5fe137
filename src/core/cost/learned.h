// SPDX-License-Identifier: Apache-2.0
// What calls took in earlier runs, by algorithm: values, and the form in which rank 0 tells them to
// the other ranks. learned_file.h keeps them between runs. Pure; thread-safe.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/algo/algorithm.h"
#include "core/base/status.h"
#include "core/base/types.h"

namespace weir::cost {

// Calls that share a decision. The root and the fold make no difference to it.
struct CallShape {
  Collective collective = Collective::kAllReduce;
  algo::BlockLengths lengths = algo::BlockLengths::kEqual;
  DataType type = DataType::kFloat32;
  bool in_place = false;    // not of collectives with a root, where only the root knows
  bool in_windows = false;  // all ranks' buffers are windows
  uint64_t bytes = 0;       // of the largest buffer of a rank

  auto operator<=>(const CallShape&) const = default;  // NOLINT(modernize-use-nullptr)
};

// "all_reduce of 64 KiB float32 on 4 ranks, in place"
std::string describe(const CallShape& shape, Rank rank_count);

struct AlgorithmTime {
  std::string algorithm;
  double predicted_ns = 0;
  // Calls of one rank that were measured; 0: none, and the times below are 0.
  uint64_t count = 0;
  double least_ns = 0;    // of all ranks
  double average_ns = 0;  // over calls and ranks
  // The median over calls, averaged over ranks; of a collective with a root, the greatest of ranks.
  double middle_ns = 0;
};

struct LearnedCall {
  CallShape shape;
  std::string choice;                // the algorithm that was chosen
  std::string reason;                // why
  int64_t written = 0;               // seconds since 1970: when it was last measured
  std::vector<AlgorithmTime> times;  // of the candidates, distinct

  const AlgorithmTime* find(std::string_view algorithm) const;
};

// An algorithm that was measured less often says nothing.
inline constexpr uint64_t kLearnedCountMin = 8;
// A measured choice is changed only for one that is faster by more than this.
inline constexpr double kLearnedGainMin = 1.05;

// The times that count for choices, which all ranks of a communicator have.
class LearnedTimes {
 public:
  LearnedTimes() = default;
  // Of algorithms that were measured kLearnedCountMin times or more; calls with less than two of
  // them are left out.
  explicit LearnedTimes(const std::vector<LearnedCall>& calls);

  bool empty() const { return by_shape_.empty(); }
  // nullptr: nothing is known of such calls.
  const std::vector<AlgorithmTime>* find(const CallShape& shape) const;

  // JSON: an array of [collective, lengths, type, in place, in windows, bytes, times], with numbers
  // for the first five, and times an array of [algorithm, count, middle_ns].
  std::string pack() const;
  // kRefused: these are no such bytes.
  static Result<LearnedTimes> unpack(std::string_view bytes);

 private:
  std::map<CallShape, std::vector<AlgorithmTime>> by_shape_;
};

}  // namespace weir::cost
