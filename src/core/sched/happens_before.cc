// SPDX-License-Identifier: Apache-2.0
#include "core/sched/happens_before.h"

#include <cstring>

#include "core/sched/clocks.h"

namespace weir::sched {

HappensBefore::HappensBefore(uint32_t thread_count, uint32_t place_count)
    : stride_((thread_count + kClockGranule - 1) / kClockGranule * kClockGranule),
      clocks_(size_t{thread_count} * stride_, 0),
      writes_(place_count),
      reads_of_place_(place_count, kNoRead) {
  for (ThreadId thread = 0; thread < thread_count; ++thread) clock(thread)[thread] = 1;
}

HappensBefore::Snapshot HappensBefore::release(ThreadId thread) {
  Snapshot snapshot;
  if (free_snapshots_.empty()) {
    snapshot = static_cast<Snapshot>(snapshots_.size() / stride_);
    snapshots_.resize(snapshots_.size() + stride_);
  } else {
    snapshot = free_snapshots_.back();
    free_snapshots_.pop_back();
  }
  std::memcpy(snapshots_.data() + size_t{snapshot} * stride_, clock(thread),
              stride_ * sizeof(uint32_t));
  ++clock(thread)[thread];
  return snapshot;
}

void HappensBefore::acquire(ThreadId thread, Snapshot snapshot) {
  join_clocks(clock(thread), snapshots_.data() + size_t{snapshot} * stride_, stride_);
}

HappensBefore::Conflict HappensBefore::read(ThreadId thread, Layout::Place place,
                                            uint32_t op_index) {
  const uint32_t* mine = clock(thread);
  const Write& write = writes_[place];
  if (write.epoch > mine[write.thread]) return {true, write.thread, write.op_index, true};
  uint32_t& head = reads_of_place_[place];
  if (head != kNoRead && reads_[head].thread == thread) {
    reads_[head].epoch = mine[thread];
    reads_[head].op_index = op_index;
    return {};
  }
  uint32_t node = free_read_;
  if (node == kNoRead) {
    node = static_cast<uint32_t>(reads_.size());
    reads_.emplace_back();
  } else {
    free_read_ = reads_[node].next;
  }
  reads_[node] = {thread, mine[thread], op_index, head};
  head = node;
  return {};
}

HappensBefore::Conflict HappensBefore::write(ThreadId thread, Layout::Place place,
                                             uint32_t op_index) {
  const uint32_t* mine = clock(thread);
  Write& write = writes_[place];
  if (write.epoch > mine[write.thread]) return {true, write.thread, write.op_index, true};
  uint32_t& head = reads_of_place_[place];
  while (head != kNoRead) {
    Read& read = reads_[head];
    if (read.epoch > mine[read.thread]) return {true, read.thread, read.op_index, false};
    const uint32_t next = read.next;
    read.next = free_read_;
    free_read_ = head;
    head = next;
  }
  write = {thread, mine[thread], op_index};
  return {};
}

}  // namespace weir::sched
