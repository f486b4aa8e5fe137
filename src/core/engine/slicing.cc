// SPDX-License-Identifier: Apache-2.0
#include "core/engine/slicing.h"

#include <algorithm>

#include "core/engine/control.h"
#include "core/engine/line_run.h"

namespace weir::engine {

namespace {

// Below this, non-temporal stores lose even where the peer's core has a cache of its own.
constexpr uint64_t kChooseStoresBytesMin = 8 * 1024;
// Ranks that share a core need long slices for each turn.
constexpr uint64_t kEntryBytes = 64 * 1024;
constexpr uint64_t kEntryBytesShared = 256 * 1024;

uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

// Two ranks that only exchange have nothing to overlap, so only the number of calls counts.
constexpr uint64_t kExchangeSliceBytes = 512 * 1024;

bool only_exchanges(Collective collective, Rank rank_count) {
  return rank_count == 2 &&
         (collective == Collective::kAllGather || collective == Collective::kReduceScatter ||
          collective == Collective::kAllToAll);
}

// A slice is passed on when all of it has come: a slow network is idle meanwhile, for a time in
// which much shorter slices cost next to nothing.
constexpr double kSliceNsMax = 6e6;
constexpr uint64_t kMessageSliceBytesMin = 32 * 1024;
// Of more ranks, which are predicted one by one where hosts differ, a choice would take too long.
constexpr Rank kShortSliceRanksMax = 128;

}  // namespace

uint64_t message_slice_bytes(Collective collective, Rank rank_count, double wire_ns_per_byte) {
  if (only_exchanges(collective, rank_count)) return kExchangeSliceBytes;
  uint64_t bytes = kMessageSliceBytes;
  if (rank_count > kShortSliceRanksMax) return bytes;
  while (bytes > kMessageSliceBytesMin &&
         static_cast<double>(bytes) * wire_ns_per_byte > kSliceNsMax) {
    bytes /= 2;
  }
  return bytes;
}

Slicing choose_slicing(const SlicingQuestion& question) {
  const uint64_t slots = std::max<uint64_t>(1, question.staging_slots);
  Slicing slicing;
  const uint64_t line_bytes = line_slot_bytes(question.chunk_bytes_max);
  if (question.one_signal && question.staging_slots > 0 && line_bytes * slots <= kLineEntryBytes) {
    slicing.embedded_flags = true;
    slicing.slice_bytes = line_bytes;
    slicing.entry_bytes = line_bytes * slots;
    slicing.ring_bytes = slicing.entry_bytes;
    return slicing;
  }
  uint64_t entry_wanted =
      std::min(question.shared_cores ? kEntryBytesShared : kEntryBytes, question.staging_bytes / 2);
  // Where buffers are open, slices only cost signals: as long as without slots.
  if (question.told) {
    entry_wanted =
        std::max(entry_wanted, std::min(slots * kEntryBytes, question.staging_bytes / 4));
  }
  uint64_t slice = question.slice_bytes != 0 ? question.slice_bytes : entry_wanted / slots;
  slice = std::max<uint64_t>(64, slice / 64 * 64);
  slice = std::min(slice, std::max<uint64_t>(64, question.staging_bytes / slots / 2 / 64 * 64));
  slice = std::min(slice, round_up(std::max<uint64_t>(1, question.chunk_bytes_max), 64));
  slicing.slice_bytes = slice;
  slicing.entry_bytes = slice * slots;
  slicing.ring_bytes =
      std::max<uint64_t>(1, question.staging_bytes / slicing.entry_bytes) * slicing.entry_bytes;
  slicing.choose_slot_stores = slicing.choose_output_stores =
      question.chunk_bytes_max * slots >= kChooseStoresBytesMin;
  return slicing;
}

}  // namespace weir::engine
