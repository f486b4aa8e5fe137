// SPDX-License-Identifier: Apache-2.0
#include "plugins/tcp/control.h"

#include <errno.h>
#include <string.h>

namespace weir::plugins::tcp {
namespace {

using wire::MessageKind;

}  // namespace

void Control::attach(Stream stream) {
  stream_ = stream;
  lost_ = broken_ = has_state_ = state_waits_ = false;
  received_ = sent_ = 0;
  in_bytes_ = out_bytes_ = out_sent_ = 0;
  in_wanted_ = wire::kHeaderBytes;
}

bool Control::receive() {
  while (!left_ && !lost_ && stream_.is_open()) {
    const iovec piece = {in_ + in_bytes_, in_wanted_ - in_bytes_};
    const ssize_t got = stream_.receive(&piece, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && Stream::is_temporary(errno)) return !Stream::is_empty(errno);
    if (got <= 0) {
      lost_ = true;
      return false;
    }
    in_bytes_ += static_cast<size_t>(got);
    if (in_bytes_ == in_wanted_) judge();
  }
  return false;
}

// False: no frame that may come now.
bool Control::judge_header() {
  if (!wire::decode(in_, &in_header_) || in_header_.number != received_) return false;
  switch (in_header_.kind) {
    case MessageKind::kGoodbye:
    case MessageKind::kState:
      return in_header_.lane == kControlLane;
    default:
      return false;
  }
}

void Control::judge() {
  if (in_wanted_ == wire::kHeaderBytes) {
    if (!judge_header()) {
      lost_ = true;
      return;
    }
    if (in_header_.kind == MessageKind::kGoodbye) {
      left_ = true;
      return;
    }
    in_wanted_ += in_header_.bytes;
    if (in_bytes_ < in_wanted_) return;
  }
  frame_ends();
  ++received_;
  in_bytes_ = 0;
  in_wanted_ = wire::kHeaderBytes;
}

void Control::frame_ends() {
  const size_t bytes = in_wanted_ - wire::kHeaderBytes;
  if (in_header_.kind == MessageKind::kState) {
    has_state_ = wire::decode(in_ + wire::kHeaderBytes, bytes, &state_);
    lost_ = !has_state_;
  }
}

bool Control::push_frame() {
  while (out_sent_ < out_bytes_ && !broken_) {
    const iovec piece = {out_ + out_sent_, out_bytes_ - out_sent_};
    const ssize_t sent = stream_.send(&piece, 1);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && Stream::is_temporary(errno)) return false;
    if (sent < 0) {
      // The reason can still be read: the end, or a goodbye before it.
      broken_ = true;
      return false;
    }
    out_sent_ += static_cast<size_t>(sent);
  }
  return !broken_;
}

// The data of the frame are in out_ already, after the header.
void Control::begin_frame(const wire::MessageHeader& header) {
  wire::encode(header, out_);
  out_bytes_ = wire::kHeaderBytes + header.bytes;
  out_sent_ = 0;
  ++sent_;
}

bool Control::next_frame() {
  if (!state_waits_) return false;
  state_waits_ = false;
  const size_t bytes = wire::encode(next_state_, out_ + wire::kHeaderBytes);
  begin_frame({MessageKind::kState, kControlLane, sent_, bytes});
  return true;
}

bool Control::push() {
  do {
    if (!push_frame()) return false;
  } while (next_frame());
  return true;
}

void Control::send_state(const wire::PeerState& state) {
  if (!stream_.is_open() || left_ || broken_) return;
  next_state_ = state;
  state_waits_ = true;
  (void)push();
}

bool Control::take_state(wire::PeerState* state) {
  if (!has_state_) return false;
  has_state_ = false;
  *state = state_;
  return true;
}

void Control::say_goodbye() {
  if (!stream_.is_open()) return;
  // A goodbye in the middle of a frame would be taken for a part of it.
  if (push()) {
    begin_frame({MessageKind::kGoodbye, kControlLane, sent_, 0});
    (void)push();
  }
  stream_.drain();
}

}  // namespace weir::plugins::tcp
