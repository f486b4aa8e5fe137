// SPDX-License-Identifier: Apache-2.0
#include "core/comm/bootstrap_door.h"

#include <fmt/format.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "core/base/clock.h"
#include "core/comm/bootstrap_tls.h"
#include "net/ip_socket.h"

namespace weir::comm {
namespace {

using wire::Kind;

// Accepted at once before the others get their turn again.
constexpr int kAcceptCountMax = 64;

}  // namespace

namespace {

std::string name_of(const Secret& secret, const std::string& purpose) {
  const Secret name = secret.derive(fmt::format("{}, user {}", purpose, own_uid()));
  std::string text = "weir-";
  for (const unsigned char byte : name.bytes) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace

std::string door_name(const Secret& secret) { return name_of(secret, "bootstrap name"); }

std::string child_door_name(const Secret& secret, Rank rank) {
  return name_of(secret, fmt::format("bootstrap name of rank {}", rank));
}

Result<std::unique_ptr<Door>> Door::open(const Secret& secret, const std::string& name, Rank rank,
                                         Rank rank_count, const DoorLimits& limits) {
  std::unique_ptr<Door> door(new Door(secret, rank, rank_count, limits));
  WEIR_RETURN_IF_ERROR(listen_at(name, door->backlog(), &door->listener_));
  if (!door->listener_.valid()) door.reset();
  return door;
}

int Door::backlog() const {
  return static_cast<int>(std::min<uint64_t>(uint64_t{rank_count_} + 64, 4096));
}

void Door::listen_at_place(const Place& place) {
  for (const net::IpAddress& address : place.addresses) {
    Fd listener;
    for (uint32_t i = 0; i < kPlacePortCount && !listener.valid(); ++i) {
      comm::listen_at(address, place_port(secret_, i), backlog(), &listener);
    }
    if (listener.valid()) network_listeners_.push_back(std::move(listener));
    if (place.port == 0) continue;
    Fd given;
    comm::listen_at(address, place.port, backlog(), &given);
    if (given.valid()) network_listeners_.push_back(std::move(given));
  }
}

uint16_t Door::listen_at_any_port(const Place& place) {
  uint16_t port = 0;
  for (const net::IpAddress& address : place.addresses) {
    const int fd = net::listen_at(address, &port, backlog());
    if (fd >= 0) network_listeners_.emplace_back(fd);
  }
  return network_listeners_.empty() ? 0 : port;
}

// Without room nobody is accepted: who has come waits in the kernel's queue.
net::GivesWay Door::who_gives_way() const {
  const uint64_t now = now_ns();
  if (knocks_.size() < limits_.unproven_count) return {net::GivesWay::kNobody, now};
  return net::who_gives_way(
      knocks_.size(), now, [](size_t) { return true; },
      [&](size_t i) { return !knocks_[i].challenged; },
      [&](size_t i) { return knocks_[i].accepted_ns; });
}

void Door::append_poll_entries(std::vector<pollfd>* entries) const {
  const bool accepts = listening_ && who_gives_way().room_ns <= now_ns();
  entries->push_back({accepts ? listener_.get() : -1, POLLIN, 0});
  for (const Fd& listener : network_listeners_) {
    entries->push_back({accepts ? listener.get() : -1, POLLIN, 0});
  }
  for (const Knock& knock : knocks_) {
    entries->push_back({knock.channel.fd(), knock.channel.events(), 0});
  }
}

uint64_t Door::next_expiry_ns() const {
  // While no descriptor is free, look again every few milliseconds.
  uint64_t next = listening_ ? UINT64_MAX : now_ns() + 5'000'000;
  if (const uint64_t room_ns = who_gives_way().room_ns; room_ns > now_ns()) {
    next = std::min(next, room_ns);
  }
  for (const Knock& knock : knocks_) {
    next = std::min(next, knock.accepted_ns + limits_.unproven_ns);
  }
  return next;
}

Status Door::serve(const pollfd* first, std::vector<Arrival>* arrivals) {
  const bool was_listening = listening_;
  const size_t listener_count = 1 + network_listeners_.size();
  listening_ = true;
  for (size_t i = 0; i < knocks_.size(); ++i) {
    if (first[listener_count + i].revents != 0) serve_knock(&knocks_[i], arrivals);
  }
  const uint64_t now = now_ns();
  for (Knock& knock : knocks_) {
    if (knock.done || now < knock.accepted_ns + limits_.unproven_ns) continue;
    ++turned_away_.silent;
    knock.done = true;
  }
  std::erase_if(knocks_, [](const Knock& knock) { return knock.done; });
  for (size_t i = 0; i < listener_count; ++i) {
    if (was_listening && (first[i].revents & POLLIN) == 0) continue;
    WEIR_RETURN_IF_ERROR(accept_all(i == 0 ? listener_ : network_listeners_[i - 1], arrivals));
  }
  return Status();
}

// The oldest that has said nothing goes. False: there is none.
bool Door::drop_silent() {
  const auto silent = std::find_if(knocks_.begin(), knocks_.end(),
                                   [](const Knock& knock) { return !knock.challenged; });
  if (silent == knocks_.end()) return false;
  ++turned_away_.silent;
  knocks_.erase(silent);
  return true;
}

Status Door::accept_all(const Fd& listener, std::vector<Arrival>* arrivals) {
  for (int i = 0; i < kAcceptCountMax && who_gives_way().room_ns <= now_ns(); ++i) {
    Fd connection;
    switch (accept_at(listener.get(), &connection)) {
      case Accept::kAccepted:
        WEIR_RETURN_IF_ERROR(admit(std::move(connection), &listener != &listener_, arrivals));
        break;
      case Accept::kNobody:
        return Status();
      case Accept::kNoDescriptor:
        if (drop_silent()) break;
        if (knocks_.empty()) {
          return Status(Code::kSystem,
                        fmt::format("rank {} may open no more files and cannot let others of {} "
                                    "ranks in; raise `ulimit -n` (or the memory limit)",
                                    rank_, rank_count_));
        }
        listening_ = false;  // until those at the door are in or out of time
        return Status();
      case Accept::kFailed:
        return system_error("accept");
    }
  }
  return Status();
}

Status Door::admit(Fd connection, bool from_network, std::vector<Arrival>* arrivals) {
  int64_t pid = kElsewherePid;
  if (from_network) {
    net::prepare_stream(connection.get());
  } else {
    const Result<PeerProcess> peer = peer_process(connection.get());
    if (!peer.ok()) return peer.status();
    pid = peer.value().pid;
    if (peer.value().uid != own_uid()) {
      ++turned_away_.user;
      turned_away_.last_uid = peer.value().uid;
      turned_away_.last_pid = pid;
      return Status();
    }
  }
  if (const size_t index = who_gives_way().index; index != net::GivesWay::kNobody) {
    ++turned_away_.silent;
    knocks_.erase(knocks_.begin() + static_cast<std::ptrdiff_t>(index));
  }
  Knock knock;
  knock.channel = Channel(std::move(connection));
  knock.pid = pid;
  knock.begun = !from_network;
  knock.accepted_ns = now_ns();
  // Mostly its hello has come already.
  serve_knock(&knock, arrivals);
  if (!knock.done) knocks_.push_back(std::move(knock));
  return Status();
}

// The first byte tells TLS from a frame.
void Door::begin(Knock* knock) {
  constexpr unsigned char kHandshakeRecord = 22;
  unsigned char first = 0;
  const ssize_t got = recv(knock->channel.fd(), &first, 1, MSG_PEEK);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  knock->begun = true;
  if (got != 1 || first != kHandshakeRecord) return;  // an end is for who reads
  if (tls_ == nullptr) {
    Result<std::shared_ptr<const net::TlsContext>> made = bootstrap_tls(secret_);
    if (made.ok()) tls_ = made.take();
  }
  // The rank knocks again.
  if (tls_ == nullptr || !knock->channel.secure(tls_, net::Stream::Role::kServer)) {
    knock->done = true;
  }
}

void Door::serve_knock(Knock* knock, std::vector<Arrival>* arrivals) {
  if (!knock->begun) begin(knock);
  if (!knock->begun) return;
  if (!knock->done && !knock->channel.flush()) knock->done = true;
  while (!knock->done) {
    switch (knock->channel.read({knock->challenged ? Kind::kProof : Kind::kHello})) {
      case Channel::Read::kNothing:
        return;
      case Channel::Read::kClosed:
        knock->done = true;
        return;
      case Channel::Read::kOtherVersion:
        turn_away(knock, wire::TurnedAway::kVersion);
        return;
      case Channel::Read::kNoSecret:
        ++turned_away_.proof;
        turned_away_.last_pid = knock->pid;
        knock->done = true;
        return;
      case Channel::Read::kMalformed:
      case Channel::Read::kDamaged:
        ++turned_away_.malformed;
        turned_away_.last_pid = knock->pid;
        knock->done = true;
        return;
      case Channel::Read::kFrame:
        break;
    }
    if (knock->challenged) {
      check_proof(knock, arrivals);
      return;
    }
    const Result<Secret> random = Secret::random();
    if (!random.ok()) {
      knock->done = true;  // the rank knocks again
      return;
    }
    knock->claim.guest_nonce = wire::decode_nonce(knock->channel.payload());
    knock->claim.host_nonce = random.value().bytes;
    knock->challenged = true;
    knock->channel.send(wire::encode_challenge(knock->claim.host_nonce));
    if (!knock->channel.flush()) knock->done = true;
  }
}

void Door::check_proof(Knock* knock, std::vector<Arrival>* arrivals) {
  knock->claim.role = wire::Role::kGuest;
  const wire::Proof given = wire::decode_proof(knock->channel.payload(), &knock->claim);
  const wire::Proof right = wire::prove(secret_, knock->claim);
  if (!equal_in_constant_time(given.data(), right.data(), right.size())) {
    turn_away(knock, wire::TurnedAway::kProof);
    return;
  }
  wire::Claim own = knock->claim;
  own.role = wire::Role::kHost;
  own.rank_count = rank_count_;
  own.host_rank = rank_;
  knock->channel.send(wire::encode_welcome(secret_, own));
  if (knock->pid == kElsewherePid) {
    knock->channel.protect(wire::frame_key(secret_, wire::Role::kHost, own),
                           wire::frame_key(secret_, wire::Role::kGuest, own));
  }
  arrivals->push_back({std::move(knock->channel), knock->claim, knock->pid});
  knock->done = true;
}

void Door::turn_away(Knock* knock, wire::TurnedAway reason) {
  if (reason == wire::TurnedAway::kVersion) {
    ++turned_away_.version;
    turned_away_.last_version = knock->channel.header().version;
  } else {
    ++turned_away_.proof;
  }
  turned_away_.last_pid = knock->pid;
  knock->channel.send(wire::encode_turned_away(reason));
  (void)knock->channel.flush();
  knock->done = true;
}

std::string Door::turned_away() const {
  std::vector<std::string> parts;
  const auto add = [&parts](uint32_t count, const std::string& what) {
    if (count > 0) parts.push_back(fmt::format("{} {}", count, what));
  };
  add(turned_away_.proof, "without the secret of this communicator");
  add(turned_away_.version, fmt::format("with bootstrap protocol version {} (this is version {})",
                                        turned_away_.last_version, wire::kProtocolVersion));
  add(turned_away_.user, fmt::format("of user {}, not {}", turned_away_.last_uid, own_uid()));
  add(turned_away_.malformed, "that spoke no bootstrap protocol");
  add(turned_away_.silent, "that stayed silent");
  if (parts.empty()) return "";
  std::string text = "; connections turned away meanwhile: ";
  for (size_t i = 0; i < parts.size(); ++i) text += (i > 0 ? ", " : "") + parts[i];
  if (turned_away_.last_pid > 0) text += fmt::format(" (last: process {})", turned_away_.last_pid);
  return text;
}

}  // namespace weir::comm
