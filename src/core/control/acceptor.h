// SPDX-License-Identifier: Apache-2.0
// Acceptor: where the connections of other ranks arrive. It listens at a Unix socket and at network
// addresses, moves the handshake of each connection that comes, and hands over those that have
// proven that they hold the secret. No peer can block it: before the proof a connection has a
// bounded time, a fixed number of bytes, and one of a bounded number of places; when all are taken,
// one gives way (net/give_way.h; an honest rank comes again). Nothing waits. One thread at a time.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "core/base/process_generation.h"
#include "core/base/status.h"
#include "core/control/link.h"
#include "net/give_way.h"
#include "net/ip_address.h"
#include "net/tls.h"
#include "net/turned_away.h"

namespace weir::control {

struct AcceptorConfig {
  net::Identity identity{};
  uint64_t unproven_ns = 2'000'000'000;  // from accept to proof
  size_t unproven_count = 256;           // connections without proof at a time
  // The context for connections from the network that are inside TLS; outlives their links. Null:
  // there is none. Without the function all connections are plain.
  std::function<const net::TlsContext*()> tls{};
  bool requires_tls = true;  // otherwise the first byte decides
  // Lets the owner wait for events instead of the acceptor: as epoll_ctl, with a token below
  // kAcceptorTokenEnd, with which the owner calls `serve`.
  std::function<bool(int operation, int fd, uint32_t token, uint32_t events)> watch{};
};

inline constexpr uint32_t kAcceptorTokenEnd = 1u << 31;

class Acceptor {
 public:
  // A rank that holds the secret: the link's handshake is kClaimed. The owner welcomes it, or ends
  // the link.
  struct Arrival {
    std::unique_ptr<Link> link;
    net::IpAddress from{};  // over the network
    pid_t process = 0;      // over a Unix socket; 0: of another namespace
  };

  static Result<std::unique_ptr<Acceptor>> make(const AcceptorConfig& config);
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  // Takes the descriptor of a listener. False: errno says why.
  bool add(int listener, bool is_local);
  // Stops accepting connections over the network, or over Unix sockets.
  void close_network() { close_listeners(false); }
  void close_local() { close_listeners(true); }
  bool listens_on_network() const;
  size_t descriptor_count() const;

  // Without `watch`: readable when `serve` has something to do.
  int fd() const { return epoll_; }
  // When `serve` must be called at the latest.
  uint64_t next_ns() const;
  void serve(std::vector<Arrival>* arrivals);
  // The same, for an event of the descriptor that `watch` was given with `token`.
  void serve(uint32_t token, std::vector<Arrival>* arrivals);

  // No descriptor is available, and no connection is left that could give one up.
  bool is_out_of_descriptors() const { return out_of_descriptors_ && unproven_.empty(); }
  const net::TurnedAway& turned_away() const { return turned_away_; }

 private:
  struct Listener {
    int fd;  // -1: closed; its index is the token of epoll
    bool is_local;
  };
  struct Unproven {
    uint32_t token = 0;
    net::Stream stream{};        // until it is known whether it is inside TLS
    std::unique_ptr<Link> link;  // from then on
    net::IpAddress from{};
    pid_t process = 0;
    bool is_local = false;
    uint64_t accepted_ns = 0;
    uint32_t events = 0;  // that epoll waits for
    bool ended = false;   // handed over or turned away
    int fd() const { return link != nullptr ? link->fd() : stream.fd(); }
  };

  explicit Acceptor(const AcceptorConfig& config) : config_(config) {}
  net::GivesWay who_gives_way(uint64_t now_ns) const;
  bool watch(int operation, int fd, uint32_t token, uint32_t events) const;
  void close_listeners(bool local);
  void handle(uint32_t token, std::vector<Arrival>* arrivals);
  void look_at_clock(std::vector<Arrival>* arrivals);
  void listen(bool listens);
  void accept_all(const Listener& listener, std::vector<Arrival>* arrivals);
  bool take_in(int fd, const Listener& listener, const net::IpAddress& from,
               std::vector<Arrival>* arrivals);
  bool begin(Unproven* one);
  void advance(Unproven* one, std::vector<Arrival>* arrivals);
  void turn_away(Unproven* one, std::optional<net::TurnedAway::Why> why);
  void drop(std::vector<Unproven>::iterator one);

  const AcceptorConfig config_;
  const MakingProcess maker_;
  int epoll_ = -1;
  std::vector<Listener> listeners_;
  std::vector<Unproven> unproven_;  // the oldest first
  uint32_t connection_count_ = 0;   // so far
  bool listens_ = true;             // false while there is no room
  uint64_t listen_again_ns_ = 0;
  bool out_of_descriptors_ = false;
  net::TurnedAway turned_away_;
};

}  // namespace weir::control
