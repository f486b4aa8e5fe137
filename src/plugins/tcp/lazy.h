// SPDX-License-Identifier: Apache-2.0
// Lazy: when the connections of lanes are made that the meeting has left out. A lane's first operation
// that its early messages cannot carry (prelude.h) makes the guest connect, or the host ask for it; the
// joiner does it, and the channel goes over to what comes of it. Nothing is done for lanes that nobody
// uses. One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "plugins/tcp/channel.h"
#include "plugins/tcp/control.h"
#include "plugins/tcp/joiner.h"
#include "plugins/tcp/prelude.h"
#include "plugins/tcp/ways.h"

namespace weir::plugins::tcp {

class Lazy final : public Joiner::Owner {
 public:
  // `channels` are those of all ranks, [peer * kLaneCount + lane]; they and the joiner outlive this.
  Lazy(uint32_t rank, uint32_t rank_count, Channel* channels, Joiner* joiner);
  Lazy(const Lazy&) = delete;
  Lazy& operator=(const Lazy&) = delete;

  // The channels to a peer, which have no connections yet. `way`: of a peer below our rank.
  void add(uint32_t peer, Control* control, ZeroCopy::Wish wish, const Way& way);
  // A connection that has come before this one was there.
  void take(uint32_t peer, uint32_t lane, Stream stream);

  // There is something to do, besides what channels with operations want.
  bool is_due() const { return news_ || joiner_->is_busy() || !settling_.empty(); }
  // Moves what can be moved; at most every 20 us, however often it is called.
  void step(uint64_t now_ns);

 private:
  struct Lane {
    bool under_way = false;
    uint32_t attempt_count = 0;
    uint64_t next_ns = 0;
  };
  struct Peer {
    std::unique_ptr<Prelude> prelude;  // null: it has all connections
    Way way;
  };

  // Owner.
  bool may_come(const Handshake& shown) override;
  void join(const Handshake& shown, Stream stream, uint64_t now_ns) override;
  void fail(const Handshake& meant, int error_number, uint64_t now_ns) override;
  bool goes_on(const Handshake& meant) override;

  static size_t index_of(uint32_t peer, uint32_t lane) { return size_t{peer} * kLaneCount + lane; }
  void find_wanted();
  void begin(size_t index, uint64_t now_ns);
  void fail_for_want_of_descriptors(int error_number);

  uint32_t rank_;
  Channel* channels_;
  Joiner* joiner_;
  std::unique_ptr<unsigned char[]> memory_;  // of the preludes; not touched before it is used
  std::vector<Peer> peers_;
  std::vector<Lane> lanes_;       // as the channels
  std::vector<size_t> wanted_;    // lanes that this rank is to connect and has not begun to
  std::vector<size_t> settling_;  // connected, and one end does not know yet
  bool news_ = false;             // a lane has become wanted
  uint64_t next_ns_ = 0;
};

}  // namespace weir::plugins::tcp
