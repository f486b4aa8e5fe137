// SPDX-License-Identifier: Apache-2.0
// Rejoin: how a rail that was taken out comes back. The rank that made its connections tries again
// over the same way, at growing intervals, with the whole proof for each of the two connections; the
// other one, which still listens, takes them. What holds for strangers at a meeting holds here.
// Steps without waiting, and only while a rail is down. One thread at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "plugins/tcp/bundle.h"
#include "plugins/tcp/exchange.h"
#include "plugins/tcp/handshake.h"
#include "plugins/tcp/report.h"
#include "plugins/tcp/stream.h"
#include "plugins/tcp/ways.h"

namespace weir::plugins::tcp {

class Rejoin {
 public:
  // The listeners are its own from then on.
  Rejoin(const Report& report, const Identity& identity, std::vector<int> listeners)
      : report_(report), identity_(identity), listeners_(std::move(listeners)) {}
  ~Rejoin();
  Rejoin(const Rejoin&) = delete;
  Rejoin& operator=(const Rejoin&) = delete;

  // A bundle to a rank above ours: its rails come to us. It outlives this.
  void add(uint32_t peer, Bundle* bundle) { add(peer, bundle, {}); }
  // A bundle to a rank below ours: the way of each rail.
  void add(uint32_t peer, Bundle* bundle, std::vector<Way> ways);

  // Moves what can be moved; at most every 10 ms, however often it is called.
  void step(uint64_t now_ns);

 private:
  static constexpr size_t kVisitorsMax = 64;
  struct Absent {
    Stream control;        // proven; waits for the other one
    uint32_t returns = 0;  // that it is for
    uint64_t next_ns = 0;
    uint32_t attempt_count = 0;
    bool under_way = false;
  };
  struct Peer {
    uint32_t rank;
    Bundle* bundle;
    std::vector<Way> ways;  // empty: it comes to us
    std::vector<Absent> rails;
  };
  struct Attempt {
    Stream stream;
    size_t peer;
    uint32_t rail;
    bool connecting;
    uint64_t expiry_ns;
    Handshake handshake;
  };
  struct Visitor {
    Stream stream;
    uint64_t expiry_ns;
    Handshake handshake;
  };

  void start(size_t peer, uint32_t rail, uint64_t now_ns);
  bool begin(size_t peer, uint32_t rail, uint32_t lane, uint64_t now_ns);
  bool serve(Attempt* attempt, uint64_t now_ns);
  void give_up(Absent* rail, uint64_t now_ns);
  void accept_all(uint64_t now_ns);
  Peer* peer_of(const Handshake& shown);
  bool may_come(const Handshake& shown);
  void settle(Visitor* visitor);
  void join(Peer* peer, uint32_t rail, Stream data);

  Report report_;
  Identity identity_;
  std::vector<int> listeners_;
  std::vector<Peer> peers_;
  std::vector<Attempt> attempts_;
  std::vector<Visitor> visitors_;
  uint64_t next_ns_ = 0;
};

}  // namespace weir::plugins::tcp
