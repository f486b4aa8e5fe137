// SPDX-License-Identifier: Apache-2.0
// Joiner: connections between two ranks that are made after the meeting, with the same proof. The guest
// connects over the way that the meeting has found; the host, which still listens, asks the connection's
// owner whether it may come before it welcomes it. What holds for strangers at a meeting holds here:
// until its proof a connection has a bounded time, and a place in a bounded list.
//
// What connections are for is their owners' matter: of a pair with several rails, those that come back
// (rejoin.h); of a pair with one, those of lanes (lazy.h). Steps without waiting. One thread at a time.
#pragma once

#include <poll.h>

#include <cstdint>
#include <vector>

#include "plugins/tcp/exchange.h"
#include "plugins/tcp/handshake.h"
#include "plugins/tcp/stream.h"
#include "plugins/tcp/ways.h"

namespace weir::plugins::tcp {

class Joiner {
 public:
  class Owner {
   public:
    // The host's: whether this connection is expected.
    virtual bool may_come(const Handshake& shown) = 0;
    // A proven connection, which is the owner's from then on. May begin further ones.
    virtual void join(const Handshake& shown, Stream stream, uint64_t now_ns) = 0;
    // The guest's: an attempt has ended without a connection.
    virtual void fail(const Handshake& meant, int error_number, uint64_t now_ns) = 0;
    // The guest's: whether an attempt is still wanted.
    virtual bool goes_on(const Handshake& meant) = 0;

   protected:
    ~Owner() = default;
  };

  // The listeners are its own from then on. It may be none.
  Joiner(const Identity& identity, std::vector<int> listeners)
      : identity_(identity), listeners_(std::move(listeners)) {}
  ~Joiner();
  Joiner(const Joiner&) = delete;
  Joiner& operator=(const Joiner&) = delete;

  // Who has the connections of pairs with several rails, and of those with one. Null: nobody.
  void set_owners(Owner* rails, Owner* lanes) {
    rails_ = rails;
    lanes_ = lanes;
  }
  // Connections that came to the meeting and had not proven themselves when it ended.
  void adopt(std::vector<Visitor> visitors);

  struct Wanted {
    uint32_t peer = 0;
    uint32_t lane = 0;
    uint32_t rail = 0;
    uint32_t rail_count = 1;
    uint32_t returns = 0;
    uint64_t patience_ns = 0;  // until the host answers
  };
  // 0, or the errno for which no attempt was begun.
  int begin(const Wanted& wanted, const Way& way, uint64_t now_ns);
  // Moves what can be moved.
  void step(uint64_t now_ns);
  // Something is between its beginning and its proof.
  bool is_busy() const { return !attempts_.empty() || !visitors_.empty(); }
  // The latest step could not accept a connection: the process has as many open files as it may.
  bool lacks_descriptors() const { return lacks_descriptors_; }

 private:
  static constexpr size_t kVisitorsMax = 256;
  struct Attempt {
    Stream stream;
    bool connecting;
    uint64_t expiry_ns;  // of its challenge; from then on the host's word is awaited
    Handshake handshake;
    Owner* owner;
  };

  Owner* owner_of(const Handshake& shown) const { return shown.rail_count() > 1 ? rails_ : lanes_; }
  bool serve(Attempt* attempt, uint64_t now_ns);
  void serve(Visitor* visitor, uint64_t now_ns);
  void accept_all(int listener, uint64_t now_ns);
  bool has_room(uint64_t now_ns);

  Identity identity_;
  std::vector<int> listeners_;
  Owner* rails_ = nullptr;
  Owner* lanes_ = nullptr;
  std::vector<Attempt> attempts_;
  std::vector<Visitor> visitors_;  // oldest first
  std::vector<pollfd> entries_;
  bool lacks_descriptors_ = false;
};

}  // namespace weir::plugins::tcp
