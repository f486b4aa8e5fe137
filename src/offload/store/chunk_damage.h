// SPDX-License-Identifier: Apache-2.0
// Damage found in a committed state, and the state that was given up for it. Values; no thread
// rule.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "offload/store/store_id.h"

namespace weir::offload {

// Called with the chunks read so far and their total.
using ScanProgress = std::function<void(uint64_t done, uint64_t total)>;

inline constexpr size_t kBadChunksNamed = 8;

struct ChunkDamage {
  uint64_t bad_count = 0;    // 0: every chunk that was read is whole
  uint64_t chunk_count = 0;  // of the state
  uint64_t epoch = 0;
  uint64_t step = 0;
  std::vector<uint64_t> chunks;  // the first kBadChunksNamed, in ascending order
  std::string file;              // of the first one
  uint64_t offset_bytes = 0;     // in the file
  std::string why;
  // Adds a bad chunk that was not added before.
  void add(uint64_t chunk, const std::string& in_file, uint64_t at_bytes, const std::string& found);
  std::string text() const;  // one sentence without its full stop
};

// Describes a store that went back to the commit before the newest.
struct Fallback {
  enum class Cause : uint8_t {
    kBadChunk,          // chunks of the newest commit are bad
    kUnreadableRecord,  // the newest record cannot be read in any copy; it may never have been
                        // whole
  };
  Cause cause = Cause::kBadChunk;
  ChunkDamage damage;       // kBadChunk
  uint64_t lost_epoch = 0;  // what was given up
  uint64_t lost_step = 0;   // 0 with kUnreadableRecord: only the record knew
  uint64_t epoch = 0;       // what counts now
  uint64_t step = 0;
  std::string text() const;
};

// The files of the committed state, for a reader other than the store.
struct ScrubTarget {
  StoreId id;
  uint64_t epoch = 0;
  uint64_t step = 0;
  uint64_t writing = 0;
  uint64_t chunk_count = 0;
  uint64_t chunk_bytes = 0;
  std::vector<std::string> files;  // of the slot, directory by directory
};

}  // namespace weir::offload
