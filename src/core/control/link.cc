// SPDX-License-Identifier: Apache-2.0
#include "core/control/link.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "net/ip_socket.h"
#include "net/little_endian.h"

namespace weir::control {
namespace {

constexpr size_t kHeaderBytes = 16;
constexpr unsigned char kMagic[2] = {'W', 'C'};
constexpr size_t kReadBytes = 16384;
// Descriptors in one message of the kernel, and kept until they are asked for.
constexpr size_t kDescriptorsMax = 4;
// At most so many reads in one call, so that a peer that keeps sending does not delay the others.
constexpr int kReadsMax = 16;

bool is_temporary(int error_number) {
  return error_number == EAGAIN || error_number == EWOULDBLOCK || error_number == ENOBUFS ||
         error_number == ENOMEM || error_number == EINTR;
}

bool fits(Frame::Kind kind, size_t bytes) {
  switch (kind) {
    case Frame::Kind::kState:
      return bytes <= kNoticeBytesMax;
    case Frame::Kind::kMessage:
      return bytes <= kMessageBytesMax;
    case Frame::Kind::kBye:
    case Frame::Kind::kReceived:
      return bytes == 0;
    case Frame::Kind::kWantDescriptor:
    case Frame::Kind::kDescriptor:
      return bytes == kDescriptorKeyBytes;
    case Frame::Kind::kStart:
      return bytes <= kStartBytesMax;
  }
  return false;
}

net::Mac mac_of(const net::Mac& key, uint64_t number, std::string_view frame) {
  std::string message(sizeof number, '\0');
  net::put(reinterpret_cast<unsigned char*>(message.data()), number);
  message += frame;
  return net::hmac_sha256(key.data(), key.size(), message.data(), message.size());
}

}  // namespace

void Frame::append_to(std::string* bytes) const {
  unsigned char header[kHeaderBytes];
  std::memcpy(header, kMagic, sizeof kMagic);
  header[2] = static_cast<unsigned char>(kind);
  header[3] = detail;
  unsigned char* at = net::put(header + 4, static_cast<uint32_t>(payload.size()));
  at = net::put(at, rank);
  net::put(at, version);
  bytes->append(reinterpret_cast<const char*>(header), sizeof header);
  bytes->append(payload);
}

Link::Link(net::Stream stream, bool is_local, const net::Handshake& handshake)
    : stream_(std::move(stream)), is_local_(is_local), handshake_(handshake) {}

Link::~Link() {
  for (const Attached& one : attached_) close(one.fd);
  for (const int fd : descriptors_) close(fd);
  net::wipe(send_key_.data(), send_key_.size());
  net::wipe(receive_key_.data(), receive_key_.size());
}

uint32_t Link::events() const {
  const bool writes = (proven_ ? queued_bytes() : handshake_.out_bytes()) > 0;
  const short wanted = stream_.events(writes);
  return ((wanted & POLLIN) != 0 ? uint32_t{EPOLLIN} : 0u) |
         ((wanted & POLLOUT) != 0 ? uint32_t{EPOLLOUT} : 0u);
}

Link::Step Link::advance(int* error_number) {
  using State = net::Handshake::State;
  for (;;) {
    while (handshake_.out_bytes() > 0) {
      const ssize_t sent = stream_.send(handshake_.out(), handshake_.out_bytes());
      if (sent < 0) {
        if (errno == EINTR) continue;
        if (is_temporary(errno)) break;
        *error_number = errno;
        return Step::kEnded;
      }
      handshake_.sent(static_cast<size_t>(sent));
    }
    if (handshake_.state() == State::kProven) {
      if (handshake_.out_bytes() > 0) return Step::kGoesOn;
      send_key_ = handshake_.own_key();
      receive_key_ = handshake_.peer_key();
      proven_ = true;
      return Step::kGoesOn;
    }
    if (handshake_.state() == State::kChallenged || handshake_.state() == State::kClaimed) {
      return Step::kGoesOn;
    }
    if (handshake_.state() != State::kBusy) return Step::kEnded;
    unsigned char bytes[net::Handshake::kFrameBytesMax];
    const bool was_ready = stream_.is_ready();
    const ssize_t got = stream_.recv(bytes, std::min(handshake_.wanted(), sizeof bytes));
    if (got < 0) {
      // Data that had to wait for TLS's handshake may leave now.
      if (is_temporary(errno) && !was_ready && stream_.is_ready()) continue;
      if (is_temporary(errno)) return Step::kGoesOn;
      *error_number = errno;
      return Step::kEnded;
    }
    if (got == 0) {
      *error_number = ECONNRESET;
      return Step::kEnded;
    }
    handshake_.feed(bytes, static_cast<size_t>(got));
  }
}

void Link::queue(const Frame& frame) {
  if (sent_ > kReadBytes && sent_ * 2 > out_.size()) {
    out_base_ += sent_;
    out_.erase(0, std::exchange(sent_, 0));
  }
  const size_t begin = out_.size();
  frame.append_to(&out_);
  if (!has_mac()) return;
  const net::Mac mac = mac_of(send_key_, sent_count_++, std::string_view(out_).substr(begin));
  out_.append(reinterpret_cast<const char*>(mac.data()), mac.size());
}

void Link::queue_descriptor(std::string_view key, int fd) {
  const int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (copy >= 0) attached_.push_back({out_base_ + out_.size(), copy});
  const uint8_t detail = copy >= 0 ? 0 : Frame::kWithoutDescriptor;
  queue({Frame::Kind::kDescriptor, detail, 0, 0, key});
}

bool Link::flush() {
  while (sent_ < out_.size()) {
    size_t bytes = out_.size() - sent_;
    ssize_t sent = 0;
    if (attached_.empty()) {
      sent = stream_.send(out_.data() + sent_, bytes);
    } else {
      // A descriptor goes with the first byte of its frame, and no earlier byte.
      const uint64_t at = out_base_ + sent_;
      const bool now = attached_.front().at == at;
      if (!now) {
        bytes = std::min<size_t>(bytes, attached_.front().at - at);
      } else if (attached_.size() > 1) {
        bytes = std::min<size_t>(bytes, attached_[1].at - at);
      }
      iovec piece = {out_.data() + sent_, bytes};
      msghdr message{};
      message.msg_iov = &piece;
      message.msg_iovlen = 1;
      alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))] = {};
      if (now) {
        message.msg_control = space;
        message.msg_controllen = sizeof space;
        cmsghdr* const head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(sizeof(int));
        std::memcpy(CMSG_DATA(head), &attached_.front().fd, sizeof(int));
      }
      sent = sendmsg(fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent > 0 && now) {
        close(attached_.front().fd);
        attached_.pop_front();
      }
    }
    if (sent < 0) {
      if (errno == EINTR) continue;
      return is_temporary(errno);
    }
    sent_ += static_cast<size_t>(sent);
  }
  out_base_ += sent_;
  out_.clear();
  sent_ = 0;
  return true;
}

bool Link::read_more(bool* any) {
  char bytes[kReadBytes];
  ssize_t got = 0;
  if (is_local_) {
    iovec piece = {bytes, sizeof bytes};
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char space[CMSG_SPACE(kDescriptorsMax * sizeof(int))];
    message.msg_control = space;
    message.msg_controllen = sizeof space;
    got = recvmsg(fd(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    for (cmsghdr* head = got < 0 ? nullptr : CMSG_FIRSTHDR(&message); head != nullptr;
         head = CMSG_NXTHDR(&message, head)) {
      if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
      const size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (size_t i = 0; i < count; ++i) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(head) + i * sizeof fd, sizeof fd);
        if (descriptors_.size() < kDescriptorsMax) {
          descriptors_.push_back(fd);
        } else {
          close(fd);
        }
      }
    }
  } else {
    got = stream_.recv(bytes, sizeof bytes);
  }
  const int error_number = errno;
  if (got > 0) in_.append(bytes, static_cast<size_t>(got));
  *any = got > 0;
  return got > 0 || (got < 0 && is_temporary(error_number));
}

// The frame lies at `frame`, its MAC behind it.
bool Link::check_mac(std::string_view frame) {
  const net::Mac right = mac_of(receive_key_, received_count_++, frame);
  return net::equal_in_constant_time(frame.data() + frame.size(), right.data(), right.size());
}

bool Link::parse(const std::function<bool(const Frame&)>& take) {
  size_t begin = 0;
  bool good = true;
  while (good && in_.size() - begin >= kHeaderBytes) {
    const auto* const header = reinterpret_cast<const unsigned char*>(in_.data()) + begin;
    Frame frame;
    frame.kind = static_cast<Frame::Kind>(header[2]);
    frame.detail = header[3];
    const uint32_t payload_bytes = net::get<uint32_t>(header + 4);
    frame.rank = net::get<uint32_t>(header + 8);
    frame.version = net::get<uint32_t>(header + 12);
    if (std::memcmp(header, kMagic, sizeof kMagic) != 0 || !fits(frame.kind, payload_bytes)) {
      malformed_ = true;
      return false;
    }
    const size_t frame_bytes = kHeaderBytes + payload_bytes;
    const size_t mac_bytes = has_mac() ? net::kMacBytes : 0;
    if (in_.size() - begin < frame_bytes + mac_bytes) break;
    if (mac_bytes != 0 && !check_mac(std::string_view(in_).substr(begin, frame_bytes))) {
      malformed_ = true;
      return false;
    }
    frame.payload = std::string_view(in_).substr(begin + kHeaderBytes, payload_bytes);
    good = take(frame);
    begin += frame_bytes + mac_bytes;
  }
  in_.erase(0, begin);
  return good;
}

bool Link::receive(const std::function<bool(const Frame&)>& take) {
  for (int i = 0; i < kReadsMax; ++i) {
    bool any = false;
    const bool open = read_more(&any);
    // Frames that arrived before the end count.
    if (any && !parse(take)) return false;
    if (!open) return false;
    if (!any) return true;
  }
  return true;
}

int Link::take_descriptor() {
  if (descriptors_.empty()) return -1;
  const int fd = descriptors_.front();
  descriptors_.pop_front();
  return fd;
}

bool Link::is_stalled(uint32_t patience_ms) const {
  return !is_local_ && net::is_stalled(fd(), patience_ms);
}

bool Link::is_acknowledged() const {
  if (is_local_) return true;
  int waiting = 0;
  return queued_bytes() == 0 && !(ioctl(fd(), SIOCOUTQ, &waiting) == 0 && waiting > 0);
}

}  // namespace weir::control
