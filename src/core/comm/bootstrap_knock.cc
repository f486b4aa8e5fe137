// SPDX-License-Identifier: Apache-2.0
#include "core/comm/bootstrap_knock.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/clock.h"
#include "core/comm/bootstrap_door.h"
#include "core/comm/bootstrap_node.h"
#include "core/comm/bootstrap_tls.h"

namespace weir::comm {
namespace {

using wire::Kind;

// How long a connection to another host may take, and the answer on it: we ask again.
constexpr uint64_t kReachNsMin = 50'000'000;
constexpr uint32_t kReachDoublings = 4;
constexpr uint64_t kAnswerNs = 5'000'000'000;
// How long a host of ours, which has proven itself, may take to say whether it admits us.
constexpr uint64_t kDecisionNs = 20'000'000'000;

uint64_t patience_us(uint64_t deadline_ns) {
  const uint64_t now = now_ns();
  return deadline_ns > now ? (deadline_ns - now) / 1000 : 0;
}

enum class Reply { kFrame, kHungUp, kTurnedAway, kOtherVersion, kMalformed, kSilent };

Result<Reply> exchange(Channel* channel, std::string request, const std::vector<Kind>& expected,
                       uint64_t until_ns) {
  channel->send(std::move(request));
  bool can_write = true;
  for (;;) {
    if (can_write) can_write = channel->flush();
    switch (channel->read(expected)) {
      case Channel::Read::kFrame:
        return channel->header().kind == Kind::kTurnedAway ? Reply::kTurnedAway : Reply::kFrame;
      case Channel::Read::kClosed:
      case Channel::Read::kNoSecret:
      case Channel::Read::kDamaged:
        return Reply::kHungUp;
      case Channel::Read::kOtherVersion:
        return Reply::kOtherVersion;
      case Channel::Read::kMalformed:
        return Reply::kMalformed;
      case Channel::Read::kNothing:
        break;
    }
    if (now_ns() >= until_ns) return Reply::kSilent;
    const short events = can_write ? channel->events() : static_cast<short>(POLLIN);
    std::vector<pollfd> entries{{channel->fd(), events, 0}};
    WEIR_RETURN_IF_ERROR(wait_for_events(&entries, until_ns));
  }
}

Status refusal(Reply reply, const Channel& channel, Rank rank, int64_t host_pid) {
  const std::string host = describe_process(host_pid);
  uint32_t reason = static_cast<uint32_t>(wire::TurnedAway::kVersion);
  uint32_t version = channel.header().version;
  switch (reply) {
    case Reply::kSilent:
      return Status(Code::kTimeout,
                    fmt::format("timed out: {} listens for the other ranks but does "
                                "not answer rank {}; is it stopped?",
                                host, rank));
    case Reply::kMalformed:
      return Status(Code::kRefused, fmt::format("{}, which listens for the other ranks, does not "
                                                "speak the bootstrap protocol (seen by rank {})",
                                                host, rank));
    case Reply::kTurnedAway:
      wire::decode_turned_away(channel.payload(), &reason, &version);
      break;
    default:
      break;
  }
  if (reason == static_cast<uint32_t>(wire::TurnedAway::kVersion)) {
    return Status(
        Code::kRefused,
        fmt::format("{}, which listens for the other ranks, speaks bootstrap protocol "
                    "version {}, rank {} version {}; all ranks must load the same version "
                    "of Weir",
                    host, version, rank, wire::kProtocolVersion));
  }
  return Status(Code::kRefused,
                fmt::format("{}, which listens for the other ranks, does not accept "
                            "the secret of rank {}",
                            host, rank));
}

// The handshake on a new connection.
Knock enter(Channel channel, int64_t host_pid, const Guest& guest) {
  const Result<Secret> nonce = Secret::random();
  if (!nonce.ok()) return nonce.status();

  // At a port of the network somebody else may listen, and say nothing.
  const bool elsewhere = host_pid == kElsewherePid;
  if (elsewhere && guest.tls != nullptr && !channel.secure(guest.tls, net::Stream::Role::kClient)) {
    return Status(Code::kNoMemory, "no memory for TLS");
  }
  const uint64_t patience_end_ns = with_grace(guest.deadline_ns, now_ns());
  const uint64_t until_ns =
      elsewhere ? std::min(patience_end_ns, now_ns() + kAnswerNs) : patience_end_ns;
  wire::Claim claim;
  claim.guest_nonce = nonce.value().bytes;
  claim.rank = guest.rank;
  claim.rank_count = guest.rank_count;
  Result<Reply> reply = exchange(&channel, wire::encode_hello(claim.guest_nonce),
                                 {Kind::kChallenge, Kind::kTurnedAway}, until_ns);
  if (reply.ok() && reply.value() == Reply::kFrame) {
    claim.host_nonce = wire::decode_nonce(channel.payload());
    claim.patience_us = patience_us(guest.deadline_ns);
    reply = exchange(&channel, wire::encode_proof(guest.secret, claim),
                     {Kind::kWelcome, Kind::kTurnedAway}, until_ns);
  }
  if (!reply.ok()) return reply.status();
  if (reply.value() == Reply::kHungUp) return std::optional<Entry>();
  if (reply.value() != Reply::kFrame) {
    if (elsewhere && reply.value() != Reply::kOtherVersion) return std::optional<Entry>();
    return refusal(reply.value(), channel, guest.rank, host_pid);
  }

  wire::Claim theirs = claim;
  theirs.role = wire::Role::kHost;
  const wire::Proof given =
      wire::decode_welcome(channel.payload(), &theirs.rank_count, &theirs.host_rank);
  const wire::Proof right = wire::prove(guest.secret, theirs);
  if (!equal_in_constant_time(given.data(), right.data(), right.size())) {
    if (elsewhere) return std::optional<Entry>();
    return Status(
        Code::kRefused,
        fmt::format("{}, which listens for the other ranks, could not prove to rank {} that "
                    "it holds the secret",
                    describe_process(host_pid), guest.rank));
  }
  if (elsewhere) {
    channel.protect(wire::frame_key(guest.secret, wire::Role::kGuest, claim),
                    wire::frame_key(guest.secret, wire::Role::kHost, claim));
  }

  Entry entry{std::move(channel), theirs.host_rank, host_pid, std::nullopt};
  reply = exchange(&entry.channel, "", {Kind::kAdmit, Kind::kRedirect, Kind::kFailure},
                   std::min(patience_end_ns, now_ns() + kDecisionNs));
  if (!reply.ok()) return reply.status();
  if (reply.value() == Reply::kHungUp) return std::optional<Entry>();
  if (reply.value() != Reply::kFrame) {
    return refusal(reply.value(), entry.channel, guest.rank, host_pid);
  }
  switch (entry.channel.header().kind) {
    case Kind::kFailure:
      return wire::decode_failure(entry.channel.payload());
    case Kind::kRedirect: {
      wire::DoorAddress address;
      if (!wire::decode_redirect(entry.channel.payload(), &address)) {
        return refusal(Reply::kMalformed, entry.channel, guest.rank, host_pid);
      }
      entry.redirect = std::move(address);
      entry.channel.close();
      break;
    }
    default:
      break;
  }
  return std::optional<Entry>(std::move(entry));
}

// Every second look is at the port that is tried first by who listens.
uint16_t port_of_look(const Guest& guest, const Place& place, uint32_t look) {
  if (look % 2 == 0) return place_port(guest.secret, 0);
  const uint32_t other_count = kPlacePortCount - 1 + (place.port != 0 ? 1 : 0);
  const uint32_t index = 1 + look / 2 % other_count;
  return index < kPlacePortCount ? place_port(guest.secret, index) : place.port;
}

// Connects to all addresses at once and shakes hands with whoever answers, one after the other.
Knock knock_at_port(const Guest& guest, const std::vector<net::IpAddress>& addresses, uint16_t port,
                    uint64_t until_ns) {
  std::vector<Fd> connections;
  for (const net::IpAddress& address : addresses) {
    Fd connection;
    begin_connect_to(address, port, &connection);
    if (connection.valid()) connections.push_back(std::move(connection));
  }
  while (!connections.empty() && now_ns() < until_ns) {
    std::vector<pollfd> entries;
    for (const Fd& connection : connections) entries.push_back({connection.get(), POLLOUT, 0});
    WEIR_RETURN_IF_ERROR(wait_for_events(&entries, until_ns));
    for (size_t i = entries.size(); i-- > 0;) {
      if (entries[i].revents == 0) continue;
      Fd connection = std::move(connections[i]);
      connections.erase(connections.begin() + static_cast<std::ptrdiff_t>(i));
      if (!is_connected(connection.get())) continue;
      Knock entered = enter(Channel(std::move(connection)), kElsewherePid, guest);
      if (!entered.ok() || entered.value().has_value()) return entered;
    }
  }
  return std::optional<Entry>();
}

}  // namespace

Knock knock(const Guest& guest, const std::string& name) {
  Fd connection;
  WEIR_RETURN_IF_ERROR(connect_to(name, &connection));
  if (!connection.valid()) return std::optional<Entry>();
  const Result<PeerProcess> host = peer_process(connection.get());
  if (!host.ok()) return host.status();
  if (host.value().uid != own_uid()) {
    return Status(
        Code::kRefused,
        fmt::format(
            "{}, which listens for the other ranks, belongs to user {}, rank {} to user {}; "
            "all ranks must run as the same user",
            describe_process(host.value().pid), host.value().uid, guest.rank, own_uid()));
  }
  return enter(Channel(std::move(connection)), host.value().pid, guest);
}

Knock knock_at(const Guest& guest, const Place& place, uint32_t look) {
  const uint64_t patience_ns = kReachNsMin << std::min(look / 4, kReachDoublings);
  const uint64_t until_ns = std::min(guest.deadline_ns, now_ns() + patience_ns);
  return knock_at_port(guest, place.addresses, port_of_look(guest, place, look), until_ns);
}

Knock knock_at_door(const Guest& guest, const wire::DoorAddress& address) {
  if (address.place.host != 0 && address.place.host == host_tag()) {
    return knock(guest, child_door_name(guest.secret, address.rank));
  }
  const uint64_t until_ns =
      std::min(guest.deadline_ns, now_ns() + (kReachNsMin << kReachDoublings));
  return knock_at_port(guest, address.place.addresses, address.port, until_ns);
}

bool is_answered(const Secret& secret, const Place& place, uint64_t deadline_ns) {
  Fd connection;
  if (connect_to(door_name(secret), &connection).ok() && connection.valid()) return true;
  std::shared_ptr<const net::TlsContext> tls;
  const Result<bool> asked = is_bootstrap_tls_asked();
  if (asked.ok() && asked.value()) {
    Result<std::shared_ptr<const net::TlsContext>> made = bootstrap_tls(secret);
    if (!made.ok()) return false;
    tls = made.take();
  }
  // Another host: a challenge is answer enough, and costs whoever waits there nothing.
  for (uint32_t i = 0; i < kPlacePortCount && now_ns() < deadline_ns; ++i) {
    for (const net::IpAddress& address : place.addresses) {
      begin_connect_to(address, place_port(secret, i), &connection);
      if (!connection.valid()) continue;
      std::vector<pollfd> entries{{connection.get(), POLLOUT, 0}};
      const uint64_t reach_ns = std::min(deadline_ns, now_ns() + 4 * kReachNsMin);
      if (!wait_for_events(&entries, reach_ns).ok() || entries[0].revents == 0 ||
          !is_connected(connection.get())) {
        continue;
      }
      Channel channel(std::move(connection));
      if (tls != nullptr && !channel.secure(tls, net::Stream::Role::kClient)) return false;
      const Result<Reply> reply =
          exchange(&channel, wire::encode_hello({}), {Kind::kChallenge}, reach_ns);
      if (reply.ok() && reply.value() == Reply::kFrame) return true;
    }
  }
  return false;
}

}  // namespace weir::comm
