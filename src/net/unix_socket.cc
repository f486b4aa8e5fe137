// SPDX-License-Identifier: Apache-2.0
#include "net/unix_socket.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>

namespace weir::net {
namespace {

// Calls `use` with a new socket and the address of `name`.
template <typename Use>
int with_socket(const std::string& name, const Use& use) {
  sockaddr_un address{};
  if (name.size() + 1 > sizeof address.sun_path) {
    errno = ENAMETOOLONG;
    return -1;
  }
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path + 1, name.data(), name.size());
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0 || use(fd, reinterpret_cast<const sockaddr*>(&address), bytes)) return fd;
  const int error_number = errno;
  close(fd);
  errno = error_number;
  return -1;
}

}  // namespace

int listen_locally(const std::string& name, int backlog) {
  return with_socket(name, [backlog](int fd, const sockaddr* address, socklen_t bytes) {
    return bind(fd, address, bytes) == 0 && listen(fd, backlog) == 0;
  });
}

int connect_locally(const std::string& name) {
  return with_socket(name, [](int fd, const sockaddr* address, socklen_t bytes) {
    return connect(fd, address, bytes) == 0;
  });
}

int accept_locally(int listener) {
  for (;;) {
    const int fd = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0 || (errno != EINTR && errno != ECONNABORTED)) return fd;
  }
}

bool peer_process(int connection, pid_t* process, uid_t* user) {
  ucred credentials{};
  socklen_t bytes = sizeof credentials;
  if (getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) != 0) return false;
  *process = credentials.pid;
  *user = credentials.uid;
  return true;
}

bool peer_of_same_user(int connection, pid_t* process) {
  uid_t user = 0;
  return peer_process(connection, process, &user) && user == geteuid();
}

}  // namespace weir::net
