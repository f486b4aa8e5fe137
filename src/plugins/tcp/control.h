// SPDX-License-Identifier: Apache-2.0
// Control: the connection to one peer that carries notices, states and the goodbye, and of lanes that
// have no connection yet the early messages and what is said about them (prelude.h). Its end without a goodbye tells that the peer has died, or its rail where there are several.
//
// Whatever the peer does, one frame in and one out are held here: a notice or state that cannot leave
// waits for the next call, and what it says by then is what leaves. Nothing waits. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "plugins/tcp/prelude.h"
#include "plugins/tcp/stream.h"
#include "plugins/tcp/wire.h"

namespace weir::plugins::tcp {

class Control {
 public:
  // The connection stays the owner's. One that takes the place of an earlier one begins anew, but
  // the notice that has arrived stays. One that is not open: there is none at present.
  void attach(Stream stream);
  // Lanes begin on this connection. Room is kept in its socket for their messages, which must be able to
  // leave while the peer reads nothing.
  void carry(Prelude* prelude);
  int fd() const { return stream_.fd(); }
  Stream& stream() { return stream_; }

  // Reads what has arrived, up to the end.
  void receive();
  // Sends what is left of a frame that has begun, then `notice` if the peer has not been sent that
  // version of it. Versions count from 1; 0: there is none. False: something could not leave yet.
  bool send(const unsigned char* notice, size_t bytes, uint32_t version);
  // Whether all that was sent has been acknowledged by the peer's host.
  bool arrived();
  // Sends the state at once, or as soon as the connection takes it; a later one takes its place.
  void send_state(const wire::PeerState& state);
  // There is a state that could not leave yet.
  bool waits() const {
    return stream_.is_open() && !broken_ && (state_waits_ || out_sent_ < out_bytes_);
  }
  // An early message: its frame begins to leave. False: not now. It has left when `has_left` says so of
  // its number.
  bool send_early(uint32_t lane, const void* data, uint64_t bytes, uint32_t* number);
  bool has_left(uint32_t number) const {
    return sent_ != number + 1 || (out_sent_ == out_bytes_ && !broken_);
  }
  // Sends what could not leave yet, and what the prelude has to say.
  void flush() { (void)push(); }
  // The latest state that has come since the last call; false: none.
  bool take_state(wire::PeerState* state);
  // The last words; what the peer has sent is thrown away, since a connection that is closed with
  // something unread takes back what it has sent.
  void say_goodbye(const unsigned char* notice, size_t bytes, uint32_t version);

  bool left() const { return left_; }  // it has said goodbye
  bool lost() const { return lost_; }  // it has ended without, or what it sent is no frame
  // The latest notice that has arrived.
  const unsigned char* notice() const { return notice_; }
  size_t notice_bytes() const { return notice_bytes_; }
  uint32_t notice_version() const { return notice_version_; }

  // When another connection of the peer was seen to have ended before any goodbye; 0: none was.
  uint64_t lane_ended_ns = 0;

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
  Prelude* prelude_ = nullptr;
  bool left_ = false;
  bool lost_ = false;
  bool broken_ = false;  // nothing can be sent any more
  unsigned char notice_[kNoticeBytesMax] = {};
  size_t notice_bytes_ = 0;
  uint32_t notice_version_ = 0;
  wire::PeerState state_;
  bool has_state_ = false;
  uint32_t received_ = 0;  // frames, which are numbered
  unsigned char in_[wire::kHeaderBytes + kNoticeBytesMax] = {};
  size_t in_bytes_ = 0;
  size_t in_wanted_ = wire::kHeaderBytes;
  wire::MessageHeader in_header_;
  unsigned char out_[wire::kHeaderBytes + kNoticeBytesMax] = {};
  size_t out_bytes_ = 0;
  size_t out_sent_ = 0;
  wire::PeerState next_state_;
  bool state_waits_ = false;
  uint32_t sent_version_ = 0;
  uint32_t arrived_version_ = 0;
  uint32_t sent_ = 0;  // frames
};
static_assert(wire::kStateBytesMax <= kNoticeBytesMax && kEarlyBytesMax <= kNoticeBytesMax);

}  // namespace weir::plugins::tcp
