// SPDX-License-Identifier: Apache-2.0
#include "plugins/ofi/control.h"

#include <errno.h>
#include <linux/sockios.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

namespace weir::plugins::ofi {
namespace {

// Of frames, in one look at a peer that may go on sending.
constexpr int kFrameCountMax = 4096;

bool is_temporary(int error_number) {
  return error_number == EAGAIN || error_number == EWOULDBLOCK || error_number == ENOBUFS ||
         error_number == ENOMEM;
}

}  // namespace

Control::~Control() {
  if (fd_ >= 0) close(fd_);
}

void Control::say_card(const Card& card) {
  out_end_ += encode_card(card, out_ + out_end_);
  flush();
}

void Control::say(Kind kind) {
  out_end_ += encode_frame(kind, out_ + out_end_);
  flush();
}

void Control::say_goodbye(const Goodbye& goodbye) {
  out_end_ += encode_goodbye(goodbye, out_ + out_end_);
  flush();
}

void Control::flush() {
  while (fd_ >= 0 && !ended_ && !deaf_ && out_begin_ < out_end_) {
    const ssize_t sent =
        send(fd_, out_ + out_begin_, out_end_ - out_begin_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) {
      // An end is found by reading, behind what the peer has said before.
      deaf_ = !is_temporary(errno);
      return;
    }
    out_begin_ += static_cast<size_t>(sent);
  }
}

bool Control::send_notice(const unsigned char* notice, size_t bytes, uint32_t version) {
  flush();
  if (fd_ < 0 || left_ || ended_ || deaf_) return true;
  if (sending()) return false;
  if (sent_version_ == version) return true;
  out_begin_ = 0;
  out_end_ = encode_notice(notices_said_++, notice, bytes, out_);
  sent_version_ = version;
  flush();
  return !sending() || deaf_;
}

bool Control::arrived() {
  if (fd_ < 0 || left_ || ended_ || deaf_ || arrived_version_ == sent_version_) return true;
  int waiting = 0;
  if (sending() || (ioctl(fd_, SIOCOUTQ, &waiting) == 0 && waiting > 0)) return false;
  arrived_version_ = sent_version_;
  return true;
}

bool Control::drive() {
  if (fd_ < 0 || ended_) return false;
  flush();
  bool moved = false;
  for (int frames = 0; frames < kFrameCountMax;) {
    Kind kind = Kind::kCard;
    size_t wanted = kHeaderBytes;
    if (in_bytes_ >= kHeaderBytes) {
      size_t payload = 0;
      if (!decode_header(in_, &kind, &payload)) {
        ended_ = true;
        return true;
      }
      wanted += payload;
      if (in_bytes_ == wanted) {
        in_bytes_ = 0;
        moved = true;
        ++frames;
        if (!take_frame(kind, in_ + kHeaderBytes, payload)) {
          ended_ = true;
          return true;
        }
        continue;
      }
    }
    const ssize_t got = recv(fd_, in_ + in_bytes_, wanted - in_bytes_, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && is_temporary(errno)) return moved;
    if (got <= 0) {
      ended_ = true;
      return true;
    }
    in_bytes_ += static_cast<size_t>(got);
  }
  return moved;
}

bool Control::take_frame(Kind kind, const unsigned char* payload, size_t bytes) {
  if (!has_card_ && kind != Kind::kCard && kind != Kind::kGoodbye) return false;
  switch (kind) {
    case Kind::kCard:
      has_card_ = !has_card_ && !left_ && decode_card(payload, &card_);
      return has_card_;
    case Kind::kReady:
      if (ready_ || left_) return false;
      ready_ = true;
      return true;
    case Kind::kGoodbye:
      if (left_) return false;
      left_ = true;
      goodbye_ = decode_goodbye(payload);
      return true;
    case Kind::kTaken:
      if (taken_) return false;
      taken_ = true;
      return true;
    case Kind::kNotice:
      if (!ready_ || left_ || decode_notice_number(payload) != notices_got_) return false;
      ++notices_got_;
      notice_bytes_ = bytes - 4;
      memcpy(notice_, payload + 4, notice_bytes_);
      return true;
  }
  return false;
}

void Control::shut() {
  if (fd_ < 0) return;
  shutdown(fd_, SHUT_WR);
  // A connection that is closed with something unread takes back what it has sent.
  for (int i = 0; i < kFrameCountMax; ++i) {
    if (recv(fd_, in_, sizeof in_, MSG_DONTWAIT) <= 0) break;
  }
}

}  // namespace weir::plugins::ofi
