// SPDX-License-Identifier: Apache-2.0
#include "plugins/tcp/rejoin.h"

#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

#include "net/ip_socket.h"

namespace weir::plugins::tcp {
namespace {

constexpr uint64_t kStepNs = 10'000'000;
constexpr uint64_t kPauseNsMin = 50'000'000;
constexpr uint64_t kPauseNsMax = 1'000'000'000;
constexpr uint64_t kPatienceNs = 2'000'000'000;  // of a connection, from its beginning to its proof
constexpr int kAcceptCountMax = 64;

}  // namespace

Rejoin::~Rejoin() {
  for (const int fd : listeners_) close(fd);
  for (Attempt& attempt : attempts_) attempt.stream.close();
  for (Visitor& visitor : visitors_) visitor.stream.close();
  for (Peer& peer : peers_) {
    for (Absent& rail : peer.rails) rail.control.close();
  }
}

void Rejoin::add(uint32_t peer, Bundle* bundle, std::vector<Way> ways) {
  peers_.push_back({peer, bundle, std::move(ways), std::vector<Absent>(bundle->rail_count())});
}

void Rejoin::step(uint64_t now_ns) {
  if (now_ns < next_ns_) return;
  next_ns_ = now_ns + kStepNs;
  for (size_t i = 0; i < peers_.size(); ++i) {
    if (peers_[i].ways.empty() || !peers_[i].bundle->any_down()) continue;
    for (uint32_t rail = 0; rail < peers_[i].rails.size(); ++rail) start(i, rail, now_ns);
  }
  for (size_t i = attempts_.size(); i-- > 0;) {
    if (serve(&attempts_[i], now_ns)) continue;
    if (i + 1 != attempts_.size()) attempts_[i] = std::move(attempts_.back());
    attempts_.pop_back();
  }
  accept_all(now_ns);
  for (Visitor& visitor : visitors_) {
    int error_number = 0;
    Step step = exchange(&visitor.stream, &visitor.handshake, &error_number);
    if (visitor.handshake.state() == Handshake::State::kClaimed) {
      if (may_come(visitor.handshake)) visitor.handshake.welcome();
      step = exchange(&visitor.stream, &visitor.handshake, &error_number);
    }
    if (step == Step::kGoesOn && visitor.handshake.state() != Handshake::State::kClaimed &&
        now_ns < visitor.expiry_ns)
      continue;
    if (step == Step::kProven) {
      settle(&visitor);
    } else {
      visitor.stream.close();
    }
  }
  std::erase_if(visitors_, [](const Visitor& visitor) { return !visitor.stream.is_open(); });
}

// The guest's end.

void Rejoin::start(size_t index, uint32_t rail_index, uint64_t now_ns) {
  Peer& peer = peers_[index];
  Absent& rail = peer.rails[rail_index];
  if (rail.under_way || !peer.bundle->may_return(rail_index)) return;
  if (rail.next_ns == 0) {
    rail.attempt_count = 0;
    rail.next_ns = now_ns + kPauseNsMin;
  }
  if (now_ns < rail.next_ns) return;
  rail.returns = peer.bundle->returns(rail_index) + 1;
  rail.under_way = begin(index, rail_index, kControlLane, now_ns);
  if (!rail.under_way) give_up(&rail, now_ns);
}

bool Rejoin::begin(size_t index, uint32_t rail_index, uint32_t lane, uint64_t now_ns) {
  const Peer& peer = peers_[index];
  const Way& way = peer.ways[rail_index];
  wire::Nonce nonce;
  if (!net::fill_random(nonce.data(), nonce.size())) return false;
  const int fd =
      net::begin_connect(way.offer.address, way.offer.port, way.source, way.device.c_str());
  if (fd < 0) return false;
  Stream stream(fd);
  if (!begin_tls(identity_, net::Stream::Role::kClient, &stream)) {
    stream.close();
    return false;
  }
  Handshake handshake(identity_, nonce, peer.rank, lane);
  handshake.set_rail(rail_index, peer.bundle->rail_count(), peer.rails[rail_index].returns);
  attempts_.push_back({stream, index, rail_index, true, now_ns + kPatienceNs, handshake});
  return true;
}

void Rejoin::give_up(Absent* rail, uint64_t now_ns) {
  rail->under_way = false;
  rail->control.close();
  rail->next_ns = now_ns + std::min(kPauseNsMax, kPauseNsMin << std::min(rail->attempt_count, 5u));
  ++rail->attempt_count;
}

// False: the attempt has ended, in whatever way.
bool Rejoin::serve(Attempt* attempt, uint64_t now_ns) {
  Peer& peer = peers_[attempt->peer];
  Absent& rail = peer.rails[attempt->rail];
  const auto fail = [&] {
    attempt->stream.close();
    give_up(&rail, now_ns);
    return false;
  };
  if (now_ns >= attempt->expiry_ns || !peer.bundle->may_return(attempt->rail)) return fail();
  if (attempt->connecting) {
    // Not connected yet looks like a temporary failure of the first send.
    if (net::connect_error(attempt->stream.fd()) != 0) return fail();
  }
  int error_number = 0;
  Step step = exchange(&attempt->stream, &attempt->handshake, &error_number);
  if (attempt->handshake.state() == Handshake::State::kChallenged) {
    attempt->handshake.prove();
    step = exchange(&attempt->stream, &attempt->handshake, &error_number);
  }
  if (step == Step::kGoesOn) return true;
  if (step == Step::kEnded) return fail();
  const Stream stream = attempt->stream;
  const uint32_t rail_index = attempt->rail;
  const size_t index = attempt->peer;
  if (attempt->handshake.lane() == kControlLane) {
    rail.control = stream;
    if (!begin(index, rail_index, kRailLane, now_ns)) give_up(&rail, now_ns);
    return false;
  }
  rail.under_way = false;
  rail.next_ns = 0;
  join(&peer, rail_index, stream);
  return false;
}

// The host's end.

void Rejoin::accept_all(uint64_t now_ns) {
  for (const int listener : listeners_) {
    for (int i = 0; i < kAcceptCountMax; ++i) {
      net::IpAddress from;
      const int fd = net::accept_from(listener, &from);
      if (fd < 0) break;
      wire::Nonce nonce;
      Stream stream(fd);
      if (!net::fill_random(nonce.data(), nonce.size()) ||
          !begin_tls(identity_, net::Stream::Role::kServer, &stream)) {
        stream.close();
        break;
      }
      if (visitors_.size() >= kVisitorsMax) {
        visitors_.front().stream.close();
        visitors_.erase(visitors_.begin());
      }
      visitors_.push_back({stream, now_ns + kPatienceNs, Handshake(identity_, nonce)});
      visitors_.back().handshake.ask_before_welcome();
    }
  }
}

Rejoin::Peer* Rejoin::peer_of(const Handshake& shown) {
  for (Peer& peer : peers_) {
    if (peer.rank == shown.peer() && peer.rails.size() == shown.rail_count()) return &peer;
  }
  return nullptr;
}

// Else one of the ends does not know yet what the other has: the peer comes again.
bool Rejoin::may_come(const Handshake& shown) {
  Peer* peer = peer_of(shown);
  if (peer == nullptr || shown.returns() == 0) return false;
  const Bundle& bundle = *peer->bundle;
  const uint32_t i = shown.rail();
  const bool is_next = shown.returns() == bundle.returns(i) + 1 && bundle.may_return(i);
  const bool is_again = shown.returns() == bundle.returns(i) && !bundle.left();
  if (!is_next && !is_again) return false;
  const Absent& rail = peer->rails[i];
  return shown.lane() == kControlLane ||
         (rail.control.is_open() && rail.returns == shown.returns());
}

void Rejoin::settle(Visitor* visitor) {
  const Handshake& shown = visitor->handshake;
  Stream stream = std::exchange(visitor->stream, Stream());
  Peer* peer = peer_of(shown);
  const uint32_t i = shown.rail();
  Absent& rail = peer->rails[i];
  if (shown.lane() == kControlLane) {
    rail.control.close();
    rail.control = stream;
    rail.returns = shown.returns();
    return;
  }
  // Since it was welcomed, all may have changed only by this very peer.
  if (!may_come(shown)) {
    stream.close();
    return;
  }
  if (shown.returns() == peer->bundle->returns(i)) peer->bundle->forget_connection(i);
  join(peer, i, stream);
}

void Rejoin::join(Peer* peer, uint32_t rail_index, Stream data) {
  Absent& rail = peer->rails[rail_index];
  peer->bundle->attach(rail_index, data, std::exchange(rail.control, Stream()), rail.returns);
  report_.log(Report::kInformation, "tcp: rail " + std::to_string(rail_index) + " to rank " +
                                        std::to_string(peer->rank) + " is back");
}

}  // namespace weir::plugins::tcp
