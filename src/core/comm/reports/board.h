// SPDX-License-Identifier: Apache-2.0
// Board: the health reports of all ranks of a communicator whose ranks share no memory, as notices
// of the control network. Guarded by the communicator's lock.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/comm/reports/health_report.h"
#include "core/control/network.h"

namespace weir::comm {

class Board {
 public:
  struct Peer {
    bool known = false;         // it has shown a readable report
    uint64_t heard_ns = 0;      // when a new report of it was last read; 0: never
    uint64_t unreached_ns = 0;  // since when our notices have not reached it; 0: they have
    HealthReport report;
  };

  // `network` outlives it; its ranks have joined.
  void open(control::Network* network, Rank rank, Rank rank_count);
  bool is_open() const { return !peers_.empty(); }

  // How often a rank whose operation waits shows that it lives.
  uint64_t beat_interval_ns() const { return beat_interval_ns_; }

  // Reads what every peer shows.
  void look(uint64_t now_ns);
  // The report that is shown next; keeps its memory.
  HealthReport& draft() { return draft_; }
  // Shows the draft, with the next beat.
  void show(uint64_t now_ns);
  uint64_t shown_ns() const { return shown_ns_; }
  uint64_t looked_ns() const { return looked_ns_; }

  const Peer& peer(Rank rank) const { return peers_[rank]; }
  Rank rank_count() const { return static_cast<Rank>(peers_.size()); }

 private:
  control::Network* network_ = nullptr;
  Rank rank_ = 0;
  std::vector<Peer> peers_;
  std::vector<uint32_t> versions_;  // of the notices read last
  std::vector<control::Network::Unreached> unreached_;
  std::string notice_;  // the one being read or shown
  HealthReport draft_;
  HealthReport read_;  // the report read last, or the memory of the one that it replaced
  uint64_t beat_interval_ns_ = 0;
  uint64_t shown_ns_ = 0;
  uint64_t looked_ns_ = 0;
  uint64_t seen_count_ = UINT64_MAX;  // of the network's changes
};

}  // namespace weir::comm
