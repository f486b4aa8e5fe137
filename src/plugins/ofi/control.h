// SPDX-License-Identifier: Apache-2.0
// Control: one end of the connection between two ranks that carries no messages (wire.h): it carries
// the endpoint's name before there are any, and its end tells that the peer has ended. Never blocks,
// never allocates after the card. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "plugins/ofi/wire.h"

namespace weir::plugins::ofi {

class Control {
 public:
  Control() = default;
  ~Control();
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  void attach(int fd) { fd_ = fd; }
  int fd() const { return fd_; }
  bool attached() const { return fd_ >= 0; }

  // Each queues a frame and sends what can be sent.
  void say_card(const Card& card);
  void say(Kind kind);
  void say_goodbye(const Goodbye& goodbye);

  // Sends and reads what can be without waiting; true when something was read.
  bool drive();
  bool sending() const { return out_begin_ < out_end_; }

  // What has been read.
  bool has_card() const { return has_card_; }
  const Card& card() const { return card_; }
  bool ready() const { return ready_; }
  bool left() const { return left_; }  // it has said goodbye
  const Goodbye& goodbye() const { return goodbye_; }
  bool taken() const { return taken_; }
  // The connection has ended, or something was read that is no frame.
  bool ended() const { return ended_; }
  // The peer ended without a goodbye.
  bool lost() const { return (ended_ || marked_lost_) && !left_; }
  // Something else than this connection has told that the peer ended.
  void mark_lost() { marked_lost_ = true; }

  // Ends this direction; what was said still arrives.
  void shut();

 private:
  void flush();
  bool take_frame(Kind kind, const unsigned char* payload);

  int fd_ = -1;
  bool has_card_ = false;
  bool ready_ = false;
  bool left_ = false;
  bool taken_ = false;
  bool ended_ = false;
  bool marked_lost_ = false;
  Card card_;
  Goodbye goodbye_;
  unsigned char in_[kHeaderBytes + kPayloadBytesMax];
  size_t in_bytes_ = 0;
  // One of each kind at most is ever said.
  unsigned char out_[2 * kHeaderBytes + kPayloadBytesMax + 2 * kHeaderBytes + 16 * kLaneCount];
  size_t out_begin_ = 0;
  size_t out_end_ = 0;
};

}  // namespace weir::plugins::ofi
