// SPDX-License-Identifier: Apache-2.0
// Meeting: how the ranks of a communicator come to hold their connections. Every rank listens at
// the addresses of its interfaces, connects to all ranks below its own, and proves itself on every
// connection (handshake.h).
//
// Which of a peer's addresses is used is found out by connecting: they are tried in the order in
// which they are likely to be good (ways.h), each a little later than the one before, and the first
// at which the peer answers in our protocol wins. Ways that could be rails side by side are tried
// together: those that have answered a quarter of a second after the first one are the rails. Who
// connects has the choice; the proof tells the other one.
//
// Nobody can hold a meeting up (acceptor.h). One thread at a time per object.
#pragma once

#include <poll.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plugins/tcp/acceptor.h"
#include "plugins/tcp/address.h"
#include "plugins/tcp/attempt.h"
#include "plugins/tcp/handshake.h"
#include "plugins/tcp/report.h"
#include "plugins/tcp/stream.h"
#include "plugins/tcp/ways.h"
#include "weir/plugin.h"

namespace weir::plugins::tcp {

class Meeting final : private Acceptor::Owner {
 public:
  Meeting(const Report& report, const Identity& identity, const AcceptorLimits& limits = {})
      : report_(report),
        identity_(identity),
        acceptor_(std::make_unique<Acceptor>(identity, limits)) {}
  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  // Listens at the address of every interface that the settings allow.
  weir_result_t listen();
  const PeerAddress& own_address() const { return own_; }

  // Blocks until every peer is connected on all its lanes, or those that are not lazy, or the deadline (CLOCK_MONOTONIC) has
  // passed. `peers` is by rank. Ends the listening in either case.
  weir_result_t meet(const std::vector<PeerAddress>& peers, uint64_t deadline_ns);

  // After meet. One rail: a connection per lane, of a lazy peer for control only; several: kControlLane
  // and kRailLane of each, the latter of a lazy peer for the first one only.
  uint32_t rail_count(uint32_t peer) const { return peers_[peer].rail_count; }
  // The connection to a peer; the caller's from then on.
  Stream take_connection(uint32_t peer, uint32_t lane, uint32_t rail = 0);
  bool is_lazy(uint32_t peer) const { return peers_[peer].is_lazy; }
  // The way of a rail of a peer below our rank.
  const Way& way(uint32_t peer, uint32_t rail) const;
  // "rank 0 at 10.0.0.1:4000 (over eth0: same subnet)"
  const std::string& route(uint32_t peer) const { return peers_[peer].route; }
  // The same of any peer, before its connections are taken: "rank 3, which came to 10.0.0.2 and chose
  // the way".
  std::string way_text(uint32_t peer) const;
  // What goes on listening where connections are made later, of lazy peers and of those with several rails;
  // else it does not listen any more.
  std::unique_ptr<Acceptor> take_acceptor() { return std::move(acceptor_); }
  // What has come of those already. The caller's.
  struct Early {
    uint32_t peer;
    uint32_t lane;
    uint32_t rail;
    Stream stream;
  };
  std::vector<Early> take_early() { return std::exchange(early_, {}); }

 private:
  struct Candidate {
    Way way;
    std::string failure;  // of the latest attempt
    bool refused = false;
    bool answered = false;
  };
  // A connection that there must be.
  struct Slot {
    uint32_t lane;
    uint32_t rail;
    Stream stream = Stream();
    uint64_t retry_ns = 0;
    uint32_t attempt_count = 0;
    uint32_t under_way = 0;  // attempts
  };
  struct Peer {
    std::vector<Candidate> candidates;  // the likely ones first; empty: the peer comes to us
    size_t next_candidate = 0;
    uint64_t next_start_ns = 0;
    uint32_t seeking = 0;        // attempts while nothing is chosen
    uint64_t gather_end_ns = 0;  // 0: nobody has answered yet
    uint32_t connections = 1;    // for each pair of interfaces
    bool is_lazy = false;
    std::vector<size_t> chosen;  // candidates; empty: none yet
    uint32_t rail_count = 0;     // 0: not known yet
    std::vector<Slot> slots;
    std::string route;
  };
  struct Attempt : tcp::Attempt {
    uint32_t peer;
    int slot;  // -1: it seeks
    size_t candidate;
    bool held = false;  // challenged, until the rails are chosen
  };
  // Owner. Who has proven himself may come.
  bool may_come(const Handshake&) override { return true; }
  void join(const Handshake& shown, Stream stream, uint64_t now_ns) override;
  weir_result_t find_candidates(const std::vector<PeerAddress>& peers);
  weir_result_t start_attempts(uint64_t now);
  weir_result_t start_route(uint32_t peer, uint64_t now);
  bool start_attempt(uint32_t peer, int slot, size_t candidate, uint64_t now);
  void abandon(uint32_t peer);
  void drop_attempt(size_t index, const std::string& failure);
  void forget_attempt(size_t index);
  void serve_attempt(size_t index);
  void finish_attempt(size_t index, Step step, int error_number);
  bool goes_on_gathering(const Peer& peer) const;
  void choose(uint32_t peer);
  void tell_route(uint32_t peer);
  static void make_slots(Peer* peer, uint32_t rail_count);
  static void clear_slots(Peer* peer);
  bool is_missing(uint32_t peer) const;
  bool any_missing() const;
  size_t candidate_of(const Peer& peer, const Slot& slot) const;
  static int slot_of(const Peer& peer, uint32_t lane, uint32_t rail);
  void settle(Peer* peer, uint32_t lane, uint32_t rail, Stream stream);
  uint64_t next_event_ns(uint64_t now, uint64_t deadline_ns) const;
  weir_result_t time_out() const;
  weir_result_t refused(uint32_t peer) const;
  bool listens_on() const;

  Report report_;
  Identity identity_;
  PeerAddress own_;
  std::unique_ptr<Acceptor> acceptor_;
  std::vector<net::Interface> interfaces_;  // at which it listens
  std::vector<Peer> peers_;
  std::vector<Attempt> attempts_;
  std::vector<Early> early_;
  std::vector<pollfd> entries_;
  uint64_t next_look_ns_ = 0;  // at what the host has heard
};

}  // namespace weir::plugins::tcp
