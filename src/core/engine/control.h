// SPDX-License-Identifier: Apache-2.0
// The part of the mapped segment that each rank owns: written by its owner only (except the wake-up
// words), read by every rank. Layout of one rank's part of the segment:
//
//   offset               bytes               what
//   0                    sizeof(Control)     counters, call descriptors, error text
//   kLinesOffset         kLineEntryCount *   line protocol: payload and flag in one cache line
//                        kLineEntryBytes     (two rings, see line_run.h)
//   kStagingOffset       the rest            staging ring: slots of the mapped protocol
//
// All positions are in bytes of the staging ring since the start of the communicator; they only
// grow. A value that a peer wrote is compared, never used as an index.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace weir::engine {

inline constexpr size_t kCacheLineBytes = 64;
inline constexpr uint32_t kPhaseCount = 4;  // signal indices of a mapped program
// A rank may start operation k only when every rank has finished operation k - kOperationsAhead.
// This bounds every ring below. It is large because ranks that share cores take turns: the root of
// a broadcast works ahead for a whole turn.
inline constexpr uint32_t kOperationsAhead = 62;
inline constexpr uint32_t kEndPositions = 64;
inline constexpr uint32_t kMarkSlots = 7;
inline constexpr uint32_t kDescriptorCount = 128;
inline constexpr uint32_t kErrorTextBytes = 1024;
inline constexpr uint32_t kBlamedRanksMax = 64;
inline constexpr uint32_t kAwaitedRanksMax = 1024;
inline constexpr uint32_t kBlockRanksMax = 1024;  // as many as share memory

inline constexpr uint32_t kMutualLineEntries = 2;
inline constexpr uint32_t kRootedLineEntries = 64;
inline constexpr uint32_t kLineEntryCount = kMutualLineEntries + kRootedLineEntries;
inline constexpr uint32_t kLineEntryBytes = 8192;
inline constexpr uint32_t kLinePayloadBytes = 56;  // the other 8 are the flag

// "This rank has finished this phase of all slices before `position`."
struct alignas(kCacheLineBytes) PhaseLine {
  std::atomic<uint64_t> position;
  // (operation sequence << 32 | call mark) of the latest operations, by sequence % 7;
  // written before `position`, so that a rank that sees the position sees which call it belongs to.
  // A rank that is further behind finds the call in the descriptors.
  std::atomic<uint64_t> mark[kMarkSlots];
};

// The call that a rank was asked to make, for comparison and reports. Written after the data is
// published, off the critical path.
struct alignas(kCacheLineBytes) DescriptorLine {
  std::atomic<uint64_t> sequence;  // written last
  std::atomic<uint64_t> mark;      // Context::call_mark, 32 bits
  std::atomic<uint64_t> what;      // see call.h: packed collective, type, fold, root
  std::atomic<uint64_t> count;
  // Window number + 1 and offset of the buffers, 0 = none. all_to_all_v: the first is the longest
  // block of the rank, in elements, and the second is about its input.
  std::atomic<uint64_t> input_window;
  std::atomic<uint64_t> output_window;
};

enum class RankState : uint32_t {
  kJoining = 0,
  kHealthy = 1,
  kFailed = 2,
  kAborted = 3,
  kRevoked = 4  // likewise, but it may still be split and shrunk
};

struct Control {
  struct alignas(kCacheLineBytes) {
    std::atomic<uint32_t> state;  // RankState
    std::atomic<uint32_t> code;   // weir::Code once failed
    std::atomic<uint32_t> gone;   // 1: the rank has destroyed the communicator, in whatever state
    // Updated at every slow check while an operation waits: `beat` counts the checks, `awaited` has
    // a bit for each rank below kAwaitedRanksMax that is waited for.
    std::atomic<uint32_t> beat;
    std::atomic<uint64_t> awaited[kAwaitedRanksMax / 64];
  } health;
  struct alignas(kCacheLineBytes) {
    std::atomic<uint32_t> sleepers;  // set by a peer that sleeps until this rank signals
    std::atomic<uint32_t> wake;      // futex word
  } wakeup;
  struct alignas(kCacheLineBytes) {
    std::atomic<uint64_t> position;  // this rank has finished every slice before it
  } done;
  PhaseLine phase[kPhaseCount];
  DescriptorLine descriptor[kDescriptorCount];
  // Of all_to_all_v, by target: the elements that this rank sends (block_word). Calls use the two
  // rows alternately: who begins a call has finished the one before, and all have read the one
  // before that.
  std::atomic<uint64_t> block_words[2][kBlockRanksMax];
  // Likewise: where the block lies in this rank's input, in elements; written only where the input
  // lies in a window.
  std::atomic<uint64_t> block_offsets[2][kBlockRanksMax];
  // Valid once state is kFailed: the reason, and the first ranks that the failed operation waited
  // for.
  alignas(kCacheLineBytes) char error_text[kErrorTextBytes];
  uint32_t blamed_count;
  uint32_t blamed_ranks[kBlamedRanksMax];
};

inline constexpr size_t kLinesOffset =
    (sizeof(Control) + kLineEntryBytes - 1) / kLineEntryBytes * kLineEntryBytes;
inline constexpr size_t kStagingOffset = kLinesOffset + size_t{kLineEntryCount} * kLineEntryBytes;

// As it stands in phase lines and embedded flags. Records have the fingerprint instead of the mark.
constexpr uint64_t call_flag(uint64_t sequence, uint32_t mark) { return sequence << 32 | mark; }

// A count of elements, and by which call it was written.
constexpr uint64_t block_word(uint64_t sequence, uint64_t count) {
  return sequence << 48 | (count & 0xffff'ffff'ffffu);
}

// Whether a rank has described a call with this sequence number that differs from this rank's.
// False when it has not described it yet, or has described a later call in the same place. A rank
// describes a call before it sends, so the call of any data that has arrived is described.
inline bool called_otherwise(const Control& peer, uint64_t sequence, uint32_t mark) {
  const DescriptorLine& line = peer.descriptor[sequence % kDescriptorCount];
  return line.sequence.load(std::memory_order_acquire) == sequence &&
         line.mark.load(std::memory_order_relaxed) != mark;
}

static_assert(std::atomic<uint64_t>::is_always_lock_free);

}  // namespace weir::engine
