// SPDX-License-Identifier: Apache-2.0
#include "plugins/tcp/stream.h"

#include <unistd.h>

#include <memory>

namespace weir::plugins::tcp {

void Stream::close() {
  if (tls_ != nullptr) {
    delete tls_;
  } else if (fd_ >= 0) {
    ::close(fd_);
  }
  *this = Stream();
}

void Stream::discard() const {
  const linger at_once = {1, 0};
  (void)setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
}

bool Stream::secure(const net::TlsContext& context, net::Stream::Role role) {
  auto made = std::make_unique<net::Stream>(fd_);
  if (!made->secure(context, role)) {
    (void)made->release();
    return false;
  }
  tls_ = made.release();
  return true;
}

bool Stream::leave_tls() {
  if (tls_ == nullptr) return true;
  if (!tls_->is_ready() || tls_->has_unread()) return false;
  (void)tls_->release();
  delete tls_;
  tls_ = nullptr;
  return true;
}

void Stream::shut() const {
  if (tls_ != nullptr) {
    tls_->shut();
  } else if (fd_ >= 0) {
    (void)shutdown(fd_, SHUT_WR);
  }
}

}  // namespace weir::plugins::tcp
