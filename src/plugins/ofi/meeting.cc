// SPDX-License-Identifier: Apache-2.0
#include "plugins/ofi/meeting.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

#include "net/ip_socket.h"

namespace weir::plugins::ofi {
namespace {

// How much later the next address of a peer is tried while the one before does not answer; also the
// longest pause between rounds over all of its addresses, which grow from kPauseNsMin.
constexpr uint64_t kStaggerNs = 50'000'000;
constexpr uint64_t kPauseNsMin = 2'000'000;
constexpr uint64_t kNoDescriptorNs = 5'000'000;
constexpr int kAcceptCountMax = 64;
constexpr int kBacklogMax = 4096;
constexpr uint32_t kNamedRanksMax = 16;

uint64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(t.tv_nsec);
}

std::string reason_of(int error_number) {
  char buffer[128];
  return strerror_r(error_number, buffer, sizeof buffer);
}

std::string text_of(uint64_t number) { return std::to_string(number); }

std::string describe(const Offer& offer) { return net::to_string(offer.address, offer.port); }

short events_of(const Handshake& handshake) {
  return static_cast<short>(handshake.out_bytes() > 0 ? POLLIN | POLLOUT : POLLIN);
}

bool is_temporary(int error_number) {
  return error_number == EAGAIN || error_number == EWOULDBLOCK || error_number == ENOBUFS ||
         error_number == ENOMEM;
}

}  // namespace

Meeting::~Meeting() {
  stop_listening();
  for (const Peer& peer : peers_) {
    if (peer.fd >= 0) close(peer.fd);
  }
}

MeetingResult Meeting::fail(MeetingResult result, const std::string& text) {
  text_ = text;
  return result;
}

void Meeting::stop_listening() {
  for (const Listener& listener : listeners_) close(listener.fd);
  for (const Attempt& attempt : attempts_) close(attempt.fd);
  for (const Visitor& visitor : visitors_) close(visitor.fd);
  listeners_.clear();
  attempts_.clear();
  visitors_.clear();
}

MeetingResult Meeting::listen(const char* weir_ifname, const char* nccl_socket_ifname) {
  net::InterfaceFilter filter;
  std::string reason;
  if (!net::filter_from(weir_ifname, nccl_socket_ifname, &filter, &reason)) {
    return fail(MeetingResult::kInvalid, reason);
  }
  std::vector<net::Interface> interfaces;
  if (!net::list_interfaces(filter, &interfaces, &reason))
    return fail(MeetingResult::kSystem, reason);
  own_.host = net::this_host();
  const int backlog =
      static_cast<int>(std::min<uint64_t>(uint64_t{identity_.rank_count} + 64, kBacklogMax));
  for (const net::Interface& one : interfaces) {
    // Room is kept for one loopback address, which comes last.
    if (!one.is_loopback && own_.offers.size() + 1 >= kOffersMax) continue;
    if (own_.offers.size() == kOffersMax) break;
    Offer offer{one.address,     0,
                one.speed_mbits, one.prefix_bits,
                one.is_loopback, filter.asks_for(one.name)};
    const int fd = net::listen_at(one.address, &offer.port, backlog);
    if (fd < 0) {
      // Addresses come and go; IPv6 may be switched off in the kernel.
      reason += (reason.empty() ? "" : "; ") + one.name + " " + net::to_string(one.address) + ": " +
                reason_of(errno);
      continue;
    }
    listeners_.push_back({fd, one});
    own_.offers.push_back(offer);
  }
  if (!own_.offers.empty()) return MeetingResult::kMet;
  const std::string allowed =
      filter.text().empty() ? "" : " that the setting '" + filter.text() + "' allows";
  return fail(MeetingResult::kUnreachable, "no network interface" + allowed +
                                               " is up and has an address" +
                                               (reason.empty() ? "" : " (" + reason + ")"));
}

std::vector<Meeting::Candidate> Meeting::candidates_of(const Place& peer, bool all_here) const {
  std::vector<Candidate> loopback, same_net, others;
  for (const Offer& offer : peer.offers) {
    Candidate candidate;
    candidate.offer = offer;
    if (offer.is_loopback) {
      const bool here = own_.host.known() && peer.host == own_.host;
      if (!here || !(all_here || offer.is_asked_for)) continue;
      candidate.why = all_here ? "loopback: all ranks share a host" : "loopback: asked for";
      loopback.push_back(candidate);
      continue;
    }
    for (const Listener& own : listeners_) {
      if (!own.interface.is_loopback && !candidate.source.valid() &&
          net::same_subnet(own.interface.address, offer.address, own.interface.prefix_bits)) {
        candidate.source = own.interface.address;
        candidate.why = "over " + own.interface.name + ": same subnet";
      }
    }
    const bool near = candidate.source.valid();
    if (!near) candidate.why = "by routing";
    if (offer.speed_mbits != 0) candidate.why += ", " + text_of(offer.speed_mbits) + " Mbit/s";
    (near ? same_net : others).push_back(candidate);
  }
  const auto faster = [](const Candidate& a, const Candidate& b) {
    return a.offer.speed_mbits > b.offer.speed_mbits;
  };
  std::stable_sort(same_net.begin(), same_net.end(), faster);
  std::stable_sort(others.begin(), others.end(), faster);
  std::vector<Candidate> all = std::move(loopback);
  all.insert(all.end(), same_net.begin(), same_net.end());
  all.insert(all.end(), others.begin(), others.end());
  return all;
}

MeetingResult Meeting::find_candidates(const std::vector<Place>& peers) {
  const bool all_here = std::all_of(peers.begin(), peers.end(), [&](const Place& peer) {
    return own_.host.known() && peer.host == own_.host;
  });
  for (uint32_t rank = 0; rank < identity_.rank; ++rank) {
    peers_[rank].candidates = candidates_of(peers[rank], all_here);
    if (peers_[rank].candidates.empty()) {
      return fail(MeetingResult::kUnreachable,
                  "rank " + text_of(rank) + " is on another host than rank " +
                      text_of(identity_.rank) +
                      " and offers only its loopback interface; is its network up, and does "
                      "WEIR_IFNAME allow it?");
    }
  }
  return MeetingResult::kMet;
}

MeetingResult Meeting::meet(const std::vector<Place>& peers, uint64_t deadline_ns) {
  peers_.resize(identity_.rank_count);
  missing_ = identity_.rank_count - 1;
  MeetingResult result = find_candidates(peers);
  while (result == MeetingResult::kMet && missing_ > 0) {
    const uint64_t now = now_ns();
    if (now >= deadline_ns) {
      result = time_out();
      break;
    }
    result = start_attempts(now);
    if (result == MeetingResult::kMet) result = wait(deadline_ns);
  }
  stop_listening();
  return result;
}

// One turn: waits for something to happen, and serves it.
MeetingResult Meeting::wait(uint64_t deadline_ns) {
  entries_.clear();
  for (const Listener& listener : listeners_) {
    entries_.push_back({accepting_ ? listener.fd : -1, POLLIN, 0});
  }
  for (const Visitor& visitor : visitors_) {
    entries_.push_back({visitor.fd, events_of(visitor.handshake), 0});
  }
  for (const Attempt& attempt : attempts_) {
    const short events =
        attempt.connecting ? static_cast<short>(POLLOUT) : events_of(attempt.handshake);
    entries_.push_back({attempt.fd, events, 0});
  }
  const uint64_t now = now_ns();
  uint64_t until = deadline_ns;
  for (const Visitor& visitor : visitors_) until = std::min(until, visitor.expiry_ns);
  if (!accepting_) until = std::min(until, now + kNoDescriptorNs);
  for (uint32_t rank = 0; rank < identity_.rank; ++rank) {
    const Peer& peer = peers_[rank];
    if (peer.fd < 0 && !peer.proving) until = std::min(until, peer.next_start_ns);
  }
  const uint64_t left = until > now ? until - now : 0;
  const timespec patience = {static_cast<time_t>(left / 1'000'000'000),
                             static_cast<long>(left % 1'000'000'000)};
  if (ppoll(entries_.data(), entries_.size(), &patience, nullptr) < 0) {
    if (errno == EINTR) return MeetingResult::kMet;
    return fail(MeetingResult::kSystem, "ppoll: " + reason_of(errno));
  }
  const bool was_accepting = accepting_;
  accepting_ = true;
  serve_all(was_accepting);
  return MeetingResult::kMet;
}

void Meeting::serve_all(bool was_accepting) {
  const size_t visitor_count = visitors_.size();
  const pollfd* entry = entries_.data() + listeners_.size();
  for (size_t i = 0; i < visitor_count; ++i) {
    if (entry[i].revents != 0) serve_visitor(&visitors_[i]);
  }
  entry += visitor_count;
  // From the end, since one that has ended is taken out by moving the last into its place.
  for (size_t i = attempts_.size(); i-- > 0;) {
    if (i < attempts_.size() && entry[i].fd == attempts_[i].fd && entry[i].revents != 0) {
      serve_attempt(i);
    }
  }
  const uint64_t now = now_ns();
  for (Visitor& visitor : visitors_) {
    if (visitor.fd < 0 || now < visitor.expiry_ns) continue;
    ++turned_away_.silent;
    turned_away_.last = visitor.from;
    close(visitor.fd);
    visitor.fd = -1;
  }
  std::erase_if(visitors_, [](const Visitor& visitor) { return visitor.fd < 0; });
  for (size_t i = 0; i < listeners_.size(); ++i) {
    if (!was_accepting || entries_[i].revents != 0) accept_all(listeners_[i].fd);
  }
}

MeetingResult Meeting::start_attempts(uint64_t now) {
  for (uint32_t rank = 0; rank < identity_.rank; ++rank) {
    Peer& peer = peers_[rank];
    if (peer.fd >= 0 || peer.proving || now < peer.next_start_ns) continue;
    if (peer.next_candidate < peer.candidates.size()) {
      // One that fails at once leaves its place to the next one.
      const bool started = start_attempt(rank, peer.next_candidate++);
      peer.next_start_ns = started ? now + kStaggerNs : now;
      continue;
    }
    uint64_t pause = kStaggerNs;
    if (peer.under_way == 0) {
      for (const Candidate& candidate : peer.candidates) {
        if (candidate.refused) return refused(rank);
      }
      peer.next_candidate = 0;
      pause = std::min(kStaggerNs, kPauseNsMin << std::min(peer.round++, 5u));
    }
    peer.next_start_ns = now + pause;
  }
  return MeetingResult::kMet;
}

bool Meeting::start_attempt(uint32_t rank, size_t index) {
  Peer& peer = peers_[rank];
  Candidate& candidate = peer.candidates[index];
  Nonce nonce;
  if (!net::fill_random(nonce.data(), nonce.size())) {
    candidate.failure = "getrandom: " + reason_of(errno);
    return false;
  }
  const int fd =
      net::begin_connect(candidate.offer.address, candidate.offer.port, candidate.source);
  if (fd < 0) {
    candidate.failure = reason_of(errno);
    return false;
  }
  ++peer.under_way;
  attempts_.push_back({fd, rank, index, true, false, Handshake(identity_, nonce, rank)});
  return true;
}

void Meeting::drop_attempt(size_t index, const std::string& failure) {
  Attempt& attempt = attempts_[index];
  Peer& peer = peers_[attempt.peer];
  peer.candidates[attempt.candidate].failure = failure;
  if (attempt.proving) peer.proving = false;
  close(attempt.fd);
  if (peer.next_candidate < peer.candidates.size()) peer.next_start_ns = 0;
  forget_attempt(index);
}

void Meeting::forget_attempt(size_t index) {
  Attempt& attempt = attempts_[index];
  --peers_[attempt.peer].under_way;
  if (&attempt != &attempts_.back()) attempt = std::move(attempts_.back());
  attempts_.pop_back();
}

// Sends and receives what can be without waiting.
Meeting::Step Meeting::exchange(int fd, Handshake* handshake, int* error_number) {
  using State = Handshake::State;
  for (;;) {
    while (handshake->out_bytes() > 0) {
      const ssize_t sent = send(fd, handshake->out(), handshake->out_bytes(), MSG_NOSIGNAL);
      if (sent < 0) {
        if (errno == EINTR) continue;
        if (is_temporary(errno)) return Step::kGoesOn;
        *error_number = errno;
        return Step::kEnded;
      }
      handshake->sent(static_cast<size_t>(sent));
    }
    if (handshake->state() == State::kProven) return Step::kProven;
    if (handshake->state() != State::kBusy) return Step::kEnded;
    unsigned char bytes[kHandshakeFrameBytesMax];
    const ssize_t got = recv(fd, bytes, std::min(handshake->wanted(), sizeof bytes), 0);
    if (got < 0) {
      if (errno == EINTR) continue;
      if (is_temporary(errno)) return Step::kGoesOn;
      *error_number = errno;
      return Step::kEnded;
    }
    if (got == 0) {
      *error_number = ECONNRESET;
      return Step::kEnded;
    }
    if (handshake->feed(bytes, static_cast<size_t>(got)) == State::kChallenged) {
      return Step::kGoesOn;
    }
  }
}

void Meeting::serve_attempt(size_t index) {
  Attempt& attempt = attempts_[index];
  if (attempt.connecting) {
    const int error_number = net::connect_error(attempt.fd);
    if (error_number != 0) return drop_attempt(index, reason_of(error_number));
    attempt.connecting = false;
  }
  int error_number = 0;
  Step step = exchange(attempt.fd, &attempt.handshake, &error_number);
  Peer& peer = peers_[attempt.peer];
  if (attempt.handshake.state() == Handshake::State::kChallenged) {
    // Only one proof is under way, so that both ends mean the same connection.
    if (peer.proving || peer.fd >= 0) return drop_attempt(index, "answered later");
    peer.proving = attempt.proving = true;
    attempt.handshake.prove();
    step = exchange(attempt.fd, &attempt.handshake, &error_number);
  }
  if (step == Step::kGoesOn) return;
  Candidate& candidate = peer.candidates[attempt.candidate];
  if (step == Step::kProven) {
    peer.route =
        "rank " + text_of(attempt.peer) + " at " + describe(candidate.offer) + " (" + candidate.why;
    for (size_t i = 0; i < attempt.candidate; ++i) {
      const Candidate& before = peer.candidates[i];
      peer.route += "; not " + describe(before.offer) + ": " +
                    (before.failure.empty() ? "no answer yet" : before.failure);
    }
    peer.route += ")";
    settle(attempt.peer, attempt.fd);
    return forget_attempt(index);
  }
  switch (attempt.handshake.state()) {
    case Handshake::State::kRefused:
      candidate.refused = true;
      return drop_attempt(index, "does not accept the secret, communicator or rank count of rank " +
                                     text_of(identity_.rank) + ", or is another rank");
    case Handshake::State::kOtherVersion:
      candidate.refused = true;
      return drop_attempt(index, "speaks version " + text_of(attempt.handshake.other_version()) +
                                     " of the protocol, rank " + text_of(identity_.rank) +
                                     " version " + text_of(kHandshakeVersion));
    case Handshake::State::kMalformed:
      return drop_attempt(index, "does not speak the protocol of this transport");
    default:
      return drop_attempt(index, reason_of(error_number));
  }
}

void Meeting::serve_visitor(Visitor* visitor) {
  int error_number = 0;
  const Step step = exchange(visitor->fd, &visitor->handshake, &error_number);
  if (step == Step::kGoesOn) return;
  if (step == Step::kProven) {
    settle(visitor->handshake.peer(), visitor->fd);
    visitor->fd = -1;
    return;
  }
  switch (visitor->handshake.state()) {
    case Handshake::State::kRefused:
      ++turned_away_.proof;
      break;
    case Handshake::State::kOtherVersion:
      ++turned_away_.version;
      break;
    case Handshake::State::kMalformed:
      ++turned_away_.malformed;
      break;
    default:
      ++turned_away_.silent;
  }
  turned_away_.last = visitor->from;
  close(visitor->fd);
  visitor->fd = -1;
}

void Meeting::accept_all(int listener) {
  for (int i = 0; i < kAcceptCountMax; ++i) {
    net::IpAddress from;
    const int fd = net::accept_from(listener, &from);
    if (fd < 0) {
      accepting_ = accepting_ && (errno == EAGAIN || errno == EWOULDBLOCK);
      return;
    }
    Nonce nonce;
    if (!net::fill_random(nonce.data(), nonce.size())) {
      close(fd);
      return;
    }
    if (visitors_.size() >= limits_.unproven_count) {
      ++turned_away_.silent;
      turned_away_.last = visitors_.front().from;
      close(visitors_.front().fd);
      visitors_.erase(visitors_.begin());
    }
    visitors_.push_back({fd, from, now_ns() + limits_.unproven_ns, Handshake(identity_, nonce)});
  }
}

void Meeting::settle(uint32_t rank, int fd) {
  Peer& peer = peers_[rank];
  if (peer.fd >= 0) {
    // The peer has given that connection up: it never has two proofs under way.
    close(peer.fd);
  } else {
    --missing_;
  }
  peer.fd = fd;
}

MeetingResult Meeting::refused(uint32_t rank) {
  std::string text = "rank " + text_of(rank) + " cannot be joined:";
  for (const Candidate& candidate : peers_[rank].candidates) {
    text += " " + describe(candidate.offer) + " " + candidate.failure + ";";
  }
  return fail(MeetingResult::kRefused,
              text + " do all ranks run the same version with the same id?");
}

MeetingResult Meeting::time_out() {
  std::string ranks;
  std::string details;
  uint32_t count = 0;
  for (uint32_t rank = 0; rank < identity_.rank_count; ++rank) {
    const Peer& peer = peers_[rank];
    if (rank == identity_.rank || peer.fd >= 0) continue;
    if (++count > kNamedRanksMax) continue;
    ranks += (count > 1 ? ", " : "") + text_of(rank);
    for (const Candidate& candidate : peer.candidates) {
      details += "; " + describe(candidate.offer) + " of rank " + text_of(rank) + ": " +
                 (candidate.failure.empty() ? "no answer" : candidate.failure);
    }
  }
  if (count > kNamedRanksMax) ranks += " and " + text_of(count - kNamedRanksMax) + " more";
  std::string text = std::string("timed out: ") + (count == 1 ? "rank " : "ranks ") + ranks +
                     " of " + text_of(identity_.rank_count) + (count == 1 ? " is" : " are") +
                     " not connected to rank " + text_of(identity_.rank) + details;
  const uint32_t turned_away =
      turned_away_.proof + turned_away_.version + turned_away_.malformed + turned_away_.silent;
  if (turned_away > 0) {
    text += "; connections turned away meanwhile: " + text_of(turned_away_.proof) +
            " without the secret, " + text_of(turned_away_.version) + " of another version, " +
            text_of(turned_away_.malformed) + " of another protocol, " +
            text_of(turned_away_.silent) + " silent (last: " + net::to_string(turned_away_.last) +
            ")";
  }
  return fail(MeetingResult::kTimeout, text);
}

int Meeting::take(uint32_t peer) {
  const int fd = peers_[peer].fd;
  peers_[peer].fd = -1;
  return fd;
}

}  // namespace weir::plugins::ofi
