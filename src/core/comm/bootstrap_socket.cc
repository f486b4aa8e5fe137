// SPDX-License-Identifier: Apache-2.0
#include "core/comm/bootstrap_socket.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "net/ip_socket.h"

namespace weir::comm {
namespace {

constexpr uint64_t kNsPerSecond = 1'000'000'000;

struct Address {
  sockaddr_un name{};
  socklen_t bytes = 0;
};

Address address_of(const std::string& name) {
  Address address;
  WEIR_CHECK(name.size() + 1 <= sizeof address.name.sun_path, "the name is made by us");
  address.name.sun_family = AF_UNIX;
  std::memcpy(address.name.sun_path + 1, name.data(), name.size());
  address.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

Fd make_socket() { return Fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)); }

timespec to_timespec(uint64_t ns) {
  return {static_cast<time_t>(ns / kNsPerSecond), static_cast<long>(ns % kNsPerSecond)};
}

}  // namespace

Fd::Fd(int fd) : fd_(fd), owner_(getpid()) {}

Fd::~Fd() {
  if (fd_ < 0) return;
  if (owner_ == getpid()) shutdown(fd_, SHUT_RDWR);
  close(fd_);
}

uint32_t own_uid() { return geteuid(); }

Result<PeerProcess> peer_process(int connection) {
  ucred credentials{};
  socklen_t bytes = sizeof credentials;
  if (getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) != 0) {
    return system_error("getsockopt(SO_PEERCRED)");
  }
  return PeerProcess{credentials.pid, credentials.uid};
}

std::string describe_process(int64_t pid) {
  if (pid == kElsewherePid) return "a process on another host";
  return pid > 0 ? fmt::format("process {}", pid) : "a process of another namespace";
}

Status listen_at(const std::string& name, int backlog, Fd* listener) {
  Fd made = make_socket();
  if (!made.valid()) return system_error("socket(AF_UNIX)");
  const Address address = address_of(name);
  if (bind(made.get(), reinterpret_cast<const sockaddr*>(&address.name), address.bytes) != 0) {
    if (errno == EADDRINUSE) return Status();
    return system_error("bind of an abstract socket");
  }
  if (listen(made.get(), backlog) != 0) return system_error("listen on an abstract socket");
  *listener = std::move(made);
  return Status();
}

Status connect_to(const std::string& name, Fd* connection) {
  // A fresh socket each time: after a failed connect its state is unspecified.
  Fd made = make_socket();
  if (!made.valid()) return system_error("socket(AF_UNIX)");
  const Address address = address_of(name);
  if (connect(made.get(), reinterpret_cast<const sockaddr*>(&address.name), address.bytes) == 0) {
    *connection = std::move(made);
    return Status();
  }
  if (errno == ECONNREFUSED || errno == EAGAIN || errno == EINTR) return Status();
  return system_error("connect to rank 0's socket");
}

Accept accept_at(int listener, Fd* connection) {
  for (;;) {
    const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
      *connection = Fd(fd);
      return Accept::kAccepted;
    }
    switch (errno) {
      case EINTR:
      case ECONNABORTED:
        continue;
      case EAGAIN:
        return Accept::kNobody;
      case EMFILE:
      case ENFILE:
      case ENOBUFS:
      case ENOMEM:
        return Accept::kNoDescriptor;
      default:
        return Accept::kFailed;
    }
  }
}

void listen_at(const net::IpAddress& address, uint16_t port, int backlog, Fd* listener) {
  const int fd = net::listen_at(address, &port, backlog);
  if (fd >= 0) *listener = Fd(fd);
}

void begin_connect_to(const net::IpAddress& address, uint16_t port, Fd* connection) {
  const int fd = net::begin_connect(address, port, {});
  if (fd >= 0) *connection = Fd(fd);
}

bool is_connected(int connection) { return net::connect_error(connection) == 0; }

Status wait_for_events(std::vector<pollfd>* entries, uint64_t until_ns) {
  const uint64_t now = now_ns();
  const timespec left = to_timespec(until_ns > now ? until_ns - now : 0);
  if (ppoll(entries->data(), entries->size(), &left, nullptr) >= 0) return Status();
  if (errno != EINTR) return system_error("ppoll");
  for (pollfd& entry : *entries) entry.revents = 0;
  return Status();
}

void sleep_ns(uint64_t duration_ns, uint64_t until_ns) {
  const uint64_t now = now_ns();
  if (until_ns <= now) return;
  const timespec pause = to_timespec(std::min(duration_ns, until_ns - now));
  // A signal may cut it short: the callers wait in a loop.
  nanosleep(&pause, nullptr);
}

}  // namespace weir::comm
