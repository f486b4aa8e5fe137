// SPDX-License-Identifier: Apache-2.0
#include "plugins/tcp/acceptor.h"

#include <errno.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "net/ip_socket.h"

namespace weir::plugins::tcp {
namespace {

using Why = net::TurnedAway::Why;

// How soon it is tried again when nothing could be accepted.
constexpr uint64_t kStallNs = 5'000'000;
// Accepted at once before the others get their turn again.
constexpr int kAcceptCountMax = 64;

}  // namespace

void Acceptor::close() {
  for (const int listener : listeners_) ::close(listener);
  for (Visitor& visitor : visitors_) visitor.stream.close();
  listeners_.clear();
  visitors_.clear();
}

bool Acceptor::lacks_descriptors() const { return stall_ == EMFILE || stall_ == ENFILE; }

void Acceptor::append_entries(uint64_t now_ns, std::vector<pollfd>* entries) const {
  const bool accepts = stall_ == 0 && who_gives_way(now_ns).room_ns <= now_ns;
  for (const int listener : listeners_) entries->push_back({accepts ? listener : -1, POLLIN, 0});
  for (const Visitor& visitor : visitors_) {
    const short events = visitor.stream.events(visitor.handshake.out_bytes() > 0);
    entries->push_back({visitor.stream.fd(), events, 0});
  }
}

uint64_t Acceptor::next_event_ns(uint64_t now_ns) const {
  uint64_t next = stall_ != 0 ? now_ns + kStallNs : UINT64_MAX;
  if (const uint64_t room_ns = who_gives_way(now_ns).room_ns; room_ns > now_ns) {
    next = std::min(next, room_ns);
  }
  for (const Visitor& visitor : visitors_) next = std::min(next, expiry_ns(visitor));
  return next;
}

void Acceptor::serve(const pollfd* first, uint64_t now_ns, Owner* owner) {
  const pollfd* entry = first + listeners_.size();
  for (size_t i = 0; i < visitors_.size(); ++i) {
    if (entry[i].revents != 0 || now_ns >= expiry_ns(visitors_[i])) {
      serve(&visitors_[i], now_ns, owner);
    }
  }
  std::erase_if(visitors_, [](const Visitor& visitor) { return !visitor.stream.is_open(); });
  const bool was_stalled = std::exchange(stall_, 0) != 0;
  for (size_t i = 0; i < listeners_.size(); ++i) {
    if (was_stalled || first[i].revents != 0) accept_all(listeners_[i], now_ns, owner);
  }
}

void Acceptor::serve(Visitor* visitor, uint64_t now_ns, Owner* owner) {
  Handshake& shown = visitor->handshake;
  int error_number = 0;
  Step step = exchange(&visitor->stream, &shown, &error_number);
  if (shown.state() == Handshake::State::kClaimed) {
    // Else it is an honest rank, which comes again.
    if (!owner->may_come(shown)) return visitor->stream.close();
    shown.welcome();
    step = exchange(&visitor->stream, &shown, &error_number);
  }
  switch (step) {
    case Step::kGoesOn:
      if (now_ns >= expiry_ns(*visitor)) turn_away(visitor, Why::kSilent);
      return;
    case Step::kEnded:
      return turn_away(visitor, reason_of(*visitor));
    case Step::kProven:
      break;
  }
  if (!owner->may_come(shown)) return visitor->stream.close();
  owner->join(shown, std::exchange(visitor->stream, Stream()), now_ns);
}

void Acceptor::turn_away(Visitor* visitor, Why why) {
  turned_away_.add(why, visitor->from);
  visitor->stream.close();
}

Why Acceptor::reason_of(const Visitor& visitor) const {
  Why why = Why::kSilent;
  const net::Stream* tls = visitor.stream.tls();
  if (tls != nullptr && net::TurnedAway::why_of(tls->failure(), &why)) return why;
  switch (visitor.handshake.state()) {
    case Handshake::State::kRefused:
      return Why::kNoSecret;
    case Handshake::State::kOtherVersion:
      return Why::kOtherVersion;
    case Handshake::State::kMalformed:
      return Why::kMalformed;
    default:
      return Why::kSilent;
  }
}

// Without room nobody is accepted: who has come waits in the kernel's queue.
net::GivesWay Acceptor::who_gives_way(uint64_t now_ns) const {
  if (visitors_.size() < limits_.unproven_count) return {net::GivesWay::kNobody, now_ns};
  return net::who_gives_way(
      visitors_.size(), now_ns, [](size_t) { return true; },
      [&](size_t i) { return visitors_[i].handshake.is_silent(); },
      [&](size_t i) { return visitors_[i].accepted_ns; });
}

// The oldest that has said nothing goes. False: there is none.
bool Acceptor::drop_silent() {
  const auto silent = std::find_if(visitors_.begin(), visitors_.end(), [](const Visitor& visitor) {
    return visitor.handshake.is_silent();
  });
  if (silent == visitors_.end()) return false;
  turn_away(&*silent, Why::kSilent);
  visitors_.erase(silent);
  return true;
}

void Acceptor::accept_all(int listener, uint64_t now_ns, Owner* owner) {
  for (int i = 0; i < kAcceptCountMax && who_gives_way(now_ns).room_ns <= now_ns; ++i) {
    net::IpAddress from;
    const int fd = net::accept_from(listener, &from);
    if (fd < 0) {
      if ((errno == EMFILE || errno == ENFILE) && drop_silent()) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) stall_ = errno;
      return;
    }
    wire::Nonce nonce;
    Stream stream(fd);
    if (!net::fill_random(nonce.data(), nonce.size()) ||
        !begin_tls(identity_, net::Stream::Role::kServer, &stream)) {
      return stream.close();
    }
    if (const size_t index = who_gives_way(now_ns).index; index != net::GivesWay::kNobody) {
      turn_away(&visitors_[index], Why::kSilent);
      visitors_.erase(visitors_.begin() + static_cast<std::ptrdiff_t>(index));
    }
    visitors_.push_back({stream, from, now_ns, Handshake(identity_, nonce)});
    visitors_.back().handshake.ask_before_welcome();
    // Mostly its hello has come already.
    serve(&visitors_.back(), now_ns, owner);
    if (!visitors_.back().stream.is_open()) visitors_.pop_back();
  }
}

}  // namespace weir::plugins::tcp
