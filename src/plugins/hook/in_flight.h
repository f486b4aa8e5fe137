// SPDX-License-Identifier: Apache-2.0
// InFlight: a hook's records of the operations in flight, by their address (their words belong to
// the inner transport). A fixed table with linear probing; nothing allocates after construction.
// One thread.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <vector>

#include "weir/plugin.h"

namespace weir::plugins::hook {

template <class Record>
class InFlight {
 public:
  static constexpr size_t kCapacity = 4096;  // operations; a power of two

  InFlight() : entries_(2 * kCapacity) {}

  // A fresh record, or null when the table is full or the operation is in it already.
  Record* add(const weir_transport_op_t* op) {
    if (count_ == kCapacity) return nullptr;
    size_t i = home(op);
    while (entries_[i].op != nullptr) {
      if (entries_[i].op == op) return nullptr;
      i = next(i);
    }
    entries_[i].op = op;
    entries_[i].record = Record{};
    ++count_;
    return &entries_[i].record;
  }

  // Valid until the next add or remove.
  Record* find(const weir_transport_op_t* op) {
    for (size_t i = home(op); entries_[i].op != nullptr; i = next(i)) {
      if (entries_[i].op == op) return &entries_[i].record;
    }
    return nullptr;
  }

  void remove(const weir_transport_op_t* op) {
    size_t hole = home(op);
    while (entries_[hole].op != op) {
      if (entries_[hole].op == nullptr) return;
      hole = next(hole);
    }
    // Moves later entries of the run back, so that no search stops short at the hole.
    for (size_t i = next(hole); entries_[i].op != nullptr; i = next(i)) {
      const size_t distance = (i - home(entries_[i].op)) % entries_.size();
      if (distance >= (i - hole) % entries_.size()) {
        entries_[hole] = entries_[i];
        hole = i;
      }
    }
    entries_[hole].op = nullptr;
    --count_;
  }

  // Removes the operations for which `goes(op, record)` is true.
  template <typename Goes>
  void remove_if(const Goes& goes) {
    for (Entry& entry : entries_) {
      // Another operation may move to the place of the removed one.
      while (entry.op != nullptr && goes(entry.op, entry.record)) remove(entry.op);
    }
  }

  size_t count() const { return count_; }
  bool full() const { return count_ == kCapacity; }

 private:
  struct Entry {
    const weir_transport_op_t* op = nullptr;
    Record record{};
  };

  size_t home(const weir_transport_op_t* op) const {
    const uint64_t hash = reinterpret_cast<uint64_t>(op) * 0x9e3779b97f4a7c15u;
    return static_cast<size_t>(hash >> 32) % entries_.size();
  }
  size_t next(size_t i) const { return (i + 1) % entries_.size(); }

  std::vector<Entry> entries_;
  size_t count_ = 0;
};

}  // namespace weir::plugins::hook
