// SPDX-License-Identifier: Apache-2.0
// Control: the connection of a rail that carries states and the goodbye. Its end without a goodbye
// tells that the rail has ended.
//
// Whatever the peer does, only one incoming and one outgoing frame are held here: a state that
// cannot leave waits for the next call, and by then a newer one may have replaced it. No call
// blocks. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "plugins/tcp/stream.h"
#include "plugins/tcp/wire.h"

namespace weir::plugins::tcp {

class Control {
 public:
  // The connection stays the owner's. One that replaces an earlier one begins anew. A stream that
  // is not open: there is no connection at present.
  void attach(Stream stream);
  int fd() const { return stream_.fd(); }
  Stream& stream() { return stream_; }

  // Reads what has arrived, up to the end. True: there may be more.
  bool receive();
  // Sends the state at once, or as soon as the connection takes it; a later one takes its place.
  void send_state(const wire::PeerState& state);
  // There is a state that could not leave yet.
  bool waits() const {
    return stream_.is_open() && !broken_ && (state_waits_ || out_sent_ < out_bytes_);
  }
  // Sends what could not leave yet.
  void flush() { (void)push(); }
  // The latest state that has come since the last call; false: none.
  bool take_state(wire::PeerState* state);
  // The last frame; what the peer has sent is thrown away, since closing a connection with unread
  // data discards what it has sent.
  void say_goodbye();

  bool left() const { return left_; }  // it has said goodbye
  bool lost() const { return lost_; }  // it has ended without goodbye, or sent no valid frame

 private:
  // True when all that has begun, and the state, has left.
  bool push();
  bool push_frame();
  // A frame, or its header, stands complete in in_.
  void judge();
  bool judge_header();
  void frame_ends();
  bool next_frame();
  void begin_frame(const wire::MessageHeader& header);

  Stream stream_;
  bool left_ = false;
  bool lost_ = false;
  bool broken_ = false;  // nothing can be sent any more
  wire::PeerState state_;
  bool has_state_ = false;
  uint32_t received_ = 0;  // frames, which are numbered
  unsigned char in_[wire::kHeaderBytes + kControlFrameBytesMax] = {};
  size_t in_bytes_ = 0;
  size_t in_wanted_ = wire::kHeaderBytes;
  wire::MessageHeader in_header_;
  unsigned char out_[wire::kHeaderBytes + kControlFrameBytesMax] = {};
  size_t out_bytes_ = 0;
  size_t out_sent_ = 0;
  wire::PeerState next_state_;
  bool state_waits_ = false;
  uint32_t sent_ = 0;  // frames
};
static_assert(wire::kStateBytesMax <= kControlFrameBytesMax);

}  // namespace weir::plugins::tcp
