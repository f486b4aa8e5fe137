// SPDX-License-Identifier: Apache-2.0
// TimesOfRanks: rank 0 hears what the calls of all ranks took, by decision and algorithm. The other
// ranks tell it by messages of the control network, and no rank ever waits: a rank tells its sums
// after 1, 2, 4, 8, ... measured calls and when it ends the communicator. So rank 0, when it ends
// first, knows of each rank at least half of the calls that were measured, but for those of the
// last moment; what was told after that is not missed by anyone.
//
// Messages on channel kChannel, integers and IEEE doubles little-endian:
//
//   offset  bytes  field
//        0      4  magic "WTIM"
//        4      2  version, 1
//        6      2  number of entries, at least 1
//        8    ...  per entry: key (8, cost::times_key), calls (8), their sum (8), the least (8) and
//                  the median (8) of them, in nanoseconds
//
// With the communicator's lock held, or after the last operation.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/control/network.h"
#include "core/cost/decision_log.h"

namespace weir::comm {

class TimesOfRanks {
 public:
  // Ranks beyond these tell nothing: rank 0 would hold a connection for each.
  static constexpr Rank kTellingRanksMax = 512;
  static constexpr uint8_t kChannel = 1;

  // `network`: nullptr for a single rank; outlives this, and its ranks have joined.
  void open(control::Network* network, Rank rank, Rank rank_count);

  // After each call that was measured; `explored`: as PlannerOptions::on_measured has it.
  void measured(const cost::DecisionRecord& record, const cost::ExploredTimes* explored);
  // At the end: the other ranks tell what they have not told yet; rank 0 takes what has come.
  void conclude(const cost::DecisionLog& decisions);
  // By cost::times_key. On rank 0, after `conclude`; empty on the others.
  const cost::TimesByKey& all() const { return all_; }

 private:
  struct Sums {
    uint64_t count = 0;
    double sum_ns = 0;
    double least_ns = 0;
    double middle_ns = 0;
  };
  static Sums sums_of(const cost::MeasuredTimes& times);
  static std::string pack(const std::vector<std::pair<uint64_t, Sums>>& entries);
  static bool unpack(const std::string& message, std::map<uint64_t, Sums>* into);
  void hear();

  control::Network* network_ = nullptr;
  Rank rank_ = 0;
  Rank rank_count_ = 1;
  std::map<uint64_t, uint64_t> told_;            // calls, by key
  std::vector<std::map<uint64_t, Sums>> heard_;  // on rank 0, of each rank
  cost::TimesByKey all_;
};

}  // namespace weir::comm
