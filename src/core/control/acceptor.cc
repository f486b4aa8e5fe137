// SPDX-License-Identifier: Apache-2.0
#include "core/control/acceptor.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "core/base/clock.h"
#include "net/ip_socket.h"
#include "net/unix_socket.h"

namespace weir::control {
namespace {

using Why = net::TurnedAway::Why;

// Connections accepted in one go before other work gets its turn.
constexpr int kAcceptCountMax = 64;
// Between two attempts to accept while no descriptor is available.
constexpr uint64_t kNoDescriptorPauseNs = 5'000'000;
constexpr int kEventsMax = 64;
// A listener's place, or, with this bit, a connection.
constexpr uint32_t kConnectionToken = kAcceptorTokenEnd >> 1;

// Nothing: the other end closed the connection itself.
std::optional<Why> reason_of(const Link& link) {
  Why why = Why::kSilent;
  if (net::TurnedAway::why_of(link.stream().failure(), &why)) return why;
  switch (link.handshake().state()) {
    case net::Handshake::State::kRefused:
      return Why::kNoSecret;
    case net::Handshake::State::kOtherVersion:
      return Why::kOtherVersion;
    case net::Handshake::State::kMalformed:
      return Why::kMalformed;
    default:
      return std::nullopt;
  }
}

}  // namespace

Result<std::unique_ptr<Acceptor>> Acceptor::make(const AcceptorConfig& config) {
  std::unique_ptr<Acceptor> made(new Acceptor(config));
  if (config.watch) return made;
  made->epoll_ = epoll_create1(EPOLL_CLOEXEC);
  if (made->epoll_ < 0) return system_error("epoll_create1, for a listener");
  return made;
}

Acceptor::~Acceptor() {
  for (Unproven& one : unproven_) {
    if (maker_.is_this() && one.link != nullptr) one.link->shut();
  }
  for (const Listener& one : listeners_) {
    if (one.fd >= 0) close(one.fd);
  }
  if (epoll_ >= 0) close(epoll_);
}

bool Acceptor::watch(int operation, int fd, uint32_t token, uint32_t events) const {
  if (config_.watch) return config_.watch(operation, fd, token, events);
  epoll_event event{};
  event.events = events;
  event.data.u32 = token;
  return epoll_ctl(epoll_, operation, fd, &event) == 0;
}

bool Acceptor::add(int listener, bool is_local) {
  listeners_.push_back({listener, is_local});
  return watch(EPOLL_CTL_ADD, listener, static_cast<uint32_t>(listeners_.size() - 1), EPOLLIN);
}

void Acceptor::close_listeners(bool local) {
  for (Listener& one : listeners_) {
    if (one.is_local != local || one.fd < 0) continue;
    (void)watch(EPOLL_CTL_DEL, one.fd, 0, 0);
    close(std::exchange(one.fd, -1));
  }
}

bool Acceptor::listens_on_network() const {
  return std::any_of(listeners_.begin(), listeners_.end(),
                     [](const Listener& one) { return !one.is_local && one.fd >= 0; });
}

size_t Acceptor::descriptor_count() const {
  const auto open = std::count_if(listeners_.begin(), listeners_.end(),
                                  [](const Listener& one) { return one.fd >= 0; });
  return static_cast<size_t>(open) + unproven_.size() + (epoll_ >= 0 ? 1 : 0);
}

// Without room nothing is accepted: new connections wait in the kernel's queue.
net::GivesWay Acceptor::who_gives_way(uint64_t now) const {
  if (unproven_.size() < config_.unproven_count) return {net::GivesWay::kNobody, now};
  return net::who_gives_way(
      unproven_.size(), now, [](size_t) { return true; },
      [this](size_t i) {
        const Unproven& one = unproven_[i];
        return one.link == nullptr || one.link->handshake().is_silent();
      },
      [this](size_t i) { return unproven_[i].accepted_ns; });
}

uint64_t Acceptor::next_ns() const {
  uint64_t next = listens_ ? UINT64_MAX : listen_again_ns_;
  if (!unproven_.empty()) {
    next = std::min(next, unproven_.front().accepted_ns + config_.unproven_ns);
  }
  return next;
}

// Sets whether epoll reports new connections.
void Acceptor::listen(bool listens) {
  if (listens == std::exchange(listens_, listens)) return;
  for (size_t i = 0; i < listeners_.size(); ++i) {
    if (listeners_[i].fd < 0) continue;
    (void)watch(EPOLL_CTL_MOD, listeners_[i].fd, static_cast<uint32_t>(i),
                listens ? uint32_t{EPOLLIN} : 0u);
  }
}

void Acceptor::serve(std::vector<Arrival>* arrivals) {
  epoll_event events[kEventsMax];
  const int count = epoll_ >= 0 ? epoll_wait(epoll_, events, kEventsMax, 0) : 0;
  for (int i = 0; i < count; ++i) handle(events[i].data.u32, arrivals);
  look_at_clock(arrivals);
}

void Acceptor::serve(uint32_t token, std::vector<Arrival>* arrivals) {
  handle(token, arrivals);
  look_at_clock(arrivals);
}

void Acceptor::handle(uint32_t token, std::vector<Arrival>* arrivals) {
  if (token < kConnectionToken) {
    if (token < listeners_.size() && listeners_[token].fd >= 0) {
      accept_all(listeners_[token], arrivals);
    }
    return;
  }
  const auto one = std::find_if(unproven_.begin(), unproven_.end(),
                                [token](const Unproven& each) { return each.token == token; });
  if (one == unproven_.end()) return;
  advance(&*one, arrivals);
  if (one->ended) unproven_.erase(one);
}

void Acceptor::look_at_clock(std::vector<Arrival>* arrivals) {
  const uint64_t now = now_ns();
  for (Unproven& one : unproven_) {
    if (now < one.accepted_ns + config_.unproven_ns) break;
    // On a busy machine what it has sent may not have been read yet.
    advance(&one, arrivals);
    if (!one.ended) turn_away(&one, Why::kSilent);
  }
  std::erase_if(unproven_, [](const Unproven& one) { return one.ended; });
  if (listens_ ||
      (now < listen_again_ns_ && (out_of_descriptors_ || who_gives_way(now).room_ns > now))) {
    return;
  }
  listen(true);
  for (const Listener& one : listeners_) {
    if (one.fd >= 0) accept_all(one, arrivals);
  }
}

void Acceptor::accept_all(const Listener& listener, std::vector<Arrival>* arrivals) {
  for (int i = 0; i < kAcceptCountMax; ++i) {
    const uint64_t now = now_ns();
    const net::GivesWay way = who_gives_way(now);
    if (way.room_ns > now) {
      listen_again_ns_ = way.room_ns;
      return listen(false);
    }
    net::IpAddress from;
    const int fd =
        listener.is_local ? net::accept_locally(listener.fd) : net::accept_from(listener.fd, &from);
    if (fd < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    out_of_descriptors_ = fd < 0;
    if (fd >= 0) {
      if (way.index != net::GivesWay::kNobody) {
        drop(unproven_.begin() + static_cast<std::ptrdiff_t>(way.index));
      }
      if (!take_in(fd, listener, from, arrivals)) return;
      continue;
    }
    // The oldest connection that has sent nothing gives up its descriptor.
    const auto silent = std::find_if(unproven_.begin(), unproven_.end(), [](const Unproven& one) {
      return one.link == nullptr || one.link->handshake().is_silent();
    });
    if (silent == unproven_.end()) {
      listen_again_ns_ = now + kNoDescriptorPauseNs;
      return listen(false);
    }
    drop(silent);
  }
}

void Acceptor::drop(std::vector<Unproven>::iterator one) {
  turn_away(&*one, Why::kSilent);
  unproven_.erase(one);
}

// False: the system has no room for more.
bool Acceptor::take_in(int fd, const Listener& listener, const net::IpAddress& from,
                       std::vector<Arrival>* arrivals) {
  Unproven one;
  one.token = kConnectionToken | (connection_count_++ & (kConnectionToken - 1));
  one.stream = net::Stream(fd);
  one.from = from;
  one.is_local = listener.is_local;
  one.accepted_ns = now_ns();
  if (one.is_local) {
    uid_t user = 0;
    if (!net::peer_process(fd, &one.process, &user)) return true;
    if (user != geteuid()) {
      turned_away_.add(Why::kOtherUser, "process " + std::to_string(one.process), user);
      return true;
    }
  }
  if (!watch(EPOLL_CTL_ADD, fd, one.token, EPOLLIN)) return false;
  one.events = EPOLLIN;
  // Usually its hello has already arrived.
  advance(&one, arrivals);
  if (!one.ended) unproven_.push_back(std::move(one));
  return true;
}

// Makes the link once it is known whether it is inside TLS. False: not yet, or it has ended.
bool Acceptor::begin(Unproven* one) {
  constexpr unsigned char kHandshakeRecord = 22;
  bool secured = !one->is_local && config_.tls && config_.requires_tls;
  if (!one->is_local && config_.tls && !config_.requires_tls) {
    unsigned char first = 0;
    const ssize_t got = recv(one->fd(), &first, 1, MSG_PEEK | MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    secured = got == 1 && first == kHandshakeRecord;  // an end is handled when it is read
  }
  const net::TlsContext* const tls = secured ? config_.tls() : nullptr;
  net::Handshake::Nonce nonce;
  if ((secured && (tls == nullptr || !one->stream.secure(*tls, net::Stream::Role::kServer))) ||
      !net::fill_random(nonce.data(), nonce.size())) {
    one->ended = true;  // an honest rank comes again
    one->stream.close();
    return false;
  }
  one->link = std::make_unique<Link>(std::move(one->stream), one->is_local,
                                     net::Handshake(config_.identity, nonce));
  return true;
}

void Acceptor::advance(Unproven* one, std::vector<Arrival>* arrivals) {
  if (one->ended || (one->link == nullptr && !begin(one))) return;
  Link& link = *one->link;
  int error_number = 0;
  if (link.advance(&error_number) == Link::Step::kEnded) return turn_away(one, reason_of(link));
  if (link.handshake().state() == net::Handshake::State::kClaimed) {
    (void)watch(EPOLL_CTL_DEL, link.fd(), 0, 0);
    arrivals->push_back({std::move(one->link), one->from, one->process});
    one->ended = true;
    return;
  }
  const uint32_t events = link.events();
  if (events == one->events) return;
  one->events = events;
  (void)watch(EPOLL_CTL_MOD, link.fd(), one->token, events);
}

void Acceptor::turn_away(Unproven* one, std::optional<Why> why) {
  const uint32_t version =
      one->link != nullptr ? one->link->handshake().other_version() : uint32_t{0};
  if (why) {
    turned_away_.add(
        *why, one->is_local ? "process " + std::to_string(one->process) : net::to_string(one->from),
        version);
  }
  (void)watch(EPOLL_CTL_DEL, one->fd(), 0, 0);
  if (one->link != nullptr) one->link->shut();
  one->link.reset();
  one->stream.close();
  one->ended = true;
}

}  // namespace weir::control
