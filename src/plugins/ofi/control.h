// SPDX-License-Identifier: Apache-2.0
// Control: what this transport and one peer tell each other over the control mesh (wire.h): the name of
// the endpoint before there are messages, and how many there were behind the last; the end of the
// connection tells that the peer has ended. Never blocks. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "net/control_mesh.h"
#include "plugins/ofi/wire.h"

namespace weir::plugins::ofi {

class Control {
 public:
  // Over `mesh`, which outlives it and has met `peer`.
  void attach(net::ControlMesh* mesh, uint32_t peer) {
    mesh_ = mesh;
    peer_ = peer;
  }
  int fd() const { return mesh_->descriptor(peer_); }

  // Each says a word, and sends what can be sent.
  void say_card(const Card& card);
  void say(Kind kind);
  void say_goodbye(const Goodbye& goodbye);

  // Sends and reads what can be without waiting.
  void drive();
  bool sending() const { return !mesh_->has_left(peer_); }
  // What the peer has said; public for tests. False: it may not say this, or not now.
  bool take_word(const unsigned char* word, size_t bytes);

  // What has been heard.
  bool has_card() const { return has_card_; }
  const Card& card() const { return card_; }
  bool ready() const { return ready_; }
  bool left() const { return left_; }  // it has said goodbye
  const Goodbye& goodbye() const { return goodbye_; }
  bool taken() const { return taken_; }
  // The connection has ended, or the peer said what it may not say.
  bool ended() const { return ended_; }
  // The peer ended without a goodbye.
  bool lost() const { return ended_ && !left_; }

 private:
  net::ControlMesh* mesh_ = nullptr;
  uint32_t peer_ = 0;
  bool has_card_ = false;
  bool ready_ = false;
  bool left_ = false;
  bool taken_ = false;
  bool ended_ = false;
  Card card_;
  Goodbye goodbye_;
  net::mesh::Bytes word_;
};

}  // namespace weir::plugins::ofi
