// SPDX-License-Identifier: Apache-2.0
#include "plugins/ucx/socket_watch.h"

#include <dirent.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <system_error>
#include <utility>

namespace weir::plugins::ucx {
namespace {

// A socket of a peer that lives is acknowledged more often.
constexpr uint32_t kSilentMs = 1000;

// A descriptor in an epoll set, and the file that it was when it was added.
struct Entry {
  int fd;
  unsigned long inode;
};

// "tfd:        7 events:       1d data: 7  pos:0 ino:35f17 sdev:8"
std::vector<Entry> entries_of(int epoll) {
  std::vector<Entry> entries;
  FILE* file = fopen(("/proc/self/fdinfo/" + std::to_string(epoll)).c_str(), "re");
  if (file == nullptr) return entries;
  char* line = nullptr;
  size_t bytes = 0;
  while (getline(&line, &bytes, file) > 0) {
    Entry entry{};
    const char* const inode = strstr(line, " ino:");
    if (sscanf(line, "tfd: %d", &entry.fd) == 1 && inode != nullptr &&
        sscanf(inode, " ino:%lx", &entry.inode) == 1) {
      entries.push_back(entry);
    }
  }
  free(line);
  fclose(file);
  return entries;
}

bool is_stuck(const Entry& entry) {
  struct stat status {};
  int protocol = 0;
  socklen_t bytes = sizeof protocol;
  if (fstat(entry.fd, &status) != 0 || status.st_ino != entry.inode ||
      getsockopt(entry.fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &bytes) != 0 ||
      protocol != IPPROTO_TCP) {
    return false;
  }
  tcp_info info{};
  bytes = sizeof info;
  if (getsockopt(entry.fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return false;
  if (info.tcpi_state == TCP_LISTEN) return false;
  if (info.tcpi_state != TCP_ESTABLISHED) return true;
  int unanswered = 0;
  return ioctl(entry.fd, SIOCOUTQ, &unanswered) == 0 && unanswered > 0 &&
         (info.tcpi_last_ack_recv >= kSilentMs || info.tcpi_backoff > 0);
}

}  // namespace

std::vector<int> epoll_descriptors() {
  std::vector<int> found;
  DIR* const folder = opendir("/proc/self/fd");
  if (folder == nullptr) return found;
  while (const dirent* const one = readdir(folder)) {
    char target[64] = {};
    const ssize_t bytes = readlinkat(dirfd(folder), one->d_name, target, sizeof target - 1);
    if (bytes > 0 && strcmp(target, "anon_inode:[eventpoll]") == 0) {
      found.push_back(static_cast<int>(strtol(one->d_name, nullptr, 10)));
    }
  }
  closedir(folder);
  std::sort(found.begin(), found.end());
  return found;
}

int shut_stuck_sockets(const std::vector<int>& epolls) {
  int count = 0;
  for (const int epoll : epolls) {
    for (const Entry& entry : entries_of(epoll)) {
      if (is_stuck(entry) && shutdown(entry.fd, SHUT_RDWR) == 0) ++count;
    }
  }
  return count;
}

SocketWatch::SocketWatch(std::vector<int> epolls, std::chrono::milliseconds patience)
    : epolls_(std::move(epolls)), patience_(patience) {
  if (epolls_.empty()) return;
  // The caller's signals are not for this thread.
  sigset_t all, before;
  sigfillset(&all);
  const bool blocked = pthread_sigmask(SIG_SETMASK, &all, &before) == 0;
  try {
    thread_ = std::thread(&SocketWatch::run, this);
  } catch (const std::system_error&) {
    // UCX is not watched then.
  }
  if (blocked) (void)pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

SocketWatch::~SocketWatch() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void SocketWatch::run() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, patience_, [this] { return ended_; })) {
    (void)shut_stuck_sockets(epolls_);
  }
}

}  // namespace weir::plugins::ucx
