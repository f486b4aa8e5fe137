// SPDX-License-Identifier: Apache-2.0
// RadixQueue: a priority queue for times that never fall below the last one popped, as in a
// discrete event simulation (Ahuja, Mehlhorn, Orlin and Tarjan, "Faster algorithms for the shortest
// path problem", 1990). Push is O(1); an entry moves at most 64 times before it is popped, and in a
// simulation, where many entries have the same time, once or twice. Entries with equal times leave
// in the order in which they were pushed. Not thread-safe.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/check.h"

namespace weir::cost {

class RadixQueue {
 public:
  struct Entry {
    uint64_t time;
    uint32_t index;
    uint32_t kind;
  };

  bool empty() const { return first_.size() == popped_ && filled_ == 0; }

  // time >= that of the last entry popped.
  void push(const Entry& entry) {
    WEIR_CHECK(entry.time >= last_, "simulated time goes forward");
    place(entry);
  }

  // Not when empty.
  Entry pop() {
    if (popped_ == first_.size()) refill();
    const Entry entry = first_[popped_++];
    if (popped_ == first_.size()) {
      first_.clear();
      popped_ = 0;
    }
    return entry;
  }

 private:
  // first_ holds the entries with time == last_; bucket i those whose highest bit that differs from
  // last_ is bit i. So entries with equal times are always in the same bucket, in order.
  void place(const Entry& entry) {
    const uint64_t difference = entry.time ^ last_;
    if (difference == 0) {
      first_.push_back(entry);
      return;
    }
    const int bucket = 63 - std::countl_zero(difference);
    buckets_[static_cast<size_t>(bucket)].push_back(entry);
    filled_ |= uint64_t{1} << bucket;
  }

  void refill() {
    WEIR_CHECK(filled_ != 0, "pop of an empty queue");
    const int lowest = std::countr_zero(filled_);
    std::vector<Entry>& bucket = buckets_[static_cast<size_t>(lowest)];
    filled_ &= filled_ - 1;
    if (bucket.size() == 1) {
      last_ = bucket.front().time;
      first_.push_back(bucket.front());
      bucket.clear();
      return;
    }
    uint64_t least = bucket.front().time;
    for (const Entry& entry : bucket) least = entry.time < least ? entry.time : least;
    last_ = least;
    for (const Entry& entry : bucket) place(entry);
    bucket.clear();
  }

  uint64_t last_ = 0;
  uint64_t filled_ = 0;  // bit i: bucket i is not empty
  size_t popped_ = 0;    // entries of first_ that have left
  std::vector<Entry> first_;
  std::array<std::vector<Entry>, 64> buckets_;
};

}  // namespace weir::cost
