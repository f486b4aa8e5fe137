// SPDX-License-Identifier: Apache-2.0
#include "plugins/tcp/control.h"

#include <errno.h>
#include <linux/sockios.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

namespace weir::plugins::tcp {
namespace {

using wire::MessageKind;

// What the socket is to hold while the peer reads nothing, of which the kernel grants twice what
// net.core.wmem_max allows, by default 416 KiB; and how much of that notices may take: the rest is for the
// early messages of all lanes.
constexpr int kRoomBytes = 384 * 1024;
constexpr int kNoticeRoomBytes = 16 * 1024;
static_assert(kRoomBytes >= kNoticeRoomBytes + static_cast<int>(Prelude::kMemoryBytes));

}  // namespace

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

// False: no frame that may come now.
bool Control::judge_header() {
  if (!wire::decode(in_, &in_header_) || in_header_.number != received_) return false;
  switch (in_header_.kind) {
    case MessageKind::kGoodbye:
    case MessageKind::kNotice:
    case MessageKind::kState:
      return in_header_.lane == kControlLane;
    case MessageKind::kEarly:
      return prelude_ != nullptr && prelude_->may_arrive(in_header_.lane, in_header_.bytes);
    case MessageKind::kTaken:
    case MessageKind::kWish:
    case MessageKind::kBegin:
      return prelude_ != nullptr && prelude_->hear(in_header_);
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
  } else if (in_header_.kind == MessageKind::kNotice) {
    notice_version_ = in_header_.version;
    notice_bytes_ = bytes;
    memcpy(notice_, in_ + wire::kHeaderBytes, bytes);
  } else if (in_header_.kind == MessageKind::kEarly) {
    prelude_->arrived(in_header_.lane, in_ + wire::kHeaderBytes, bytes);
  }
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

// What follows the header stands behind it in out_ already.
void Control::begin_frame(const wire::MessageHeader& header) {
  wire::encode(header, out_);
  out_bytes_ = wire::kHeaderBytes + header.bytes;
  out_sent_ = 0;
  ++sent_;
}

bool Control::next_frame() {
  wire::MessageHeader word;
  if (state_waits_) {
    state_waits_ = false;
    word.kind = MessageKind::kState;
    word.lane = kControlLane;
    word.bytes = wire::encode(next_state_, out_ + wire::kHeaderBytes);
  } else if (prelude_ == nullptr || !prelude_->next_word(&word)) {
    return false;
  }
  word.number = sent_;
  begin_frame(word);
  return true;
}

bool Control::push() {
  do {
    if (!push_frame()) return false;
  } while (next_frame());
  return true;
}

void Control::carry(Prelude* prelude) {
  prelude_ = prelude;
  (void)setsockopt(fd(), SOL_SOCKET, SO_SNDBUF, &kRoomBytes, sizeof kRoomBytes);
}

bool Control::send_early(uint32_t lane, const void* data, uint64_t bytes, uint32_t* number) {
  if (!stream_.is_open() || left_ || broken_ || !push()) return false;
  *number = sent_;
  if (bytes != 0) memcpy(out_ + wire::kHeaderBytes, data, bytes);
  begin_frame({MessageKind::kEarly, static_cast<uint8_t>(lane), sent_, bytes});
  prelude_->sent(lane, bytes);
  (void)push_frame();
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

bool Control::send(const unsigned char* notice, size_t bytes, uint32_t version) {
  if (!stream_.is_open() || left_ || broken_) return true;
  if (!push()) return broken_;
  if (sent_version_ == version) return true;
  int waiting = 0;
  if (prelude_ != nullptr && prelude_->in_use() && ioctl(fd(), SIOCOUTQ, &waiting) == 0 &&
      waiting > kNoticeRoomBytes) {
    return false;
  }
  if (bytes != 0) memcpy(out_ + wire::kHeaderBytes, notice, bytes);
  begin_frame({MessageKind::kNotice, kControlLane, sent_, bytes, version});
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
    begin_frame({MessageKind::kGoodbye, kControlLane, sent_, 0});
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
