// SPDX-License-Identifier: Apache-2.0
#include "plugins/tcp/joiner.h"

#include <errno.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "net/ip_socket.h"

namespace weir::plugins::tcp {
namespace {

constexpr uint64_t kPatienceNs = 2'000'000'000;  // from accept to proof
// An unproven connection that is older gives its place to a new one when all are taken.
constexpr uint64_t kGivesWayNs = 100'000'000;
constexpr int kAcceptCountMax = 64;

}  // namespace

Joiner::~Joiner() {
  for (const int fd : listeners_) close(fd);
  for (Attempt& attempt : attempts_) attempt.stream.close();
  for (Visitor& visitor : visitors_) visitor.stream.close();
}

void Joiner::adopt(std::vector<Visitor> visitors) {
  for (Visitor& visitor : visitors) {
    visitor.handshake.ask_before_welcome();
    visitors_.push_back(std::move(visitor));
  }
}

int Joiner::begin(const Wanted& wanted, const Way& way, uint64_t now_ns) {
  wire::Nonce nonce;
  if (!net::fill_random(nonce.data(), nonce.size())) return errno;
  const int fd =
      net::begin_connect(way.offer.address, way.offer.port, way.source, way.device.c_str());
  if (fd < 0) return errno;
  Stream stream(fd);
  if (!begin_tls(identity_, net::Stream::Role::kClient, &stream)) {
    stream.close();
    return ENOMEM;
  }
  Handshake handshake(identity_, nonce, wanted.peer, wanted.lane);
  handshake.set_rail(wanted.rail, wanted.rail_count, wanted.returns);
  Owner* owner = owner_of(handshake);
  attempts_.push_back({stream, true, now_ns + wanted.patience_ns, handshake, owner});
  return 0;
}

void Joiner::step(uint64_t now_ns) {
  entries_.clear();
  const auto events_of = [](const auto& connection) {
    return connection.stream.events(connection.handshake.out_bytes() > 0);
  };
  for (const Attempt& attempt : attempts_) {
    const short events = attempt.connecting ? static_cast<short>(POLLOUT) : events_of(attempt);
    entries_.push_back({attempt.stream.fd(), events, 0});
  }
  for (const Visitor& visitor : visitors_) {
    entries_.push_back({visitor.stream.fd(), events_of(visitor), 0});
  }
  const bool accepts = has_room(now_ns);
  for (const int fd : listeners_) entries_.push_back({accepts ? fd : -1, POLLIN, 0});
  if (entries_.empty() || poll(entries_.data(), entries_.size(), 0) < 0) return;
  const size_t attempt_count = attempts_.size();
  const size_t visitor_count = visitors_.size();
  // From the end, since one that has ended is taken out by moving the last into its place; those that are
  // begun meanwhile wait for the next step.
  for (size_t i = attempt_count; i-- > 0;) {
    if (entries_[i].revents == 0 && now_ns < attempts_[i].expiry_ns &&
        attempts_[i].owner->goes_on(attempts_[i].handshake)) {
      continue;
    }
    if (serve(&attempts_[i], now_ns)) continue;
    if (i + 1 != attempts_.size()) attempts_[i] = std::move(attempts_.back());
    attempts_.pop_back();
  }
  for (size_t i = 0; i < visitor_count; ++i) {
    if (entries_[attempt_count + i].revents != 0 || now_ns >= visitors_[i].expiry_ns) {
      serve(&visitors_[i], now_ns);
    }
  }
  std::erase_if(visitors_, [](const Visitor& visitor) { return !visitor.stream.is_open(); });
  lacks_descriptors_ = false;
  for (size_t i = 0; i < listeners_.size(); ++i) {
    if (entries_[attempt_count + visitor_count + i].revents != 0) accept_all(listeners_[i], now_ns);
  }
}

// False: the attempt has ended, in whatever way.
bool Joiner::serve(Attempt* attempt, uint64_t now_ns) {
  Owner* owner = attempt->owner;
  int error_number = 0;
  Step step = Step::kEnded;
  if (attempt->connecting) error_number = net::connect_error(attempt->stream.fd());
  if (now_ns < attempt->expiry_ns && error_number == 0 && owner->goes_on(attempt->handshake)) {
    // Not connected yet looks like a temporary failure of the first send.
    step = exchange(&attempt->stream, &attempt->handshake, &error_number);
    if (attempt->handshake.out_bytes() == 0) attempt->connecting = false;
    if (attempt->handshake.state() == Handshake::State::kChallenged) {
      attempt->handshake.prove();
      attempt->expiry_ns = UINT64_MAX;
      step = exchange(&attempt->stream, &attempt->handshake, &error_number);
    }
  }
  if (step == Step::kGoesOn) return true;
  Stream stream = attempt->stream;
  const Handshake handshake = attempt->handshake;
  if (step == Step::kProven) {
    attempt->stream = Stream();
    owner->join(handshake, stream, now_ns);
  } else {
    stream.close();
    owner->fail(handshake, error_number, now_ns);
  }
  return false;
}

void Joiner::serve(Visitor* visitor, uint64_t now_ns) {
  int error_number = 0;
  Handshake& shown = visitor->handshake;
  Step step = exchange(&visitor->stream, &shown, &error_number);
  if (shown.state() == Handshake::State::kClaimed) {
    Owner* owner = owner_of(shown);
    if (owner != nullptr && owner->may_come(shown)) shown.welcome();
    step = exchange(&visitor->stream, &shown, &error_number);
  }
  if (step == Step::kGoesOn && shown.state() != Handshake::State::kClaimed &&
      now_ns < visitor->expiry_ns) {
    return;
  }
  Stream stream = std::exchange(visitor->stream, Stream());
  Owner* owner = step == Step::kProven ? owner_of(shown) : nullptr;
  // Since it was welcomed, all may have changed by this very peer.
  if (owner != nullptr && owner->may_come(shown)) {
    owner->join(shown, stream, now_ns);
  } else {
    stream.close();
  }
}

// Those that came first have had their time.
bool Joiner::has_room(uint64_t now_ns) {
  if (visitors_.size() < kVisitorsMax) return true;
  if (now_ns + kPatienceNs - visitors_.front().expiry_ns < kGivesWayNs) return false;
  visitors_.front().stream.close();
  visitors_.erase(visitors_.begin());
  return true;
}

void Joiner::accept_all(int listener, uint64_t now_ns) {
  for (int i = 0; i < kAcceptCountMax && visitors_.size() < kVisitorsMax; ++i) {
    net::IpAddress from;
    const int fd = net::accept_from(listener, &from);
    if (fd < 0) {
      lacks_descriptors_ = lacks_descriptors_ || errno == EMFILE || errno == ENFILE;
      return;
    }
    wire::Nonce nonce;
    Stream stream(fd);
    if (!net::fill_random(nonce.data(), nonce.size()) ||
        !begin_tls(identity_, net::Stream::Role::kServer, &stream)) {
      stream.close();
      return;
    }
    visitors_.push_back({stream, from, now_ns + kPatienceNs, Handshake(identity_, nonce)});
    visitors_.back().handshake.ask_before_welcome();
  }
}

}  // namespace weir::plugins::tcp
