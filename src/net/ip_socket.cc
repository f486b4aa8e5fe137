// SPDX-License-Identifier: Apache-2.0
#include "net/ip_socket.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <string.h>
#include <unistd.h>

namespace weir::net {
namespace {

constexpr int kIdleSeconds = 10;
constexpr int kIntervalSeconds = 5;
constexpr int kProbeCount = 4;
constexpr unsigned int kUnansweredMs = 30'000;

int make_socket(const IpAddress& address) {
  return socket(address.family == 4 ? AF_INET : AF_INET6,
                SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
}

int close_keeping_errno(int fd) {
  const int error_number = errno;
  close(fd);
  errno = error_number;
  return -1;
}

// As getsockname and getpeername.
IpAddress address_by(int (*name_of)(int, sockaddr*, socklen_t*), int fd) {
  sockaddr_storage name{};
  socklen_t bytes = sizeof name;
  auto* const address = reinterpret_cast<sockaddr*>(&name);
  return name_of(fd, address, &bytes) == 0 ? from_sockaddr(address) : IpAddress();
}

void set(int fd, int level, int name, int value) {
  // These options are optional: a failure is ignored.
  (void)setsockopt(fd, level, name, &value, sizeof value);
}

}  // namespace

int listen_at(const IpAddress& address, uint16_t* port, int backlog) {
  if (!address.is_host()) {
    errno = EADDRNOTAVAIL;
    return -1;
  }
  const int fd = make_socket(address);
  if (fd < 0) return -1;
  sockaddr_storage name;
  socklen_t bytes = to_sockaddr(address, *port, &name);
  // Earlier connections in TIME_WAIT must not prevent the reuse of a port.
  set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  if (bind(fd, reinterpret_cast<const sockaddr*>(&name), bytes) != 0 || listen(fd, backlog) != 0) {
    return close_keeping_errno(fd);
  }
  bytes = sizeof name;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&name), &bytes) != 0) {
    return close_keeping_errno(fd);
  }
  *port = port_of(name);
  return fd;
}

int begin_connect(const IpAddress& address, uint16_t port, const IpAddress& source,
                  const char* device) {
  if (!address.is_host() || port == 0) {
    errno = EADDRNOTAVAIL;
    return -1;
  }
  const int fd = make_socket(address);
  if (fd < 0) return -1;
  sockaddr_storage name;
  if (device != nullptr && *device != 0) {
    const auto length = static_cast<socklen_t>(strlen(device));
    (void)setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, device, length);
  }
  if (source.valid() && source.family == address.family) {
    // The port is chosen at connect, so that many connections may share one.
    set(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
    const socklen_t bytes = to_sockaddr(source, 0, &name);
    if (bind(fd, reinterpret_cast<const sockaddr*>(&name), bytes) != 0) {
      return close_keeping_errno(fd);
    }
  }
  prepare_stream(fd);
  const socklen_t bytes = to_sockaddr(address, port, &name);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&name), bytes) == 0 || errno == EINPROGRESS ||
      errno == EINTR) {
    return fd;
  }
  return close_keeping_errno(fd);
}

int connect_error(int fd) {
  int error_number = 0;
  socklen_t bytes = sizeof error_number;
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error_number, &bytes) != 0) return errno;
  return error_number;
}

int accept_from(int listener, IpAddress* from) {
  for (;;) {
    sockaddr_storage name{};
    socklen_t bytes = sizeof name;
    const int fd =
        accept4(listener, reinterpret_cast<sockaddr*>(&name), &bytes, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
      *from = from_sockaddr(reinterpret_cast<const sockaddr*>(&name));
      prepare_stream(fd);
      return fd;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    return -1;
  }
}

void prepare_stream(int fd) {
  set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(fd, IPPROTO_TCP, TCP_KEEPIDLE, kIdleSeconds);
  set(fd, IPPROTO_TCP, TCP_KEEPINTVL, kIntervalSeconds);
  set(fd, IPPROTO_TCP, TCP_KEEPCNT, kProbeCount);
  (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &kUnansweredMs, sizeof kUnansweredMs);
}

IpAddress local_address(int fd) { return address_by(getsockname, fd); }

IpAddress peer_address(int fd) { return address_by(getpeername, fd); }

void acknowledge_at_once(int fd) { set(fd, IPPROTO_TCP, TCP_QUICKACK, 1); }

bool is_stalled(int fd, uint32_t patience_ms) {
  tcp_info info{};
  socklen_t bytes = sizeof info;
  if (fd < 0 || getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return false;
  // Where the own interface is down nothing is sent, and the kernel probes as with a closed window,
  // of which a peer that lives answers each probe.
  const bool unanswered =
      (info.tcpi_unacked > 0 && info.tcpi_retransmits > 0) || info.tcpi_probes >= 2;
  return unanswered && info.tcpi_last_ack_recv >= patience_ms;
}

}  // namespace weir::net
