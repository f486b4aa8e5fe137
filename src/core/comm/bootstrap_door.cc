// SPDX-License-Identifier: Apache-2.0
#include "core/comm/bootstrap_door.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>

#include "core/base/clock.h"

namespace weir::comm {
namespace {

using wire::Kind;

// Accepted at once before the others get their turn again.
constexpr int kAcceptCountMax = 64;

}  // namespace

std::string door_name(const Secret& secret) {
  const Secret name = secret.derive(fmt::format("bootstrap name, user {}", own_uid()));
  std::string text = "weir-";
  for (const unsigned char byte : name.bytes) text += fmt::format("{:02x}", byte);
  return text;
}

Result<std::unique_ptr<Door>> Door::open(const Secret& secret, Rank rank_count,
                                         const DoorLimits& limits) {
  std::unique_ptr<Door> door(new Door(secret, rank_count, limits));
  const int backlog = static_cast<int>(std::min<uint64_t>(uint64_t{rank_count} + 64, 4096));
  WEIR_RETURN_IF_ERROR(listen_at(door_name(secret), backlog, &door->listener_));
  if (!door->listener_.valid()) door.reset();
  return door;
}

void Door::append_poll_entries(std::vector<pollfd>* entries) const {
  entries->push_back({listening_ ? listener_.get() : -1, POLLIN, 0});
  for (const Knock& knock : knocks_) {
    const short events = knock.channel.sending() ? POLLIN | POLLOUT : POLLIN;
    entries->push_back({knock.channel.fd(), events, 0});
  }
}

uint64_t Door::next_expiry_ns() const {
  // While no descriptor is free, look again every few milliseconds.
  uint64_t next = listening_ ? UINT64_MAX : now_ns() + 5'000'000;
  for (const Knock& knock : knocks_) next = std::min(next, knock.expiry_ns);
  return next;
}

Status Door::serve(const pollfd* first, std::vector<Arrival>* arrivals) {
  const bool knocked = !listening_ || (first[0].revents & POLLIN) != 0;
  listening_ = true;
  for (size_t i = 0; i < knocks_.size(); ++i) {
    if (first[1 + i].revents != 0) serve_knock(&knocks_[i], arrivals);
  }
  const uint64_t now = now_ns();
  for (Knock& knock : knocks_) {
    if (knock.done || now < knock.expiry_ns) continue;
    ++turned_away_.silent;
    knock.done = true;
  }
  std::erase_if(knocks_, [](const Knock& knock) { return knock.done; });
  return knocked ? accept_all() : Status();
}

Status Door::accept_all() {
  for (int i = 0; i < kAcceptCountMax; ++i) {
    Fd connection;
    switch (accept_at(listener_.get(), &connection)) {
      case Accept::kAccepted:
        WEIR_RETURN_IF_ERROR(admit(std::move(connection)));
        break;
      case Accept::kNobody:
        return Status();
      case Accept::kNoDescriptor:
        if (knocks_.empty()) {
          return Status(Code::kSystem,
                        fmt::format("rank 0 may open no more files and cannot let {} ranks in; "
                                    "raise `ulimit -n` (or the memory limit)",
                                    rank_count_));
        }
        listening_ = false;  // until those at the door are in or out of time
        return Status();
      case Accept::kFailed:
        return system_error("accept");
    }
  }
  return Status();
}

Status Door::admit(Fd connection) {
  const Result<PeerProcess> peer = peer_process(connection.get());
  if (!peer.ok()) return peer.status();
  if (peer.value().uid != own_uid()) {
    ++turned_away_.user;
    turned_away_.last_uid = peer.value().uid;
    turned_away_.last_pid = peer.value().pid;
    return Status();
  }
  if (knocks_.size() >= limits_.unproven_count) {
    ++turned_away_.silent;
    knocks_.erase(knocks_.begin());
  }
  Knock knock;
  knock.channel = Channel(std::move(connection));
  knock.pid = peer.value().pid;
  knock.expiry_ns = now_ns() + limits_.unproven_ns;
  knocks_.push_back(std::move(knock));
  return Status();
}

void Door::serve_knock(Knock* knock, std::vector<Arrival>* arrivals) {
  if (!knock->channel.flush()) knock->done = true;
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
      case Channel::Read::kMalformed:
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
  knock->channel.send(wire::encode_welcome(secret_, own));
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
