// SPDX-License-Identifier: Apache-2.0
// HappensBefore: finds unordered accesses with vector clocks and an epoch per access (after
// Flanagan and Freund, "FastTrack", PLDI 2009). A thread is one lane of one rank. Accesses are
// ordered by their lane, by a message (send before its recv) and by a signal (before the wait that
// needs it). Flow control orders nothing: a program must be right at any credit.
//
// Used by one verification on one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "core/sched/layout.h"

namespace weir::sched {

class HappensBefore {
 public:
  using ThreadId = uint32_t;
  using Snapshot = uint32_t;

  // An earlier access in conflict with the present one.
  struct Conflict {
    bool found = false;
    ThreadId thread = 0;
    uint32_t op_index = 0;
    bool was_write = false;
  };

  HappensBefore(uint32_t thread_count, uint32_t place_count);

  // The clock of `thread` for others to acquire; it does not cover later accesses of `thread`.
  Snapshot release(ThreadId thread);
  void acquire(ThreadId thread, Snapshot snapshot);
  // No one will acquire it again.
  void drop(Snapshot snapshot) { free_snapshots_.push_back(snapshot); }

  Conflict read(ThreadId thread, Layout::Place place, uint32_t op_index);
  Conflict write(ThreadId thread, Layout::Place place, uint32_t op_index);

  // The number of releases of `other` so far plus one.
  uint32_t now(ThreadId other) const { return clock(other)[other]; }
  // Whether accesses of `other` before its release number `epoch` are ordered before `thread`'s
  // next one.
  bool knows(ThreadId thread, ThreadId other, uint32_t epoch) const {
    return clock(thread)[other] >= epoch;
  }

 private:
  static constexpr uint32_t kNoRead = 0xffffffffu;
  struct Write {
    ThreadId thread = 0;
    uint32_t epoch = 0;  // 0: never
    uint32_t op_index = 0;
  };
  struct Read {
    ThreadId thread;
    uint32_t epoch;
    uint32_t op_index;
    uint32_t next;
  };

  uint32_t* clock(ThreadId thread) { return clocks_.data() + size_t{thread} * stride_; }
  const uint32_t* clock(ThreadId thread) const { return clocks_.data() + size_t{thread} * stride_; }

  uint32_t stride_;
  std::vector<uint32_t> clocks_;
  std::vector<uint32_t> snapshots_;
  std::vector<Snapshot> free_snapshots_;
  std::vector<Write> writes_;
  std::vector<uint32_t> reads_of_place_;  // head of a list in reads_
  std::vector<Read> reads_;
  uint32_t free_read_ = kNoRead;
};

}  // namespace weir::sched
