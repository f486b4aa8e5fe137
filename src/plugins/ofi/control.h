// SPDX-License-Identifier: Apache-2.0
// Control: the state of one peer, known by its process's life and by the words that it sends this
// transport over the control network (wire.h). Never blocks. One thread at a time.
#pragma once

#include <cstdint>
#include <string>

#include "plugins/message/control.h"
#include "plugins/ofi/wire.h"

namespace weir::plugins::ofi {

class Control {
 public:
  // `network` outlives it.
  void attach(message::Control* network, uint32_t peer) {
    network_ = network;
    peer_ = peer;
  }

  void say(Kind kind) const { network_->say(peer_, encode_word(kind)); }
  void say_goodbye(const Goodbye& goodbye) {
    network_->say(peer_, encode_goodbye(goodbye));
    said_goodbye_ = true;
  }
  bool said_goodbye() const { return said_goodbye_; }

  // Reads the words that have arrived.
  void drive();
  // Takes a word of the peer; public for tests. False: the word is not allowed, or not now.
  bool take_word(const std::string& word);

  // The peer has said goodbye; or it has left, and none of its words can be on its way any more.
  bool left() const { return left_; }
  const Goodbye& goodbye() const { return goodbye_; }
  bool taken() const { return taken_; }
  // Its process has left or died, or its endpoint has ended.
  bool ended() const { return ended_; }
  // It ended without a goodbye.
  bool lost() const { return lost_; }

 private:
  message::Control* network_ = nullptr;
  uint32_t peer_ = 0;
  bool said_goodbye_ = false;
  bool left_ = false;
  bool taken_ = false;
  bool ended_ = false;
  bool lost_ = false;
  bool ended_by_word_ = false;
  uint64_t left_ns_ = 0;  // since when it is known to have left, without a goodbye
  Goodbye goodbye_;
  std::string word_;
};

}  // namespace weir::plugins::ofi
