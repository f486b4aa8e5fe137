// SPDX-License-Identifier: Apache-2.0
// Joiner: connections between two ranks that are made after the meeting, with the same proof. The guest
// connects over the way that the meeting has found; the host, which still listens (acceptor.h), asks the
// connection's owner whether it may come before it welcomes it.
//
// What connections are for is their owners' matter: of a pair with several rails, those of rails that come
// back or are needed (rejoin.h); of a pair with one, those of lanes (lazy.h). Steps without waiting. One
// thread at a time.
#pragma once

#include <poll.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "plugins/tcp/acceptor.h"
#include "plugins/tcp/attempt.h"
#include "plugins/tcp/handshake.h"
#include "plugins/tcp/stream.h"
#include "plugins/tcp/ways.h"

namespace weir::plugins::tcp {

class Joiner final : private Acceptor::Owner {
 public:
  // At the guest's end, too, `join` gives it the proven connection; it may begin further ones.
  class Owner : public Acceptor::Owner {
   public:
    // The guest's: an attempt has ended without a connection.
    virtual void fail(const Handshake& meant, int error_number, uint64_t now_ns) = 0;
    // The guest's: whether an attempt is still wanted.
    virtual bool goes_on(const Handshake& meant) = 0;

   protected:
    ~Owner() = default;
  };

  Joiner(const Identity& identity, std::unique_ptr<Acceptor> acceptor);
  ~Joiner();
  Joiner(const Joiner&) = delete;
  Joiner& operator=(const Joiner&) = delete;

  // Who has the connections of pairs with several rails, and of those with one. Null: nobody.
  void set_owners(Owner* rails, Owner* lanes) {
    rails_ = rails;
    lanes_ = lanes;
  }

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
  bool is_busy() const { return !attempts_.empty() || acceptor_->has_visitors(); }
  // The latest step could not accept a connection: the process has as many open files as it may.
  bool lacks_descriptors() const { return acceptor_->lacks_descriptors(); }

 private:
  struct Attempt : tcp::Attempt {
    uint64_t expiry_ns;  // of its challenge; from then on the host's word is awaited
    Owner* owner;
  };

  // Acceptor::Owner.
  bool may_come(const Handshake& shown) override;
  void join(const Handshake& shown, Stream stream, uint64_t now_ns) override;

  Owner* owner_of(const Handshake& shown) const { return shown.rail_count() > 1 ? rails_ : lanes_; }
  bool serve(Attempt* attempt, uint64_t now_ns);

  Identity identity_;
  std::unique_ptr<Acceptor> acceptor_;
  Owner* rails_ = nullptr;
  Owner* lanes_ = nullptr;
  std::vector<Attempt> attempts_;
  std::vector<pollfd> entries_;
};

}  // namespace weir::plugins::tcp
