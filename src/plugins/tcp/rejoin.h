// SPDX-License-Identifier: Apache-2.0
// Rejoin: how rails get their connections. At first, the higher rank makes both connections of a
// rail at once; the lower rank does so where it has a message and there is no rail yet, or where
// nothing has come for a second. Of rails over the same link one is connected after the other: many
// ranks that begin at the same time would only delay each other, and messages wait for no more than
// one rail. A rail that was taken out comes back: the higher rank tries again over the
// same way, at growing intervals, and uses the rail once the lower one has said that it accepts it
// (wire.h), since both must know first what was lost with the connection before. The first
// connection of rail 0 may go over any link, as one may be down: once another rail is there, it is
// connected again over its own. It works in steps
// without waiting, and only while a rail is down. One thread at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "plugins/tcp/arrivals.h"
#include "plugins/tcp/bundle.h"
#include "plugins/tcp/report.h"
#include "plugins/tcp/stream.h"
#include "plugins/tcp/ways.h"
#include "plugins/tcp/wire.h"

namespace weir::plugins::tcp {

class Rejoin {
 public:
  // Begins to connect; `joined` or `failed` reports the result.
  class Connector {
   public:
    virtual void connect(uint32_t peer, const Subject& subject, const std::vector<Way>& ways,
                         uint64_t deadline_ns) = 0;

   protected:
    ~Connector() = default;
  };

  // The connector outlives this, and so does `arrivals`, which is told of each connection; null: it
  // is not.
  Rejoin(const Report& report, Connector* connector, Arrivals* arrivals = nullptr)
      : report_(report), connector_(connector), arrivals_(arrivals) {}
  ~Rejoin();
  Rejoin(const Rejoin&) = delete;
  Rejoin& operator=(const Rejoin&) = delete;

  // `is_lower`: the peer's rank is the lower one. `ways`: those of each rail. The bundle outlives
  // this.
  void add(uint32_t peer, bool is_lower, Bundle* bundle, std::vector<std::vector<Way>> ways);

  // The rank leaves: the last word on the connections of which a bundle has none yet.
  void say_goodbye();
  // A connection was made, by either end.
  void joined(uint32_t peer, const Subject& subject, Stream stream, uint64_t now_ns);
  // A connection that was begun here could not be made.
  void failed(uint32_t peer, const Subject& subject, uint64_t now_ns);
  // Moves what can be moved; at most every 10 ms, however often it is called, but at once for a
  // peer that has no rail yet.
  void step(uint64_t now_ns);

 private:
  struct Absent {
    Stream control;  // proven; each waits for the other one
    Stream data;
    uint32_t returns = 0;  // that they are for
    uint64_t next_ns = 0;
    uint64_t expiry_ns = 0;  // of the lower rank's word
    uint32_t attempt_count = 0;
    bool under_way = false;
  };
  struct Peer {
    uint32_t rank;
    bool is_lower;
    Bundle* bundle;
    std::vector<std::vector<Way>> ways;
    std::vector<Absent> rails;
    std::vector<uint32_t> after;  // [rail]: the one before it over the same link; itself: none
    std::vector<bool> over_other_link;  // [rail]: it was connected over the link of another one
  };

  void start(Peer* peer, uint32_t rail, uint64_t now_ns);
  void await_welcome(Peer* peer, uint32_t rail, uint64_t now_ns);
  static void close(Absent* rail);
  static void try_later(Absent* rail, uint64_t now_ns);
  Peer* peer_of(uint32_t rank);
  void complete(Peer* peer, uint32_t rail, uint64_t now_ns);
  void attach(Peer* peer, uint32_t rail);
  void move_to_own_links(Peer* peer) const;

  Report report_;
  Connector* connector_;
  Arrivals* arrivals_;
  std::vector<Peer> peers_;
  uint64_t next_ns_ = 0;
  bool awaits_first_ = false;  // some peer has no rail yet
};

}  // namespace weir::plugins::tcp
