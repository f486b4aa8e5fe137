// SPDX-License-Identifier: Apache-2.0
// Meeting: how the ranks of a communicator come to hold their connections. Every rank listens at
// the addresses of its interfaces, connects to all ranks below its own, and proves itself on every
// connection (handshake.h).
//
// Which of a peer's addresses is used is found out by connecting: they are tried in the order in
// which they are likely to be good (loopback where all ranks share a host, then a common subnet,
// then speed), each a little later than the one before, and the first at which the peer answers in
// our protocol wins.
//
// Nobody can hold a meeting up: before its proof a connection has a bounded time, a fixed number of
// bytes, and a place in a bounded list whose oldest gives way (an honest rank comes again). One
// thread at a time per object.
#pragma once

#include <poll.h>

#include <cstdint>
#include <string>
#include <vector>

#include "plugins/tcp/address.h"
#include "plugins/tcp/handshake.h"
#include "plugins/tcp/report.h"
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

  // Blocks until every peer is connected on all its lanes, or the deadline (CLOCK_MONOTONIC) has
  // passed. `peers` is by rank. Ends the listening in either case.
  weir_result_t meet(const std::vector<PeerAddress>& peers, uint64_t deadline_ns);

  // After meet: the connection to a peer; the caller's from then on.
  int take_connection(uint32_t peer, uint32_t lane);
  // "rank 0 at 10.0.0.1:4000 over eth0 (same subnet)"
  const std::string& route(uint32_t peer) const { return peers_[peer].route; }

 private:
  struct Listener {
    int fd = -1;
    net::Interface interface;
  };
  // An address of a peer that this rank may connect to.
  struct Candidate {
    Offer offer;
    net::IpAddress source;
    std::string why;      // it is where it is in the order
    std::string failure;  // of the latest attempt
    bool refused = false;
  };
  struct Peer {
    std::vector<Candidate> candidates;  // the likely ones first; empty: the peer comes to us
    size_t next_candidate = 0;
    uint64_t next_start_ns = 0;
    int chosen = -1;
    int fds[kConnectionsPerPeer];
    uint64_t retry_ns[kConnectionsPerPeer] = {};
    uint32_t attempt_count[kConnectionsPerPeer] = {};
    uint32_t under_way[kConnectionsPerPeer] = {};  // attempts of each lane
    std::string route;
  };
  // A connection that this rank makes.
  struct Attempt {
    int fd;
    uint32_t peer;
    uint32_t lane;
    size_t candidate;
    bool connecting;
    Handshake handshake;
  };
  // A connection that somebody made to this rank.
  struct Visitor {
    int fd;
    net::IpAddress from;
    uint64_t expiry_ns;
    Handshake handshake;
  };
  enum class Step { kGoesOn, kProven, kEnded };

  weir_result_t find_candidates(const std::vector<PeerAddress>& peers);
  weir_result_t start_attempts(uint64_t now);
  weir_result_t start_route(uint32_t peer, uint64_t now);
  bool start_attempt(uint32_t peer, uint32_t lane, size_t candidate, uint64_t now);
  void drop_attempt(size_t index, const std::string& failure);
  void forget_attempt(size_t index);
  void serve_attempt(size_t index, short events);
  void serve_visitor(Visitor* visitor);
  void accept_all(int listener);
  Step exchange(int fd, Handshake* handshake, int* error_number);
  void settle(uint32_t peer, uint32_t lane, int fd);
  uint64_t next_event_ns(uint64_t deadline_ns) const;
  weir_result_t time_out() const;
  weir_result_t refused(uint32_t peer) const;
  void stop_listening();

  Report report_;
  Identity identity_;
  MeetingLimits limits_;
  PeerAddress own_;
  std::vector<Listener> listeners_;
  bool accepting_ = true;  // false while no descriptor is free
  std::vector<Peer> peers_;
  std::vector<Attempt> attempts_;
  std::vector<Visitor> visitors_;  // oldest first
  std::vector<pollfd> entries_;
  uint64_t open_slots_ = 0;
  struct {
    uint32_t proof = 0, version = 0, malformed = 0, silent = 0;
    net::IpAddress last;
  } turned_away_;
};

}  // namespace weir::plugins::tcp
