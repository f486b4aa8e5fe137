// SPDX-License-Identifier: Apache-2.0
#include "plugins/tcp/stream.h"

#include <unistd.h>

namespace weir::plugins::tcp {

void Stream::close() {
  if (is_secured()) {
    control_->session_close(session_);
  } else if (fd_ >= 0) {
    ::close(fd_);
  }
  *this = Stream();
}

void Stream::discard() const {
  const linger at_once = {1, 0};
  (void)setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
}

void Stream::shut() const {
  if (is_secured()) {
    control_->session_shut(session_);
  } else if (fd_ >= 0) {
    (void)shutdown(fd_, SHUT_WR);
  }
}

void Stream::drain() const {
  constexpr int kReadsMax = 4096;
  unsigned char unwanted[4096];
  for (int i = 0; i < kReadsMax && is_open(); ++i) {
    const iovec piece = {unwanted, sizeof unwanted};
    if (receive(&piece, 1) <= 0) return;
  }
}

}  // namespace weir::plugins::tcp
