// SPDX-License-Identifier: Apache-2.0
// Windows: memory of the caller's that the ranks of a communicator reach, and how a call says where
// its buffers lie: as a word, made of the number of the window and an offset, that means the same
// on all ranks.
//
// `allocate`, `free`, `create_arena`, `destroy_arena`, `add_reachable` and `withdraw_reachable`
// take the communicator's lock; the others are called with it held.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/status.h"
#include "core/comm/collective/arena.h"
#include "core/comm/state/comm_state.h"
#include "weir/plugin.h"

namespace weir::comm {

class Windows {
 public:
  explicit Windows(CommState& state) : state_(state) {}
  Windows(const Windows&) = delete;
  Windows& operator=(const Windows&) = delete;

  // Symmetric memory; see weir_mem_alloc. Collective where the transport has windows.
  Result<void*> allocate(uint64_t bytes);
  Status free(void* memory);
  // Of memory that `allocate` has given; 0: it has not.
  uint64_t bytes_of(const void* memory) const;

  // Collective where the transport has windows; see weir_arena_create.
  Result<std::shared_ptr<Arena>> create_arena(uint64_t bytes);
  // Local: this rank's calls use it no more.
  void destroy_arena(const Arena& arena);

  // Memory of the caller's own that every rank reaches: by rank, its address in this process and
  // its length. Called at the same place among the collectives on all ranks, each of which has
  // found that it reaches all. An operation uses it when the buffers of all ranks lie in memory of
  // one such call. Returns the number by which it is withdrawn; 0: no number is left.
  uint64_t add_reachable(std::vector<unsigned char*> addresses, std::vector<uint64_t> bytes);
  // Local: from then on the ranks copy. No operation may be in flight on the memory.
  void withdraw_reachable(uint64_t number);

  // What the ranks have to do before a call may use windows; the same on all ranks.
  enum class Need : uint8_t {
    kNothing,  // there are none
    kTell,     // an arena was made: each rank tells where its buffers lie with its first signal
    kAgree     // before the call. With reachable_: a rank may know memory unknown to another
  };
  Need need() const {
    if (reachable_count_ > 0) return Need::kAgree;
    if (arena_count_ > 0) return Need::kTell;
    return windows_.empty() ? Need::kNothing : Need::kAgree;
  }
  // Whether there is nothing but arenas; likewise.
  bool only_arenas() const { return windows_.empty() && reachable_count_ == 0; }
  // The word of a buffer; 0 when it lies in none. Where all ranks must draw the same conclusion
  // from it, not `in_arenas`: a rank may have destroyed the arena.
  uint64_t word_of(const void* buffer, uint64_t bytes, bool in_arenas = true) const;
  // The address at which this process reaches the buffer that `peer` describes by `word`; nullptr:
  // it does not. `first`: the word of rank 0.
  unsigned char* at_peer(uint64_t word, uint64_t first, Rank peer, uint64_t bytes) const;

  // Adds what this rank has read and written in a call that used buffers of other ranks.
  void add_touched(uint64_t bytes);

  // Frees all memory that `allocate` has given, and lets go of the arenas. `by_transport`: also
  // memory that the transport maps, and which it otherwise unmaps when it is closed.
  void close_all(bool by_transport);

 private:
  struct Window {
    weir_segment_t segment{};  // base nullptr: freed
    bool shared = false;       // every rank maps it; else memory of this rank only
  };
  struct NumberedArena {
    uint64_t number = 0;
    std::shared_ptr<Arena> arena;
  };
  // The caller's own memory, by rank.
  struct Reachable {
    uint64_t number = 0;
    std::vector<unsigned char*> addresses;
    std::vector<uint64_t> bytes;
  };

  // Opens a window by the transport; the same on all ranks.
  Status open_segment(const char* function, uint64_t bytes, weir_segment_t* segment);
  Status check_size(const char* function, uint64_t bytes) const;
  void close(const Window& window);
  const unsigned char* own_part(const Window& window) const;

  CommState& state_;
  uint64_t window_count_ = 0;  // that were ever asked for
  std::vector<Window> windows_;
  std::vector<NumberedArena> arenas_;
  // That were ever made, the same on all ranks: each destroys them at times of its own, so that no
  // number is given twice.
  uint64_t arena_count_ = 0;
  std::vector<Reachable> reachable_;
  uint64_t reachable_count_ = 0;  // that were ever added: the same on all ranks
};

}  // namespace weir::comm
