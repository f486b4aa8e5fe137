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
// Nobody can hold a meeting up: before its proof a connection has a bounded time, a fixed number of
// bytes, and a place in a bounded list whose oldest gives way (an honest rank comes again). One
// thread at a time per object.
#pragma once

#include <poll.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "plugins/tcp/address.h"
#include "plugins/tcp/exchange.h"
#include "plugins/tcp/handshake.h"
#include "plugins/tcp/report.h"
#include "plugins/tcp/stream.h"
#include "plugins/tcp/ways.h"
#include "weir/plugin.h"

namespace weir::plugins::tcp {

struct MeetingLimits {
  uint64_t unproven_ns = 2'000'000'000;  // from accept to proof
  size_t unproven_count = 256;           // connections without proof at a time
};

class Meeting {
 public:
  Meeting(const Report& report, const Identity& identity, const MeetingLimits& limits = {})
      : report_(report), identity_(identity), limits_(limits) {}
  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  // Listens at the address of every interface that the settings allow.
  weir_result_t listen();
  const PeerAddress& own_address() const { return own_; }

  // Blocks until every peer is connected on all its lanes, or those that are not lazy, or the deadline (CLOCK_MONOTONIC) has
  // passed. `peers` is by rank. Ends the listening in either case.
  weir_result_t meet(const std::vector<PeerAddress>& peers, uint64_t deadline_ns);

  // After meet. One rail: a connection per lane, of a lazy peer for control only; several: kRailLane and kControlLane of each.
  uint32_t rail_count(uint32_t peer) const { return peers_[peer].rail_count; }
  // The connection to a peer; the caller's from then on.
  Stream take_connection(uint32_t peer, uint32_t lane, uint32_t rail = 0);
  bool is_lazy(uint32_t peer) const { return peers_[peer].is_lazy && peers_[peer].rail_count == 1; }
  // The way of a rail of a peer below our rank.
  const Way& way(uint32_t peer, uint32_t rail) const;
  // "rank 0 at 10.0.0.1:4000 (over eth0: same subnet)"
  const std::string& route(uint32_t peer) const { return peers_[peer].route; }
  // The same of any peer, before its connections are taken: "rank 3, which came to 10.0.0.2 and chose
  // the way".
  std::string way_text(uint32_t peer) const;
  // Where a peer is lazy or has several rails: what goes on listening, for connections that are made
  // later; and what has come of those already, with a proof or without. The caller's.
  std::vector<int> take_listeners();
  struct Early {
    uint32_t peer;
    uint32_t lane;
    Stream stream;
  };
  std::vector<Early> take_early() { return std::exchange(early_, {}); }
  std::vector<Visitor> take_visitors() { return std::exchange(visitors_, {}); }

 private:
  struct Listener {
    int fd = -1;
    net::Interface interface;
  };
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
    bool is_lazy = false;        // if it has one rail
    std::vector<size_t> chosen;  // candidates; empty: none yet
    uint32_t rail_count = 0;     // 0: not known yet
    std::vector<Slot> slots;
    std::string route;
  };
  // A connection that this rank makes.
  struct Attempt {
    Stream stream;
    uint32_t peer;
    int slot;  // -1: it seeks
    size_t candidate;
    bool connecting;
    bool held;  // challenged, until the rails are chosen
    Handshake handshake;
  };
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
  void serve_visitor(Visitor* visitor);
  void accept_all(int listener);
  static void make_slots(Peer* peer, uint32_t rail_count);
  static void clear_slots(Peer* peer);
  bool is_missing(uint32_t peer) const;
  bool any_missing() const;
  size_t candidate_of(const Peer& peer, const Slot& slot) const;
  static int slot_of(const Peer& peer, uint32_t lane, uint32_t rail);
  void settle(Peer* peer, uint32_t lane, uint32_t rail, Stream stream);
  uint64_t next_event_ns(uint64_t deadline_ns) const;
  weir_result_t time_out() const;
  weir_result_t refused(uint32_t peer) const;
  void stop_listening();
  bool listens_on() const;

  Report report_;
  Identity identity_;
  MeetingLimits limits_;
  PeerAddress own_;
  std::vector<Listener> listeners_;
  bool accepting_ = true;  // false while no descriptor is free
  std::vector<Peer> peers_;
  std::vector<Attempt> attempts_;
  std::vector<Visitor> visitors_;  // oldest first
  std::vector<Early> early_;
  std::vector<pollfd> entries_;
  struct {
    uint32_t proof = 0, version = 0, malformed = 0, no_tls = 0, silent = 0;
    net::IpAddress last;
  } turned_away_;
};

}  // namespace weir::plugins::tcp
