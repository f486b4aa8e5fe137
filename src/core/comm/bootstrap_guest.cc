// SPDX-License-Identifier: Apache-2.0
#include "core/comm/bootstrap_guest.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/clock.h"
#include "core/comm/bootstrap_door.h"

namespace weir::comm {
namespace {

using wire::Kind;

// Rank 0 ends a round before the earliest deadline and tells why; this is how much longer a guest
// waits for that news when the machine is busy.
constexpr uint64_t kGraceNs = 50'000'000;

// How long a connection to another host may take, and the answer on it: rank 0 is asked again.
constexpr uint64_t kReachNsMin = 50'000'000;
constexpr uint32_t kReachDoublings = 4;
constexpr uint64_t kAnswerNs = 5'000'000'000;

// Every second look is at the port that rank 0 tries first.
uint32_t port_index(uint32_t look) {
  return look % 2 == 0 ? 0 : 1 + look / 2 % (kPlacePortCount - 1);
}

uint64_t with_grace(uint64_t deadline_ns) {
  return deadline_ns > UINT64_MAX - kGraceNs ? UINT64_MAX : deadline_ns + kGraceNs;
}

uint64_t patience_us(uint64_t deadline_ns) {
  const uint64_t now = now_ns();
  return deadline_ns > now ? (deadline_ns - now) / 1000 : 0;
}

// Waits for something to read, or to write when there is something to send.
Status wait_for(const Channel& channel, uint64_t until_ns) {
  const short events = channel.sending() ? POLLIN | POLLOUT : POLLIN;
  std::vector<pollfd> entries{{channel.fd(), events, 0}};
  return wait_for_events(&entries, until_ns);
}

enum class Reply { kFrame, kHungUp, kTurnedAway, kOtherVersion, kMalformed, kSilent };

Result<Reply> exchange(Channel* channel, std::string request, Kind expected, uint64_t until_ns) {
  channel->send(std::move(request));
  bool can_write = true;
  for (;;) {
    if (can_write) can_write = channel->flush();
    switch (channel->read({expected, Kind::kTurnedAway})) {
      case Channel::Read::kFrame:
        return channel->header().kind == expected ? Reply::kFrame : Reply::kTurnedAway;
      case Channel::Read::kClosed:
        return Reply::kHungUp;
      case Channel::Read::kOtherVersion:
        return Reply::kOtherVersion;
      case Channel::Read::kMalformed:
        return Reply::kMalformed;
      case Channel::Read::kNothing:
        break;
    }
    if (now_ns() >= until_ns) return Reply::kSilent;
    WEIR_RETURN_IF_ERROR(wait_for(*channel, until_ns));
  }
}

Status refusal(Reply reply, const Channel& channel, Rank rank, int64_t host_pid) {
  const std::string host = describe_process(host_pid);
  uint32_t reason = static_cast<uint32_t>(wire::TurnedAway::kVersion);
  uint32_t version = channel.header().version;
  switch (reply) {
    case Reply::kSilent:
      return Status(Code::kTimeout, fmt::format("timed out: {} listens for rank 0 but does not "
                                                "answer rank {}; is it stopped?",
                                                host, rank));
    case Reply::kMalformed:
      return Status(Code::kRefused,
                    fmt::format("{}, which listens in the place of rank 0, does not "
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
        fmt::format("rank 0 ({}) speaks bootstrap protocol version {}, rank {} version {}; "
                    "all ranks must load the same version of Weir",
                    host, version, rank, wire::kProtocolVersion));
  }
  return Status(Code::kRefused, fmt::format("{}, which listens in the place of rank 0, does not "
                                            "accept the secret of rank {}",
                                            host, rank));
}

}  // namespace

Result<std::unique_ptr<Guest>> Guest::knock(const Secret& secret, Rank rank, Rank rank_count,
                                            uint64_t deadline_ns) {
  Fd connection;
  WEIR_RETURN_IF_ERROR(connect_to(door_name(secret), &connection));
  if (!connection.valid()) return std::unique_ptr<Guest>();
  const Result<PeerProcess> host = peer_process(connection.get());
  if (!host.ok()) return host.status();
  if (host.value().uid != own_uid()) {
    return Status(
        Code::kRefused,
        fmt::format("{}, which listens in the place of rank 0, belongs to user {}, rank {} "
                    "to user {}; all ranks must run as the same user",
                    describe_process(host.value().pid), host.value().uid, rank, own_uid()));
  }
  return enter(Channel(std::move(connection)), host.value().pid, secret, rank, rank_count,
               deadline_ns);
}

Result<std::unique_ptr<Guest>> Guest::knock_at(const Place& place, uint32_t look,
                                               const Secret& secret, Rank rank, Rank rank_count,
                                               uint64_t deadline_ns) {
  std::vector<Fd> connections;
  for (const net::IpAddress& address : place.addresses) {
    Fd connection;
    begin_connect_to(address, place_port(secret, port_index(look)), &connection);
    if (connection.valid()) connections.push_back(std::move(connection));
  }
  const uint64_t patience_ns = kReachNsMin << std::min(look / 4, kReachDoublings);
  const uint64_t until_ns = std::min(deadline_ns, now_ns() + patience_ns);
  while (!connections.empty() && now_ns() < until_ns) {
    std::vector<pollfd> entries;
    for (const Fd& connection : connections) entries.push_back({connection.get(), POLLOUT, 0});
    WEIR_RETURN_IF_ERROR(wait_for_events(&entries, until_ns));
    for (size_t i = entries.size(); i-- > 0;) {
      if (entries[i].revents == 0) continue;
      Fd connection = std::move(connections[i]);
      connections.erase(connections.begin() + static_cast<std::ptrdiff_t>(i));
      if (!is_connected(connection.get())) continue;
      Result<std::unique_ptr<Guest>> guest = enter(Channel(std::move(connection)), kElsewherePid,
                                                   secret, rank, rank_count, deadline_ns);
      if (!guest.ok() || guest.value() != nullptr) return guest;
    }
  }
  return std::unique_ptr<Guest>();
}

Result<std::unique_ptr<Guest>> Guest::enter(Channel channel, int64_t host_pid, const Secret& secret,
                                            Rank rank, Rank rank_count, uint64_t deadline_ns) {
  const Result<Secret> nonce = Secret::random();
  if (!nonce.ok()) return nonce.status();

  // At a port of the network somebody else may listen, and say nothing.
  const bool elsewhere = host_pid == kElsewherePid;
  const uint64_t patience_end_ns = with_grace(deadline_ns);
  const uint64_t until_ns =
      elsewhere ? std::min(patience_end_ns, now_ns() + kAnswerNs) : patience_end_ns;
  wire::Claim claim;
  claim.guest_nonce = nonce.value().bytes;
  claim.rank = rank;
  claim.rank_count = rank_count;
  Result<Reply> reply =
      exchange(&channel, wire::encode_hello(claim.guest_nonce), Kind::kChallenge, until_ns);
  if (reply.ok() && reply.value() == Reply::kFrame) {
    claim.host_nonce = wire::decode_nonce(channel.payload());
    claim.patience_us = patience_us(deadline_ns);
    reply = exchange(&channel, wire::encode_proof(secret, claim), Kind::kWelcome, until_ns);
  }
  if (!reply.ok()) return reply.status();
  if (reply.value() == Reply::kHungUp) return std::unique_ptr<Guest>();
  if (reply.value() != Reply::kFrame) {
    if (elsewhere && reply.value() != Reply::kOtherVersion) return std::unique_ptr<Guest>();
    return refusal(reply.value(), channel, rank, host_pid);
  }

  wire::Claim theirs = claim;
  theirs.role = wire::Role::kHost;
  const wire::Proof given = wire::decode_welcome(channel.payload(), &theirs.rank_count);
  const wire::Proof right = wire::prove(secret, theirs);
  if (!equal_in_constant_time(given.data(), right.data(), right.size())) {
    if (elsewhere) return std::unique_ptr<Guest>();
    return Status(Code::kRefused, fmt::format("{}, which listens in the place of rank 0, could not "
                                              "prove to rank {} that it holds the secret",
                                              describe_process(host_pid), rank));
  }
  if (elsewhere) {
    channel.protect(wire::frame_key(secret, wire::Role::kGuest, claim),
                    wire::frame_key(secret, wire::Role::kHost, claim));
  }
  return std::unique_ptr<Guest>(new Guest(rank, rank_count, std::move(channel), host_pid));
}

std::string Guest::occasion() const {
  return round_ == 0 ? "all ranks had joined" : fmt::format("all_gather {} was complete", round_);
}

Status Guest::await_ready(uint64_t deadline_ns) { return await_frame(Kind::kReady, deadline_ns); }

Status Guest::await_frame(Kind expected, uint64_t deadline_ns) {
  const uint64_t until_ns = with_grace(deadline_ns);
  const std::string host = fmt::format("rank 0 ({})", describe_process(host_pid_));
  // After a failed write there may still be news to read: why rank 0 hung up.
  bool can_write = true;
  for (;;) {
    if (can_write) can_write = channel_.flush();
    switch (channel_.read({expected, Kind::kFailure})) {
      case Channel::Read::kFrame:
        if (channel_.header().kind == Kind::kFailure) {
          return leave(wire::decode_failure(channel_.payload()));
        }
        if (channel_.header().round == round_) return Status();
        [[fallthrough]];
      case Channel::Read::kOtherVersion:
      case Channel::Read::kMalformed: {
        const wire::Header& header = channel_.header();
        return leave(
            Status(Code::kInternal,
                   fmt::format("{} sent rank {} a frame that is out of turn before {} (kind "
                               "{}, round {}, {} bytes)",
                               host, rank_, occasion(), static_cast<int>(header.kind), header.round,
                               header.payload_bytes)));
      }
      case Channel::Read::kClosed:
        return leave(
            Status(Code::kPeerLost, fmt::format("{} ended, or gave up, before {} (seen by rank {})",
                                                host, occasion(), rank_)));
      case Channel::Read::kNothing:
        break;
    }
    if (now_ns() >= until_ns) {
      return leave(Status(Code::kTimeout, fmt::format("timed out: {} did not answer rank {} before "
                                                      "{}; it is stopped, or has not come to it",
                                                      host, rank_, occasion())));
    }
    const Status waited = wait_for(channel_, until_ns);
    if (!waited.ok()) return leave(waited);
  }
}

// Tells rank 0, if it can be told, so that the others learn the reason and not only that we are
// gone.
Status Guest::leave(const Status& status) {
  broken_ = status;
  if (!channel_.sending()) {
    channel_.send(wire::encode_failure(round_, status));
    (void)channel_.flush();
  }
  channel_.close();
  return status;
}

Result<std::vector<std::string>> Guest::all_gather(std::string_view blob, uint64_t deadline_ns) {
  if (!broken_.ok()) return broken_;
  if (blob.size() > kBlobBytesMax) {
    return invalid_argument(fmt::format("all_gather: a blob of {} bytes is above the limit of {}",
                                        blob.size(), kBlobBytesMax));
  }
  ++round_;
  channel_.send(wire::encode_give(round_, patience_us(deadline_ns), blob));
  std::vector<std::string> blobs;
  blobs.reserve(rank_count_);
  while (blobs.size() < rank_count_) {
    WEIR_RETURN_IF_ERROR(await_frame(Kind::kTake, deadline_ns));
    Rank rank = 0;
    const std::string_view taken = wire::decode_take(channel_.payload(), &rank);
    if (rank != blobs.size()) {
      return leave(Status(Code::kInternal, fmt::format("rank 0 sent the blob of rank {} to rank {} "
                                                       "where that of rank {} was due",
                                                       rank, rank_, blobs.size())));
    }
    blobs.emplace_back(taken);
  }
  return blobs;
}

}  // namespace weir::comm
