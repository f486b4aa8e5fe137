// SPDX-License-Identifier: Apache-2.0
// Stream: the one place through which bytes enter and leave a connection of this transport, plain or
// inside TLS (net/stream.h). A value that names a connection and does not own it, as a descriptor
// does: whoever has it last calls close(). Nothing waits. One thread at a time.
#pragma once

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>

#include "net/stream.h"

namespace weir::plugins::tcp {

class Stream {
 public:
  Stream() = default;
  explicit Stream(int fd) : fd_(fd) {}

  int fd() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  // Ends it, whatever copies of this there are; without a word, since a forked child does it, too.
  void close();
  // What was sent and has not arrived is lost when it is closed.
  void discard() const;

  // Puts a connection over which nothing was said yet inside TLS. False: no memory, and it stays plain.
  bool secure(const net::TlsContext& context, net::Stream::Role role);
  bool is_secured() const { return tls_ != nullptr; }
  // Out of TLS again, at a byte that both ends know. False: the other end has said more inside.
  bool leave_tls();
  // Null: it is plain.
  const net::Stream* tls() const { return tls_; }
  bool was_damaged() const {
    return tls_ != nullptr && tls_->failure() == net::Stream::Failure::kDamaged;
  }

  // As sendmsg and recvmsg: the number of bytes, 0 at the end of what can be received, or -1 with
  // errno set. After an error that passes, send begins with the same bytes, and has not fewer.
  ssize_t send(const iovec* pieces, size_t count) const {
    if (tls_ != nullptr) [[unlikely]]
      return tls_->send(pieces, count);
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(pieces);
    message.msg_iovlen = count;
    return sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  ssize_t receive(const iovec* pieces, size_t count) const {
    if (tls_ != nullptr) [[unlikely]]
      return tls_->recv(pieces, count);
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(pieces);
    message.msg_iovlen = count;
    return recvmsg(fd_, &message, MSG_DONTWAIT);
  }
  // The same of one piece, which costs the kernel less.
  ssize_t send(const void* data, size_t bytes) const {
    const iovec piece = {const_cast<void*>(data), bytes};
    if (tls_ != nullptr) [[unlikely]]
      return tls_->send(&piece, 1);
    return ::send(fd_, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  ssize_t receive(void* data, size_t bytes) const {
    const iovec piece = {data, bytes};
    if (tls_ != nullptr) [[unlikely]]
      return tls_->recv(&piece, 1);
    return recv(fd_, data, bytes, MSG_DONTWAIT);
  }
  // The kernel reads the pieces until it says that it has done with them (zero_copy.h). Not inside TLS.
  ssize_t send_shared(const iovec* pieces, size_t count) const {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(pieces);
    message.msg_iovlen = count;
    return sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT | MSG_ZEROCOPY);
  }
  // What to poll for, of who waits to receive and, `writes`, to send.
  short events(bool writes) const {
    if (tls_ != nullptr) return tls_->events(writes);
    return static_cast<short>(writes ? POLLIN | POLLOUT : POLLIN);
  }
  // Bytes that can be received and of which poll does not tell.
  bool has_unread() const { return tls_ != nullptr && tls_->has_unread(); }
  // Nothing more is sent.
  void shut() const;

  // An errno of these that passes.
  static bool is_temporary(int error_number) {
    return error_number == EAGAIN || error_number == EWOULDBLOCK || error_number == ENOBUFS ||
           error_number == ENOMEM;
  }

 private:
  int fd_ = -1;
  net::Stream* tls_ = nullptr;  // has the descriptor, then
};

}  // namespace weir::plugins::tcp
