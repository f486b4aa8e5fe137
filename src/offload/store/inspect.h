// SPDX-License-Identifier: Apache-2.0
// inspect: reads a whole store or checkpoint, changes nothing, and reports what it found; weir-fsck
// prints the report. Holds the store's lock while it reads. Same thread as the Disk.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "offload/disk/disk.h"
#include "offload/store/metadata.h"

namespace weir::offload {

enum class Verdict : uint8_t {
  kGood = 0,         // the committed state is whole, and nothing is damaged
  kRecoverable = 1,  // damage, but the committed state or the one before it is whole
  kLost = 2,         // no whole state
};

struct BadChunk {
  uint64_t chunk = 0;
  std::string why;
};

struct SlotReport {
  bool present = false;       // a checkpoint has one slot
  std::string missing;        // why the slot cannot be read at all, when it cannot
  bool blocked = false;       // missing, but opening does not recreate it: a file is there
  std::string grown;          // of a file that is longer than its chunks
  uint64_t state_chunks = 0;  // of the state that the commit record names
  uint64_t other_chunks = 0;  // sound, of another writing: a step that was not committed
  uint64_t empty_chunks = 0;  // zero, in a file that was recreated or not written yet
  uint64_t bad_chunks = 0;
  std::vector<BadChunk> first_bad;  // some of them
};

struct InspectReport {
  Metadata metadata;
  std::array<SlotReport, 2> slots;
  uint64_t chunk_count = 0;
  bool whole(uint32_t slot) const;  // committed, and every chunk is there
  // Whether chunks of the other slot are bad although it was committed and no later step wrote to
  // it.
  bool other_slot_is_suspicious() const;
  Verdict verdict() const;
  std::string summary() const;  // one sentence
};

// Counts the chunks of both slots.
using InspectProgress = std::function<void(uint64_t done, uint64_t total)>;

// An error when the store cannot be examined: not a store, in use (kRefused), another version
// (kUnsupported), a directory left out, no readable metadata. `*lost` tells whether the error means
// that the state is lost (damage) rather than that it could not be examined.
Result<InspectReport> inspect(Disk& disk, const std::vector<std::string>& directories,
                              uint64_t timeout_ms, const InspectProgress& progress, bool* lost,
                              uint64_t lock_wait_ms = 0);

}  // namespace weir::offload
