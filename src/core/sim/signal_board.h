// SPDX-License-Identifier: Apache-2.0
// SignalBoard: when each signal was given, and by which chain of dependences. A signal to all ranks
// is one record. Ranks are below 2^22, indices below 2^20. Not thread-safe.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "core/base/types.h"
#include "core/sim/message_pool.h"

namespace weir::sim {

struct SignalRecord {
  Picoseconds time = 0;  // given; latency comes on top
  Path path;
  uint64_t hops = 0;
};

class SignalBoard {
 public:
  SignalBoard(Rank rank_count, uint64_t signal_count)
      : signal_count_(signal_count), to_all_(size_t{rank_count} * signal_count) {}

  // Records of one sender and index come in time order.
  void give_all(Rank sender, uint32_t index, const SignalRecord& record) {
    to_all_[size_t{sender} * signal_count_ + index].push_back(record);
  }
  void give(Rank sender, Rank target, uint32_t index, const SignalRecord& record) {
    to_one_[key_of(sender, target, index)].push_back(record);
  }

  // The `value`-th signal (from 1) of (sender -> target, index), or nullptr if it was not given
  // yet.
  const SignalRecord* find(Rank sender, Rank target, uint32_t index, uint64_t value) const {
    const auto& all = to_all_[size_t{sender} * signal_count_ + index];
    if (to_one_.empty()) return value <= all.size() ? &all[value - 1] : nullptr;
    const auto found = to_one_.find(key_of(sender, target, index));
    if (found == to_one_.end()) return value <= all.size() ? &all[value - 1] : nullptr;
    return nth_of_both(all, found->second, value);
  }

 private:
  static uint64_t key_of(Rank sender, Rank target, uint32_t index) {
    return (uint64_t{target} << 42) | (uint64_t{sender} << 20) | index;
  }
  static const SignalRecord* nth_of_both(const std::vector<SignalRecord>& a,
                                         const std::vector<SignalRecord>& b, uint64_t value) {
    if (value > a.size() + b.size()) return nullptr;
    if (a.empty()) return &b[value - 1];
    size_t i = 0;
    size_t j = 0;
    const SignalRecord* record = nullptr;
    while (i + j < value) {
      const bool from_a = j == b.size() || (i < a.size() && a[i].time <= b[j].time);
      record = from_a ? &a[i++] : &b[j++];
    }
    return record;
  }

  uint64_t signal_count_;
  std::vector<std::vector<SignalRecord>> to_all_;  // [sender * signal_count + index]
  std::unordered_map<uint64_t, std::vector<SignalRecord>> to_one_;
};

}  // namespace weir::sim
