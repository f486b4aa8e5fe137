// SPDX-License-Identifier: Apache-2.0
// The sockets under the bootstrap: abstract AF_UNIX stream sockets of one machine. An abstract name
// has no file, lives in the network namespace, and ends with the last descriptor. All sockets are
// nonblocking and close on exec. Functions are thread-safe; an Fd has one owner.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "net/ip_address.h"

namespace weir::comm {

// Owns a socket. The process that made it shuts the connection down when it closes, so that the
// peer learns of it even if a child that was forked meanwhile still holds a copy; in such a child
// the destructor only closes the copy.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd);
  Fd(Fd&& other) noexcept { swap(other); }
  Fd& operator=(Fd&& other) noexcept {
    Fd(std::move(other)).swap(*this);
    return *this;
  }
  ~Fd();

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  void swap(Fd& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(owner_, other.owner_);
  }

  int fd_ = -1;
  pid_t owner_ = 0;
};

// In the sense of SO_PEERCRED: who connected, or who listens. The process id is 0 when the process
// is in a namespace that we do not see.
inline constexpr int64_t kElsewherePid = -1;  // of a process on another host
struct PeerProcess {
  int64_t pid = 0;
  uint32_t uid = 0;
};
Result<PeerProcess> peer_process(int connection);
uint32_t own_uid();
// "process 1234", "a process of another namespace", "a process on another host"
std::string describe_process(int64_t pid);

// `*listener` stays invalid when someone else listens under the name.
Status listen_at(const std::string& name, int backlog, Fd* listener);
// `*connection` stays invalid when nobody listens there, or too many knock at once.
Status connect_to(const std::string& name, Fd* connection);

enum class Accept { kAccepted, kNobody, kNoDescriptor, kFailed };
// kNoDescriptor: the process or the machine may open no more. kFailed: errno says why.
Accept accept_at(int listener, Fd* connection);

// The same over the network. The port is where the listener is to be found; when it is taken, or
// this host has no such address, `*listener` stays invalid.
void listen_at(const net::IpAddress& address, uint16_t port, int backlog, Fd* listener);
// `*connection` stays invalid when the connection cannot even be begun.
void begin_connect_to(const net::IpAddress& address, uint16_t port, Fd* connection);
bool is_connected(int connection);

// Waits until one of `entries` has an event or the time has come; a signal ends it early. Their
// `revents` are then valid.
Status wait_for_events(std::vector<pollfd>* entries, uint64_t until_ns);

// Sleeps, at most until `until_ns`.
void sleep_ns(uint64_t duration_ns, uint64_t until_ns);

}  // namespace weir::comm
