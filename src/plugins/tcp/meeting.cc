// SPDX-License-Identifier: Apache-2.0
#include "plugins/tcp/meeting.h"

#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

#include "net/ip_socket.h"

namespace weir::plugins::tcp {
namespace {

// How much later the next address of a peer is tried while the one before does not answer.
constexpr uint64_t kStaggerNs = 50'000'000;
// Between attempts at the same address, growing with their number.
constexpr uint64_t kRetryNsMin = 2'000'000;
constexpr uint64_t kRetryNsMax = 100'000'000;
constexpr uint64_t kNoDescriptorNs = 5'000'000;
constexpr int kAcceptCountMax = 64;
constexpr int kBacklogMax = 4096;

uint64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(t.tv_nsec);
}

std::string reason_of(int error_number) {
  char buffer[128];
  return strerror_r(error_number, buffer, sizeof buffer);
}

weir_result_t code_of(int error_number) {
  return error_number == ENOMEM || error_number == ENOBUFS ? WEIR_ERROR_NO_MEMORY
                                                           : WEIR_ERROR_SYSTEM;
}

std::string text_of(uint64_t number) { return std::to_string(number); }

std::string describe(const Offer& offer) { return net::to_string(offer.address, offer.port); }

}  // namespace

Meeting::~Meeting() {
  stop_listening();
  for (Peer& peer : peers_) {
    for (const int fd : peer.fds) {
      if (fd >= 0) close(fd);
    }
  }
}

void Meeting::stop_listening() {
  for (const Listener& listener : listeners_) close(listener.fd);
  for (const Attempt& attempt : attempts_) close(attempt.fd);
  for (const Visitor& visitor : visitors_) close(visitor.fd);
  listeners_.clear();
  attempts_.clear();
  visitors_.clear();
}

weir_result_t Meeting::listen() {
  net::InterfaceFilter filter;
  std::string reason;
  if (!net::filter_from(report_.setting("WEIR_IFNAME"), report_.setting("NCCL_SOCKET_IFNAME"),
                        &filter, &reason)) {
    return report_.fail(WEIR_ERROR_INVALID_ARGUMENT, "tcp: " + reason);
  }
  std::vector<net::Interface> interfaces;
  if (!net::list_interfaces(filter, &interfaces, &reason)) {
    return report_.fail(WEIR_ERROR_SYSTEM, "tcp: " + reason);
  }
  own_.rank = identity_.rank;
  own_.host = net::this_host();
  const int backlog = static_cast<int>(
      std::min<uint64_t>(uint64_t{identity_.rank_count} * kConnectionsPerPeer + 64, kBacklogMax));
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
  if (!own_.offers.empty()) return WEIR_OK;
  const std::string allowed =
      filter.text().empty() ? "" : " that the setting '" + filter.text() + "' allows";
  return report_.fail(WEIR_ERROR_UNSUPPORTED, "tcp: no network interface" + allowed +
                                                  " is up and has an address" +
                                                  (reason.empty() ? "" : " (" + reason + ")"));
}

weir_result_t Meeting::find_candidates(const std::vector<PeerAddress>& peers) {
  const bool all_here = std::all_of(peers.begin(), peers.end(), [&](const PeerAddress& peer) {
    return own_.host.known() && peer.host == own_.host;
  });
  for (uint32_t rank = 0; rank < identity_.rank; ++rank) {
    const PeerAddress& peer = peers[rank];
    std::vector<Candidate> same_net, others, loopback;
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
    std::vector<Candidate>& all = peers_[rank].candidates;
    for (const auto* list : {&loopback, &same_net, &others}) {
      all.insert(all.end(), list->begin(), list->end());
    }
    if (all.empty()) {
      return report_.fail(
          WEIR_ERROR_UNSUPPORTED,
          "tcp: rank " + text_of(rank) + " is on another host than rank " +
              text_of(identity_.rank) +
              " and offers only its loopback interface; is its network up, and does WEIR_IFNAME "
              "allow it?");
    }
  }
  return WEIR_OK;
}

weir_result_t Meeting::meet(const std::vector<PeerAddress>& peers, uint64_t deadline_ns) {
  peers_.resize(identity_.rank_count);
  for (Peer& peer : peers_) std::fill(std::begin(peer.fds), std::end(peer.fds), -1);
  open_slots_ = uint64_t{identity_.rank_count - 1} * kConnectionsPerPeer;
  weir_result_t result = find_candidates(peers);
  while (result == WEIR_OK && open_slots_ > 0) {
    const uint64_t now = now_ns();
    if (now >= deadline_ns) {
      result = time_out();
      break;
    }
    result = start_attempts(now);
    if (result != WEIR_OK || open_slots_ == 0) break;
    entries_.clear();
    for (const Listener& listener : listeners_) {
      entries_.push_back({accepting_ ? listener.fd : -1, POLLIN, 0});
    }
    const auto events_of = [](const Handshake& handshake) {
      return static_cast<short>(handshake.out_bytes() > 0 ? POLLIN | POLLOUT : POLLIN);
    };
    for (const Visitor& visitor : visitors_) {
      entries_.push_back({visitor.fd, events_of(visitor.handshake), 0});
    }
    for (const Attempt& attempt : attempts_) {
      const short events =
          attempt.connecting ? static_cast<short>(POLLOUT) : events_of(attempt.handshake);
      entries_.push_back({attempt.fd, events, 0});
    }
    const uint64_t until = next_event_ns(deadline_ns);
    const uint64_t left = until > now ? until - now : 0;
    const timespec patience = {static_cast<time_t>(left / 1'000'000'000),
                               static_cast<long>(left % 1'000'000'000)};
    if (ppoll(entries_.data(), entries_.size(), &patience, nullptr) < 0) {
      if (errno == EINTR) continue;
      result = report_.fail(code_of(errno), "tcp: ppoll: " + reason_of(errno));
      break;
    }
    const bool was_accepting = accepting_;
    accepting_ = true;
    const size_t visitor_count = visitors_.size();
    const pollfd* entry = entries_.data() + listeners_.size();
    for (size_t i = 0; i < visitor_count; ++i) {
      if (entry[i].revents != 0) serve_visitor(&visitors_[i]);
    }
    entry += visitor_count;
    // From the end, since one that has ended is taken out by moving the last into its place; those
    // that are begun meanwhile are not.
    for (size_t i = attempts_.size(); i-- > 0;) {
      if (i < attempts_.size() && entry[i].fd == attempts_[i].fd && entry[i].revents != 0) {
        serve_attempt(i, entry[i].revents);
      }
    }
    const uint64_t later = now_ns();
    for (Visitor& visitor : visitors_) {
      if (visitor.fd < 0 || later < visitor.expiry_ns) continue;
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
  stop_listening();
  if (result != WEIR_OK) return result;
  for (uint32_t rank = 0; rank < identity_.rank; ++rank) {
    report_.log(Report::kInformation,
                "tcp: rank " + text_of(identity_.rank) + " uses " + peers_[rank].route);
  }
  return WEIR_OK;
}

uint64_t Meeting::next_event_ns(uint64_t deadline_ns) const {
  uint64_t next = deadline_ns;
  for (const Visitor& visitor : visitors_) next = std::min(next, visitor.expiry_ns);
  if (!accepting_) next = std::min(next, now_ns() + kNoDescriptorNs);
  for (uint32_t rank = 0; rank < identity_.rank; ++rank) {
    const Peer& peer = peers_[rank];
    if (peer.chosen < 0) {
      next = std::min(next, peer.next_start_ns);
      continue;
    }
    for (uint32_t lane = 0; lane < kConnectionsPerPeer; ++lane) {
      if (peer.fds[lane] < 0 && peer.under_way[lane] == 0) {
        next = std::min(next, peer.retry_ns[lane]);
      }
    }
  }
  return next;
}

weir_result_t Meeting::start_attempts(uint64_t now) {
  for (uint32_t rank = 0; rank < identity_.rank; ++rank) {
    Peer& peer = peers_[rank];
    if (peer.chosen < 0) {
      const weir_result_t result = start_route(rank, now);
      if (result != WEIR_OK) return result;
      continue;
    }
    for (uint32_t lane = 0; lane < kConnectionsPerPeer; ++lane) {
      if (peer.fds[lane] >= 0 || peer.under_way[lane] != 0 || peer.retry_ns[lane] > now) continue;
      start_attempt(rank, lane, static_cast<size_t>(peer.chosen), now);
    }
  }
  return WEIR_OK;
}

// The control connection finds the way: the others follow it.
weir_result_t Meeting::start_route(uint32_t rank, uint64_t now) {
  Peer& peer = peers_[rank];
  if (now < peer.next_start_ns) return WEIR_OK;
  if (peer.next_candidate < peer.candidates.size()) {
    const size_t candidate = peer.next_candidate++;
    // One that fails at once leaves its place to the next one.
    const bool started = start_attempt(rank, kControlLane, candidate, now);
    peer.next_start_ns = started ? now + kStaggerNs : now;
    return WEIR_OK;
  }
  const bool under_way = std::any_of(std::begin(peer.under_way), std::end(peer.under_way),
                                     [](uint32_t count) { return count != 0; });
  if (!under_way) {
    for (const Candidate& candidate : peer.candidates) {
      if (candidate.refused) return refused(rank);
    }
    peer.next_candidate = 0;
  }
  peer.next_start_ns = now + kStaggerNs;
  return WEIR_OK;
}

bool Meeting::start_attempt(uint32_t rank, uint32_t lane, size_t candidate, uint64_t now) {
  Peer& peer = peers_[rank];
  Candidate& chosen = peer.candidates[candidate];
  const uint64_t pause =
      std::min(kRetryNsMax, kRetryNsMin << std::min(peer.attempt_count[lane], 6u));
  ++peer.attempt_count[lane];
  peer.retry_ns[lane] = now + pause;
  wire::Nonce nonce;
  if (!net::fill_random(nonce.data(), nonce.size())) {
    chosen.failure = "getrandom: " + reason_of(errno);
    return false;
  }
  const int fd = net::begin_connect(chosen.offer.address, chosen.offer.port, chosen.source);
  if (fd < 0) {
    chosen.failure = reason_of(errno);
    return false;
  }
  ++peer.under_way[lane];
  attempts_.push_back({fd, rank, lane, candidate, true, Handshake(identity_, nonce, rank, lane)});
  return true;
}

void Meeting::drop_attempt(size_t index, const std::string& failure) {
  Attempt& attempt = attempts_[index];
  Peer& peer = peers_[attempt.peer];
  peer.candidates[attempt.candidate].failure = failure;
  close(attempt.fd);
  if (attempt.lane == kControlLane) {
    // Whatever was chosen does not answer any more, or the next one need not be waited for.
    if (peer.chosen == static_cast<int>(attempt.candidate)) peer.chosen = -1;
    if (peer.next_candidate < peer.candidates.size()) peer.next_start_ns = 0;
  }
  forget_attempt(index);
}

void Meeting::forget_attempt(size_t index) {
  Attempt& attempt = attempts_[index];
  --peers_[attempt.peer].under_way[attempt.lane];
  if (&attempt != &attempts_.back()) attempt = std::move(attempts_.back());
  attempts_.pop_back();
}

// Sends and receives what can be without waiting.
Meeting::Step Meeting::exchange(int fd, Handshake* handshake, int* error_number) {
  for (;;) {
    while (handshake->out_bytes() > 0) {
      const ssize_t sent = send(fd, handshake->out(), handshake->out_bytes(), MSG_NOSIGNAL);
      if (sent < 0) {
        if (errno == EINTR) continue;
        if (errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM) return Step::kGoesOn;
        *error_number = errno;
        return Step::kEnded;
      }
      handshake->sent(static_cast<size_t>(sent));
    }
    if (handshake->state() == Handshake::State::kProven) return Step::kProven;
    if (handshake->state() != Handshake::State::kBusy) return Step::kEnded;
    unsigned char bytes[wire::kHeaderBytes + wire::kPayloadBytesMax];
    const ssize_t got = recv(fd, bytes, std::min(handshake->wanted(), sizeof bytes), 0);
    if (got < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM) return Step::kGoesOn;
      *error_number = errno;
      return Step::kEnded;
    }
    if (got == 0) {
      *error_number = ECONNRESET;
      return Step::kEnded;
    }
    if (handshake->feed(bytes, static_cast<size_t>(got)) == Handshake::State::kChallenged) {
      return Step::kGoesOn;
    }
  }
}

void Meeting::serve_attempt(size_t index, short) {
  if (attempts_[index].connecting) {
    const int error_number = net::connect_error(attempts_[index].fd);
    if (error_number != 0) return drop_attempt(index, reason_of(error_number));
    attempts_[index].connecting = false;
  }
  int error_number = 0;
  Step step = exchange(attempts_[index].fd, &attempts_[index].handshake, &error_number);
  Attempt& attempt = attempts_[index];
  Peer& peer = peers_[attempt.peer];
  if (attempt.handshake.state() == Handshake::State::kChallenged) {
    // Only one proof is under way per lane, so that both ends mean the same connection.
    if (attempt.lane == kControlLane && peer.chosen >= 0) {
      return drop_attempt(index, "answered later");
    }
    if (attempt.lane == kControlLane) {
      peer.chosen = static_cast<int>(attempt.candidate);
      std::fill(std::begin(peer.retry_ns), std::end(peer.retry_ns), 0);
    }
    attempt.handshake.prove();
    step = exchange(attempt.fd, &attempt.handshake, &error_number);
  }
  if (step == Step::kGoesOn) return;
  Candidate& candidate = peer.candidates[attempt.candidate];
  if (step == Step::kProven) {
    if (attempt.lane == kControlLane) {
      peer.route = "rank " + text_of(attempt.peer) + " at " + describe(candidate.offer) + " (" +
                   candidate.why;
      for (size_t i = 0; i < attempt.candidate; ++i) {
        const Candidate& before = peer.candidates[i];
        peer.route += "; not " + describe(before.offer) + ": " +
                      (before.failure.empty() ? "no answer yet" : before.failure);
      }
      peer.route += ")";
    }
    settle(attempt.peer, attempt.lane, attempt.fd);
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
                                     " version " + text_of(kProtocolVersion));
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
    settle(visitor->handshake.peer(), visitor->handshake.lane(), visitor->fd);
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
    wire::Nonce nonce;
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

void Meeting::settle(uint32_t rank, uint32_t lane, int fd) {
  int& slot = peers_[rank].fds[lane];
  if (slot >= 0) {
    // The peer has given that connection up: it never has two of a lane under way.
    close(slot);
  } else {
    --open_slots_;
  }
  slot = fd;
}

weir_result_t Meeting::refused(uint32_t rank) const {
  std::string text = "tcp: rank " + text_of(rank) + " cannot be joined:";
  for (const Candidate& candidate : peers_[rank].candidates) {
    text += " " + describe(candidate.offer) + " " + candidate.failure + ";";
  }
  text += " do all ranks run the same version with the same id?";
  return report_.fail(WEIR_ERROR_REFUSED, text);
}

weir_result_t Meeting::time_out() const {
  std::string ranks;
  std::string details;
  uint32_t count = 0;
  for (uint32_t rank = 0; rank < identity_.rank_count; ++rank) {
    const Peer& peer = peers_[rank];
    if (rank == identity_.rank ||
        std::all_of(std::begin(peer.fds), std::end(peer.fds), [](int fd) { return fd >= 0; })) {
      continue;
    }
    if (++count > 16) continue;
    ranks += (count > 1 ? ", " : "") + text_of(rank);
    for (const Candidate& candidate : peer.candidates) {
      details += "; " + describe(candidate.offer) + " of rank " + text_of(rank) + ": " +
                 (candidate.failure.empty() ? "no answer" : candidate.failure);
    }
  }
  if (count > 16) ranks += " and " + text_of(count - 16) + " more";
  std::string text = std::string("tcp: timed out: ") + (count == 1 ? "rank " : "ranks ") + ranks +
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
  return report_.fail(WEIR_ERROR_TIMEOUT, text);
}

int Meeting::take_connection(uint32_t peer, uint32_t lane) {
  const int fd = peers_[peer].fds[lane];
  peers_[peer].fds[lane] = -1;
  return fd;
}

}  // namespace weir::plugins::tcp
