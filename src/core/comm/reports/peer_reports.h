// SPDX-License-Identifier: Apache-2.0
// PeerReports: what the ranks of a communicator tell each other of their health: in mapped memory
// where they share it, else as notices on the board. Where there is neither, ranks tell nothing.
//
// With the communicator's lock held, but for `failure_of`, `is_gone`, `show_failure` and
// `show_abort`, which any thread may call where memory is shared.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/status.h"
#include "core/comm/reports/board.h"
#include "core/comm/state/comm_state.h"
#include "core/control/network.h"

namespace weir::comm {

class PeerReports {
 public:
  explicit PeerReports(CommState& state) : state_(state) {}
  PeerReports(const PeerReports&) = delete;
  PeerReports& operator=(const PeerReports&) = delete;

  // The ranks are connected, and the context has its segment, if there is one. `network`, nullptr
  // for a single rank, outlives this.
  void open(control::Network* network);

  bool are_mapped() const { return state_.context.mapped(); }
  bool on_board() const { return board_.is_open(); }
  // Whether peers tell about themselves.
  bool are_told() const { return are_mapped() || on_board(); }

  // ---- What peers tell.
  // Finds out which peers have died or cannot be reached, and reads what peers tell.
  void look(uint64_t now_ns);
  uint64_t looked_ns() const { return looked_ns_; }
  // Only reads the board, where the latest look at it is older than `age_ns`.
  void look_at_board(uint64_t now_ns, uint64_t age_ns);

  // Peers that had died by the last look, or that the transport could not reach any more;
  // ascending.
  const std::vector<Rank>& ended() const { return ended_; }
  bool has_ended(Rank peer) const;
  // Whether a peer that has ended is known to be dead: the control network says so, or there is
  // none and the transport does.
  bool has_died(Rank peer) const;
  // The peer has destroyed the communicator.
  bool is_gone(Rank peer) const;
  // The failure that a peer reports; ok when it reports none. Adds the ranks that it blames.
  Status failure_of(Rank peer, std::vector<Rank>* blamed) const;
  bool has_finished(Rank peer, uint64_t sequence) const;
  // The number of the latest collective that the peer is known to have called; 0: of none.
  uint64_t latest_call_of(Rank peer) const;
  bool called_otherwise(Rank peer, uint64_t sequence, uint32_t mark) const;
  // The ranks that a peer waited for by its latest report.
  void collect_awaited_by(Rank peer, std::vector<Rank>* ranks) const;
  uint64_t heard_ns(Rank peer) const;
  // Since when no notice of this rank has reached the peer's host; 0: the latest has, or this is
  // not known.
  uint64_t unreached_ns(Rank peer) const;
  // The report of a peer on the board; nullptr: it has shown none.
  const HealthReport* report_of(Rank peer) const;

  // ---- What this rank tells.
  // How often a rank whose operation waits shows that it lives; 0 where it does not.
  uint64_t show_interval_ns() const;
  // When it did so last. Where memory is shared: 0 once no operation waits.
  uint64_t shown_ns() const { return are_mapped() ? beat_ns_ : board_.shown_ns(); }
  // In mapped memory: shows that this rank lives, and the ranks that its operations wait for.
  void beat(uint64_t now_ns, const std::vector<Rank>& awaited);
  // An operation is done: the rank waits for no other any more, or shows anew for which. One that
  // has failed still shows it: peers may not have read of the failure yet.
  void end_wait() {
    if (beat_ns_ != 0 && !state_.failure.is_set()) end_beats();
  }
  // The report that is shown on the board next, except this rank's state and failure.
  HealthReport& draft() { return board_.draft(); }
  void show(uint64_t now_ns);
  // In mapped memory, at the first call: shows why this rank has failed.
  void show_failure(const Status& status, const std::vector<Rank>& blamed);
  void show_abort();
  void show_gone();

 private:
  std::vector<Rank> died_besides(Rank peer) const;
  // What a peer last showed in mapped memory, and when it was seen to change.
  struct Beat {
    uint32_t count = 0;
    uint64_t heard_ns = 0;
  };

  void end_beats();

  CommState& state_;
  control::Network* network_ = nullptr;
  Board board_;  // where no memory is shared
  std::vector<Beat> beats_;
  uint64_t beat_ns_ = 0;
  uint64_t looked_ns_ = 0;
  std::vector<Rank> ended_;
  SpinLock show_lock_;  // of what show_failure writes
};

}  // namespace weir::comm
