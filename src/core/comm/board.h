// SPDX-License-Identifier: Apache-2.0
// Board: the standings of all ranks of a communicator whose ranks share no memory, over the notices
// of its transport. Guarded by the communicator's lock, as the transport is.
#pragma once

#include <cstdint>
#include <vector>

#include "core/comm/standing.h"
#include "core/engine/context.h"

namespace weir::comm {

class Board {
 public:
  struct Peer {
    bool known = false;         // it has shown something readable
    uint64_t heard_ns = 0;      // when something new of it was last read; 0: never
    uint64_t unreached_ns = 0;  // since when what we show has not come to it; 0: it has
    Standing standing;
  };

  // After connect. Stays closed where memory is mapped, or where the transport has no notices.
  void open(const engine::Context& context);
  bool is_open() const { return !peers_.empty(); }

  // How often a rank whose operation waits shows that it lives.
  uint64_t beat_interval_ns() const { return beat_interval_ns_; }

  // Reads what every peer shows.
  void look(uint64_t now_ns);
  // What is shown next; keeps its memory.
  Standing& draft() { return draft_; }
  // Shows the draft, with the next beat.
  void show(uint64_t now_ns);
  uint64_t shown_ns() const { return shown_ns_; }
  uint64_t looked_ns() const { return looked_ns_; }

  const Peer& peer(Rank rank) const { return peers_[rank]; }
  Rank rank_count() const { return static_cast<Rank>(peers_.size()); }

 private:
  const engine::Context* context_ = nullptr;
  std::vector<Peer> peers_;
  Standing draft_;
  Standing read_;  // what was read last, or the memory of what it took the place of
  uint64_t beat_interval_ns_ = 0;
  uint64_t shown_ns_ = 0;
  uint64_t looked_ns_ = 0;
};

}  // namespace weir::comm
