// SPDX-License-Identifier: Apache-2.0
// Rejoin: how rails get connections after the meeting. One that was taken out comes back: the rank that
// made its connections tries again over the same way, at growing intervals, with the whole proof for each
// of the two connections (joiner.h). One that rests (bundle.h) gets its second connection in the same way.
// Steps without waiting, and only while a rail is down or needed. One thread at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "plugins/tcp/bundle.h"
#include "plugins/tcp/handshake.h"
#include "plugins/tcp/joiner.h"
#include "plugins/tcp/report.h"
#include "plugins/tcp/stream.h"
#include "plugins/tcp/ways.h"

namespace weir::plugins::tcp {

class Rejoin final : public Joiner::Owner {
 public:
  // The joiner outlives this.
  Rejoin(const Report& report, Joiner* joiner) : report_(report), joiner_(joiner) {}
  ~Rejoin();
  Rejoin(const Rejoin&) = delete;
  Rejoin& operator=(const Rejoin&) = delete;

  // A bundle to a rank above ours: its rails come to us. It outlives this.
  void add(uint32_t peer, Bundle* bundle) { add(peer, bundle, {}); }
  // A bundle to a rank below ours: the way of each rail.
  void add(uint32_t peer, Bundle* bundle, std::vector<Way> ways);

  // The second connection of a rail that rests, which has come before this one was there.
  void take(uint32_t peer, uint32_t rail, Stream data);
  // Moves what can be moved; at most every 10 ms, or every 0.1 ms while a rail is needed, however often it
  // is called.
  void step(uint64_t now_ns);

 private:
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

  // Owner.
  bool may_come(const Handshake& shown) override;
  void join(const Handshake& shown, Stream stream, uint64_t now_ns) override;
  void fail(const Handshake& meant, int error_number, uint64_t now_ns) override;
  bool goes_on(const Handshake& meant) override;

  void start(Peer* peer, uint32_t rail, uint64_t now_ns);
  bool begin(const Peer& peer, uint32_t rail, uint32_t lane, uint64_t now_ns);
  static void give_up(Absent* rail, uint64_t now_ns);
  Peer* peer_of(const Handshake& shown);
  void finish(Peer* peer, uint32_t rail, Stream data);

  Report report_;
  Joiner* joiner_;
  std::vector<Peer> peers_;
  uint64_t next_ns_ = 0;
};

}  // namespace weir::plugins::tcp
