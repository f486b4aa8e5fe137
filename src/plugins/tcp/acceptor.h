// SPDX-License-Identifier: Apache-2.0
// Acceptor: a rank's listeners, and the connections that came to them and have not proven
// themselves yet. Nobody can hold the rank up by them: each has a bounded time, a fixed number of
// bytes (handshake.h), and a place in a bounded list in which one gives way (net/give_way.h; an
// honest rank comes again). What a connection is for is its owner's matter, who is asked before it
// is welcomed. Steps without waiting. One thread at a time.
#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "net/give_way.h"
#include "net/ip_address.h"
#include "net/turned_away.h"
#include "plugins/tcp/exchange.h"
#include "plugins/tcp/handshake.h"
#include "plugins/tcp/stream.h"

namespace weir::plugins::tcp {

struct AcceptorLimits {
  uint64_t unproven_ns = 2'000'000'000;  // from accept to proof
  size_t unproven_count = 256;           // connections without proof at a time
};

class Acceptor {
 public:
  class Owner {
   public:
    // Whether a connection that has proven to be this one is expected. Asked before it is welcomed, and
    // before `join`, since by then all may have changed by this very peer.
    virtual bool may_come(const Handshake& shown) = 0;
    // A proven connection, which is the owner's from then on.
    virtual void join(const Handshake& shown, Stream stream, uint64_t now_ns) = 0;

   protected:
    ~Owner() = default;
  };

  explicit Acceptor(const Identity& identity, const AcceptorLimits& limits = {})
      : identity_(identity), limits_(limits) {}
  ~Acceptor() { close(); }
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  // A listener, which is its own from then on.
  void add(int listener) { listeners_.push_back(listener); }
  // Ends all listening, and the connections without proof.
  void close();

  // What is to be polled for; `serve` takes the entries back, which begin at `first`.
  void append_entries(uint64_t now_ns, std::vector<pollfd>* entries) const;
  size_t entry_count() const { return listeners_.size() + visitors_.size(); }
  void serve(const pollfd* first, uint64_t now_ns, Owner* owner);
  // When there is something to serve though nothing has come.
  uint64_t next_event_ns(uint64_t now_ns) const;

  bool has_visitors() const { return !visitors_.empty(); }
  // The latest `serve` could not accept a connection: the process has as many open files as it may.
  bool lacks_descriptors() const;
  const net::TurnedAway& turned_away() const { return turned_away_; }

 private:
  struct Visitor {
    Stream stream;
    net::IpAddress from;
    uint64_t accepted_ns;
    Handshake handshake;
  };
  void serve(Visitor* visitor, uint64_t now_ns, Owner* owner);
  void turn_away(Visitor* visitor, net::TurnedAway::Why why);
  net::TurnedAway::Why reason_of(const Visitor& visitor) const;
  uint64_t expiry_ns(const Visitor& visitor) const {
    return visitor.accepted_ns + limits_.unproven_ns;
  }
  net::GivesWay who_gives_way(uint64_t now_ns) const;
  bool drop_silent();
  void accept_all(int listener, uint64_t now_ns, Owner* owner);

  Identity identity_;
  AcceptorLimits limits_;
  std::vector<int> listeners_;
  std::vector<Visitor> visitors_;  // oldest first
  int stall_ = 0;                  // why the latest `serve` could not accept; 0: it could
  net::TurnedAway turned_away_;
};

}  // namespace weir::plugins::tcp
