// SPDX-License-Identifier: Apache-2.0
// Stream: the one place through which bytes enter and leave a connection of this transport, plain
// or inside TLS (a session of weir_control_t). A value that names a connection and does not own it,
// as a descriptor does: its last user calls close(). Nothing waits. One thread at a time.
#pragma once

#include <errno.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>

#include "weir/plugin.h"

namespace weir::plugins::tcp {

class Stream {
 public:
  Stream() = default;
  explicit Stream(int fd) : fd_(fd) {}
  // One that the control network has made; `control` outlives it.
  Stream(const weir_control_t* control, const weir_control_connection_t& connection)
      : fd_(connection.fd), session_(connection.session), control_(control) {}

  int fd() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  // Ends it, whatever copies of this there are; nothing is sent, since a forked child does it, too.
  void close();
  // What was sent and has not arrived is lost when it is closed.
  void discard() const;

  bool is_secured() const { return session_ != nullptr; }
  // Whether an errno of send or receive means that what arrived is not what was sent.
  bool is_damage(int error_number) const { return is_secured() && error_number == EPROTO; }

  // As sendmsg and recvmsg: the number of bytes, 0 at the end of what can be received, or -1 with
  // errno set. After a temporary error, the next send must begin with the same bytes, and have no
  // fewer.
  ssize_t send(const iovec* pieces, size_t count) const {
    if (is_secured()) [[unlikely]]
      return control_->session_send(session_, pieces, count);
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(pieces);
    message.msg_iovlen = count;
    return sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  ssize_t receive(const iovec* pieces, size_t count) const {
    if (is_secured()) [[unlikely]]
      return control_->session_receive(session_, pieces, count);
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(pieces);
    message.msg_iovlen = count;
    return recvmsg(fd_, &message, MSG_DONTWAIT);
  }
  // The same of one piece, which costs the kernel less.
  ssize_t send(const void* data, size_t bytes) const {
    const iovec piece = {const_cast<void*>(data), bytes};
    if (is_secured()) [[unlikely]]
      return control_->session_send(session_, &piece, 1);
    return ::send(fd_, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  ssize_t receive(void* data, size_t bytes) const {
    const iovec piece = {data, bytes};
    if (is_secured()) [[unlikely]]
      return control_->session_receive(session_, &piece, 1);
    return recv(fd_, data, bytes, MSG_DONTWAIT);
  }
  // The kernel reads the pieces until it says that it has done with them (zero_copy.h). Not inside
  // TLS.
  ssize_t send_shared(const iovec* pieces, size_t count) const {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(pieces);
    message.msg_iovlen = count;
    return sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT | MSG_ZEROCOPY);
  }
  // Whether there are bytes to receive that poll does not report.
  bool has_unread() const { return is_secured() && control_->session_has_unread(session_) != 0; }
  // Ends sending: nothing more is sent.
  void shut() const;
  // Throws away what has arrived, at most what a socket holds: closing a connection with unread
  // data would discard what was sent and has not arrived.
  void drain() const;

  // Whether an errno of receive means that nothing more has arrived.
  static bool is_empty(int error_number) {
    return error_number == EAGAIN || error_number == EWOULDBLOCK;
  }
  // Whether an errno of these is temporary.
  static bool is_temporary(int error_number) {
    return is_empty(error_number) || error_number == ENOBUFS || error_number == ENOMEM;
  }

 private:
  int fd_ = -1;
  weir_control_session_t* session_ = nullptr;  // has the descriptor, then
  const weir_control_t* control_ = nullptr;
};

}  // namespace weir::plugins::tcp
