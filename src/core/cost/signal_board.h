// SPDX-License-Identifier: Apache-2.0
// SignalBoard: which signals were given where programs are followed in time, and when. A signal to
// all ranks is one record. Ranks are below 2^22, indices below 2^20. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "core/base/types.h"

namespace weir::cost {

// A Record has the `time`, in picoseconds, at which the signal was given.
template <typename Record>
class SignalBoard {
 public:
  // Signals to all ranks are those of the ranks below `sender_count`.
  SignalBoard(Rank sender_count, uint64_t signal_count)
      : signal_count_(signal_count),
        to_all_(size_t{sender_count} * signal_count),
        is_to_one_(signal_count, false) {}

  // Records of one sender and index come in the order of time.
  void give_all(Rank sender, uint32_t index, const Record& record) {
    to_all_[size_t{sender} * signal_count_ + index].push_back(record);
  }
  void give(Rank sender, Rank target, uint32_t index, const Record& record) {
    to_one_[key_of(sender, target, index)].push_back(record);
    is_to_one_[index] = true;
  }

  // The `value`-th signal (from 1) of `sender` to `target`, or nullptr if it was not given yet.
  // Those to all ranks are those of `follower`, which stands for the sender or is the sender.
  const Record* find(Rank sender, Rank follower, Rank target, uint32_t index,
                     uint64_t value) const {
    const auto& all = to_all_[size_t{follower} * signal_count_ + index];
    const auto found =
        is_to_one_[index] ? to_one_.find(key_of(sender, target, index)) : to_one_.end();
    if (found == to_one_.end()) return value <= all.size() ? &all[value - 1] : nullptr;
    const auto& one = found->second;
    if (value > all.size() + one.size()) return nullptr;
    if (all.empty()) return &one[value - 1];
    size_t i = 0;
    size_t j = 0;
    const Record* record = nullptr;
    while (i + j < value) {
      const bool from_all = j == one.size() || (i < all.size() && all[i].time <= one[j].time);
      record = from_all ? &all[i++] : &one[j++];
    }
    return record;
  }

 private:
  static uint64_t key_of(Rank sender, Rank target, uint32_t index) {
    return uint64_t{target} << 42 | uint64_t{sender} << 20 | index;
  }

  uint64_t signal_count_;
  std::vector<std::vector<Record>> to_all_;  // [sender * signal_count + index]
  std::unordered_map<uint64_t, std::vector<Record>> to_one_;
  std::vector<bool> is_to_one_;  // [index]: some are in to_one_
};

}  // namespace weir::cost
