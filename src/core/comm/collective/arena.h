// SPDX-License-Identifier: Apache-2.0
// Arena: memory of each rank that every rank of a communicator reaches, from which this rank takes
// buffers by itself. It owns its mapping of all ranks' memory, and so outlives the communicator:
// from then on it is memory like any other.
//
// `allocate`, `free` and `usage` may be called from any thread; they wait for no peer and take no
// lock but the arena's own. The others are called by one thread at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "core/base/process_generation.h"
#include "core/base/status.h"
#include "core/comm/collective/range_allocator.h"
#include "weir/plugin.h"

namespace weir::comm {

class Communicator;

class Arena {
 public:
  // A mapping of its own of `segment`, in which this rank's part is `own_rank`; the caller may then
  // close the segment. `bytes` of each part are used.
  static Result<std::shared_ptr<Arena>> of_segment(const weir_segment_t& segment, uint32_t own_rank,
                                                   uint32_t rank_count, uint64_t bytes);
  // Memory of this process alone, for transports without windows.
  static Result<std::shared_ptr<Arena>> alone(uint64_t bytes);

  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // In a child of the process that made it: unmaps the child's copy, and leaves the rest as it is,
  // since another thread of the parent may have been in a call.
  static void leave_to_parent(std::shared_ptr<Arena> arena);

  struct Usage {
    uint64_t bytes;
    uint64_t used_bytes;
    uint64_t largest_free_bytes;
    uint64_t buffer_count;
  };
  Result<void*> allocate(uint64_t bytes);
  Status free(void* memory);
  Usage usage() const;

  // Of all ranks, in this process.
  const weir_segment_t& segment() const { return segment_; }
  bool is_shared() const { return is_shared_; }
  unsigned char* own() const { return own_; }
  uint64_t bytes() const { return segment_.bytes_per_rank; }
  const MakingProcess& maker() const { return maker_; }

  // The communicator that made it, as long as that lives.
  Communicator* communicator() const { return communicator_.load(); }
  void set_communicator(Communicator* communicator) { communicator_.store(communicator); }
  // What this rank has read and written in calls that use windows: see weir_arena_usage_t. Kept
  // when the communicator ends.
  std::atomic<uint64_t> touched_bytes{0};

 private:
  Arena(const weir_segment_t& segment, unsigned char* own, uint64_t mapped_bytes, bool is_shared);

  const MakingProcess maker_;
  weir_segment_t segment_;
  unsigned char* own_;
  uint64_t mapped_bytes_;
  bool is_shared_;
  std::atomic<Communicator*> communicator_{nullptr};
  mutable std::mutex mutex_;
  RangeAllocator ranges_;
};

}  // namespace weir::comm
