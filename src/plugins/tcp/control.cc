// SPDX-License-Identifier: Apache-2.0
#include "plugins/tcp/control.h"

#include <errno.h>
#include <linux/sockios.h>
#include <string.h>
#include <sys/ioctl.h>

namespace weir::plugins::tcp {

void Control::attach(Stream stream) {
  stream_ = stream;
  lost_ = broken_ = has_state_ = state_waits_ = false;
  received_ = sent_ = sent_version_ = arrived_version_ = 0;
  in_bytes_ = out_bytes_ = out_sent_ = 0;
  in_wanted_ = wire::kHeaderBytes;
}

void Control::receive() {
  // Many notices may lie ready; each takes the place of the one before.
  while (!left_ && !lost_ && stream_.is_open()) {
    const iovec piece = {in_ + in_bytes_, in_wanted_ - in_bytes_};
    const ssize_t got = stream_.receive(&piece, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && Stream::is_temporary(errno)) return;
    if (got <= 0) {
      lost_ = true;
      return;
    }
    in_bytes_ += static_cast<size_t>(got);
    if (in_bytes_ == in_wanted_) judge();
  }
}

void Control::judge() {
  if (in_wanted_ == wire::kHeaderBytes) {
    const bool good = wire::decode(in_, &in_header_) && in_header_.lane == kControlLane &&
                      in_header_.kind != wire::MessageKind::kMessage &&
                      in_header_.number == received_;
    if (!good) {
      lost_ = true;
      return;
    }
    if (in_header_.kind == wire::MessageKind::kGoodbye) {
      left_ = true;
      return;
    }
    in_wanted_ += in_header_.bytes;
    if (in_bytes_ < in_wanted_) return;
  }
  ++received_;
  const size_t bytes = in_wanted_ - wire::kHeaderBytes;
  if (in_header_.kind == wire::MessageKind::kState) {
    has_state_ = wire::decode(in_ + wire::kHeaderBytes, bytes, &state_);
    lost_ = !has_state_;
  } else {
    notice_version_ = in_header_.version;
    notice_bytes_ = bytes;
    memcpy(notice_, in_ + wire::kHeaderBytes, bytes);
  }
  in_bytes_ = 0;
  in_wanted_ = wire::kHeaderBytes;
}

bool Control::push_frame() {
  while (out_sent_ < out_bytes_ && !broken_) {
    const iovec piece = {out_ + out_sent_, out_bytes_ - out_sent_};
    const ssize_t sent = stream_.send(&piece, 1);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && Stream::is_temporary(errno)) return false;
    if (sent < 0) {
      // Why is told by what can be read: the end, or a goodbye before it.
      broken_ = true;
      return false;
    }
    out_sent_ += static_cast<size_t>(sent);
  }
  return !broken_;
}

bool Control::push() {
  if (!push_frame()) return false;
  if (!state_waits_) return true;
  state_waits_ = false;
  const size_t bytes = wire::encode(next_state_, out_ + wire::kHeaderBytes);
  wire::encode({wire::MessageKind::kState, kControlLane, sent_++, bytes}, out_);
  out_bytes_ = wire::kHeaderBytes + bytes;
  out_sent_ = 0;
  return push_frame();
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

bool Control::send(const unsigned char* notice, size_t bytes, uint32_t version) {
  if (!stream_.is_open() || left_ || broken_) return true;
  if (!push()) return broken_;
  if (sent_version_ == version) return true;
  wire::encode({wire::MessageKind::kNotice, kControlLane, sent_++, bytes, version}, out_);
  memcpy(out_ + wire::kHeaderBytes, notice, bytes);
  out_bytes_ = wire::kHeaderBytes + bytes;
  out_sent_ = 0;
  sent_version_ = version;
  return push() || broken_;
}

bool Control::arrived() {
  if (!stream_.is_open() || left_ || lost_ || broken_ || arrived_version_ == sent_version_)
    return true;
  int waiting = 0;
  if (out_sent_ < out_bytes_ || (ioctl(fd(), SIOCOUTQ, &waiting) == 0 && waiting > 0)) return false;
  arrived_version_ = sent_version_;
  return true;
}

void Control::say_goodbye(const unsigned char* notice, size_t bytes, uint32_t version) {
  if (!stream_.is_open()) return;
  (void)send(notice, bytes, version);
  // A goodbye in the middle of a notice would be taken for a part of it.
  if (push()) {
    wire::encode({wire::MessageKind::kGoodbye, kControlLane, sent_, 0}, out_);
    out_bytes_ = wire::kHeaderBytes;
    out_sent_ = 0;
    (void)push();
  }
  // At most what a socket holds: a peer that goes on sending is not waited for.
  constexpr int kReadsMax = 4096;
  for (int i = 0; i < kReadsMax; ++i) {
    const iovec piece = {in_, sizeof in_};
    if (stream_.receive(&piece, 1) <= 0) break;
  }
}

}  // namespace weir::plugins::tcp
