// SPDX-License-Identifier: Apache-2.0
#include "plugins/tcp/arrivals.h"

#include <sys/epoll.h>
#include <unistd.h>

namespace weir::plugins::tcp {

Arrivals::~Arrivals() {
  if (epoll_ >= 0) close(epoll_);
}

void Arrivals::watch(int fd, const Connection& connection) {
  if (epoll_ < 0) epoll_ = epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP | EPOLLET;
  event.data.u64 = word_of(connection);
  if (epoll_ < 0 || epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) is_complete_ = false;
}

uint32_t Arrivals::collect_words(uint64_t* words) const {
  epoll_event events[kWordsMax];
  const int count = epoll_ >= 0 ? epoll_wait(epoll_, events, kWordsMax, 0) : 0;
  for (int i = 0; i < count; ++i) words[i] = events[i].data.u64;
  return count > 0 ? static_cast<uint32_t>(count) : 0;
}

}  // namespace weir::plugins::tcp
