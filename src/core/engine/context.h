// SPDX-License-Identifier: Apache-2.0
// Context: the state that the runs of a communicator's plans share on one rank: the mapped segment,
// the transport, and the counters that order its operations. Owned by the communicator; used by one
// thread at a time (the communicator's lock).
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/base/status.h"
#include "core/base/types.h"
#include "core/engine/call.h"
#include "core/engine/control.h"
#include "weir/plugin.h"

namespace weir::engine {

// The known progress of the peers; read again from shared memory only when it does not suffice.
struct PeerView {
  uint64_t done = 0;
  std::array<uint64_t, kPhaseCount> phase{};
};

class Context {
 public:
  Rank rank = 0;
  Rank rank_count = 1;

  // Transport for send and recv.
  const weir_transport_functions_t* transport = nullptr;
  weir_transport_t* instance = nullptr;

  // Mapped segment; base is nullptr when the transport has none.
  unsigned char* segment_base = nullptr;
  uint64_t segment_stride_bytes = 0;
  uint64_t staging_bytes = 0;
  // This rank has yet to ask for the huge pages of its part: most communicators of a program that
  // makes many move little, and a huge page costs the time of 500 small ones.
  bool lacks_huge_pages = false;

  bool mapped() const { return segment_base != nullptr; }
  Control& control(Rank r) const {
    return *reinterpret_cast<Control*>(segment_base + r * segment_stride_bytes);
  }
  unsigned char* line_entry(Rank r, uint64_t entry) const {
    return segment_base + r * segment_stride_bytes + kLinesOffset + entry * kLineEntryBytes;
  }
  unsigned char* staging(Rank r) const {
    return segment_base + r * segment_stride_bytes + kStagingOffset;
  }

  // Before staging memory is used, and once in a while by communicators that use lines alone.
  void want_huge_pages() {
    if (lacks_huge_pages) [[unlikely]] {
      ask_for_huge_pages();
    }
  }

  // --- Order of operations ---
  uint64_t sequence = 0;      // of the latest operation begun; the first is 1
  uint32_t mark = 0;          // of that operation, see call_mark
  uint64_t position = 0;      // end of the latest operation's part of the ring
  uint64_t entry_bytes = 64;  // ring geometry in use
  uint64_t ring_bytes = 64;
  uint64_t geometry_position = 0;  // where this geometry began
  uint64_t mutual_line_count = 0;  // line operations in which every rank reads from every other
  std::array<uint64_t, kEndPositions> end_position{};  // of operation k at [k % kEndPositions]
  uint64_t all_done = 0;                               // every rank has finished everything before
  std::vector<PeerView> peers;

  // Publishes that this rank has finished all that it has begun. A LineRun does not always do so
  // when it ends; before an operation of another protocol begins, and at the end, it is done.
  void publish_done() { control(rank).done.position.store(position, std::memory_order_release); }
  // Re-reads every peer's done counter.
  void refresh_done();
  // True when every rank has finished everything before `wanted`.
  bool all_done_before(uint64_t wanted) {
    if (all_done >= wanted) [[likely]] {
      return true;
    }
    refresh_done();
    return all_done >= wanted;
  }
  // Takes the next `slice_count` entries of `new_entry_bytes` in a ring of `new_ring_bytes`.
  // Returns the position of the first. Also begins the next sequence number.
  uint64_t begin_operation(uint64_t new_entry_bytes, uint64_t new_ring_bytes,
                           uint64_t slice_count) {
    if (new_entry_bytes != entry_bytes || new_ring_bytes != ring_bytes) {
      entry_bytes = new_entry_bytes;
      ring_bytes = new_ring_bytes;
      geometry_position = position;
    }
    const uint64_t start = position;
    position += slice_count * entry_bytes;
    ++sequence;
    end_position[sequence % kEndPositions] = position;
    return start;
  }
  // What tells the next call from others: its fingerprint and those of all calls before it. So
  // ranks that once make different calls, none of which waits for another rank, learn of it in the
  // next call that does.
  uint32_t call_mark(uint32_t call_fingerprint) const {
    constexpr uint32_t kOdd = 0x9e3779b1u;  // multiplying by it loses nothing
    return call_fingerprint ^ (mark * kOdd);
  }
  // The same for a call that has begun or is the next one.
  uint32_t call_mark(uint32_t call_fingerprint, uint64_t of_sequence) const {
    return of_sequence == sequence ? mark : call_mark(call_fingerprint);
  }
  // Of the operation that has just begun.
  uint32_t begin_mark(uint32_t call_fingerprint) { return mark = call_mark(call_fingerprint); }

  // Whether every peer has finished operation k - kOperationsAhead, as the start of operation k
  // requires.
  bool may_begin() {
    const uint64_t next = sequence + 1;
    return next <= kOperationsAhead ||
           all_done_before(end_position[(next - kOperationsAhead) % kEndPositions]);
  }
  uint64_t ring_offset(uint64_t at) const { return (at - geometry_position) % ring_bytes; }

  // Publishes the call that has the current sequence number. `what`: the call's pack_what.
  void describe_call(uint64_t what, uint64_t count) { describe(sequence, what, count, mark, 0, 0); }
  // Publishes the next call, and the value on which the ranks must agree before it begins
  // (DescriptorLine::input_window).
  void describe_next_call(const Call& call, uint32_t call_fingerprint, uint64_t input_window,
                          uint64_t output_window) {
    describe(sequence + 1, pack_what(call), call.count, call_mark(call_fingerprint), input_window,
             output_window);
  }
  // Withdraws the buffers of operations that will never complete. No messages are possible after
  // it.
  void quiesce() {
    if (instance != nullptr && (transport->caps.bits & WEIR_CAP_QUIESCE) != 0) {
      transport->quiesce(instance);
    }
  }
  // Wakes the peers that sleep until this rank signals. Cheap when there are none.
  void wake_sleepers() {
    if (control(rank).wakeup.sleepers.load(std::memory_order_relaxed) != 0) [[unlikely]] {
      wake_all();
    }
  }
  void wake_all();

 private:
  void ask_for_huge_pages();

  // Kept small: every warm call runs it.
  void describe(uint64_t of_sequence, uint64_t what, uint64_t count, uint32_t of_call,
                uint64_t input_window, uint64_t output_window) {
    if (!mapped()) return;
    DescriptorLine& line = control(rank).descriptor[of_sequence % kDescriptorCount];
    // It was published before the call began, to agree on it: peers may still be reading it.
    if (line.sequence.load(std::memory_order_relaxed) == of_sequence) return;
    line.mark.store(of_call, std::memory_order_relaxed);
    line.what.store(what, std::memory_order_relaxed);
    line.count.store(count, std::memory_order_relaxed);
    line.input_window.store(input_window, std::memory_order_relaxed);
    line.output_window.store(output_window, std::memory_order_relaxed);
    line.sequence.store(of_sequence, std::memory_order_release);
  }
};

}  // namespace weir::engine
