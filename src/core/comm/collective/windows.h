// SPDX-License-Identifier: Apache-2.0
// Windows: memory of the caller's that the ranks of a communicator reach, and how a call says where
// its buffers lie: as a word, made of the number of the window and an offset, that means the same
// on all ranks.
//
// `allocate`, `free`, `add_reachable` and `withdraw_reachable` take the communicator's lock; the
// others are called with it held.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/status.h"
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

  // Memory of the caller's own that every rank reaches: by rank, its address in this process and
  // its length. Called at the same place among the collectives on all ranks, each of which has
  // found that it reaches all. An operation uses it when the buffers of all ranks lie in memory of
  // one such call. Returns the number by which it is withdrawn; 0: no number is left.
  uint64_t add_reachable(std::vector<unsigned char*> addresses, std::vector<uint64_t> bytes);
  // Local: from then on the ranks copy. No operation may be in flight on the memory.
  void withdraw_reachable(uint64_t number);

  // Whether calls have to agree on windows: the same on all ranks.
  bool any() const { return !windows_.empty() || reachable_count_ > 0; }
  // The word of a buffer; 0 when it lies in none.
  uint64_t word_of(const void* buffer, uint64_t bytes) const;
  // The address at which this process reaches the buffer that `peer` describes by `word`; nullptr:
  // it does not. `first`: the word of rank 0.
  unsigned char* at_peer(uint64_t word, uint64_t first, Rank peer, uint64_t bytes) const;

  // Frees all memory that `allocate` has given. `by_transport`: also memory that the transport
  // maps, and which it otherwise unmaps when it is closed.
  void close_all(bool by_transport);

 private:
  struct Window {
    weir_segment_t segment{};  // base nullptr: freed
    bool shared = false;       // every rank maps it; else memory of this rank only
  };
  // The caller's own memory, by rank.
  struct Reachable {
    uint64_t number = 0;
    std::vector<unsigned char*> addresses;
    std::vector<uint64_t> bytes;
  };

  void close(const Window& window);
  const unsigned char* own_part(const Window& window) const;

  CommState& state_;
  uint64_t window_count_ = 0;  // that were ever asked for
  std::vector<Window> windows_;
  std::vector<Reachable> reachable_;
  uint64_t reachable_count_ = 0;  // that were ever added: the same on all ranks
};

}  // namespace weir::comm
