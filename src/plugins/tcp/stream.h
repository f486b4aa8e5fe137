// SPDX-License-Identifier: Apache-2.0
// Stream: the one place through which bytes enter and leave a connection of this transport. A value
// that names a descriptor and does not own it. Nothing waits. One thread at a time.
#pragma once

#include <errno.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>

namespace weir::plugins::tcp {

class Stream {
 public:
  Stream() = default;
  explicit Stream(int fd) : fd_(fd) {}

  int fd() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }

  // As sendmsg and recvmsg: the number of bytes, 0 at the end of what can be received, or -1 with
  // errno set.
  ssize_t send(const iovec* pieces, size_t count) const {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(pieces);
    message.msg_iovlen = count;
    return sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  ssize_t receive(const iovec* pieces, size_t count) const {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(pieces);
    message.msg_iovlen = count;
    return recvmsg(fd_, &message, MSG_DONTWAIT);
  }

  // An errno of these that passes.
  static bool is_temporary(int error_number) {
    return error_number == EAGAIN || error_number == EWOULDBLOCK || error_number == ENOBUFS ||
           error_number == ENOMEM;
  }

 private:
  int fd_ = -1;
};

}  // namespace weir::plugins::tcp
