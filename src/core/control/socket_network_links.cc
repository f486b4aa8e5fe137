// SPDX-License-Identifier: Apache-2.0
// The network's connections: how they are made, served and ended. All but on_events and on_time is
// called with the lock held.
#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/clock.h"
#include "core/control/overlay.h"
#include "core/control/socket_network.h"
#include "net/ip_socket.h"
#include "net/unix_socket.h"

namespace weir::control {
namespace {

// The delay before the next address of a rank is tried while the previous one does not answer.
constexpr uint64_t kStaggerNs = 50'000'000;
// The same where a socket of this host has taken the connection: its owner, which may serve many
// ranks, answers when its turn comes, and more connections would only delay that.
constexpr uint64_t kLocalStaggerNs = 1'000'000'000;
// Between rounds over all addresses, growing with their number.
constexpr uint64_t kRetryNsMin = 2'000'000;
constexpr uint64_t kRetryNsMax = 100'000'000;
// How long a rank whose link has ended may take to answer, while no rank says that it has ended.
constexpr uint64_t kVerifyNs = 1'500'000'000;
// A link to a rank that is no neighbor is closed after so long without use.
constexpr uint64_t kIdleNs = 1'000'000'000;
constexpr uint64_t kLookNs = 20'000'000;
// Ranks at most this far around the ring are watched by their processes, too: a forked child may
// hold a dead rank's connections open.
constexpr Rank kWatchedDistance = 2;

uint64_t retry_after_ns(uint32_t round_count) {
  return std::min(kRetryNsMax, kRetryNsMin << std::min(round_count, 6u));
}

// Whether the other end of a Unix socket runs as the same user; false also if that is not known.
bool same_user(int fd, pid_t* pid) {
  uid_t user = 0;
  return net::peer_process(fd, pid, &user) && user == geteuid();
}

std::string reason_of(int error_number) {
  char buffer[128];
  return strerror_r(error_number, buffer, sizeof buffer);
}

// "": this process can open another descriptor.
std::string lack_of_descriptors() {
  const int fd = eventfd(0, EFD_CLOEXEC);
  if (fd < 0) return errno == EMFILE || errno == ENFILE ? reason_of(errno) : "";
  close(fd);
  return "";
}

}  // namespace

void SocketNetwork::schedule(uint64_t time_ns) {
  if (time_ns < next_time_ns.load(std::memory_order_relaxed)) {
    next_time_ns.store(time_ns, std::memory_order_release);
  }
}

void SocketNetwork::on_events(uint32_t token, uint32_t events) {
  const std::lock_guard guard(lock_);
  if ((token & kAcceptorToken) != 0) {
    std::vector<Acceptor::Arrival> arrivals;
    acceptor_->serve(token & ~kAcceptorToken, &arrivals);
    return take_in(std::move(arrivals));
  }
  if ((token & kProcessToken) != 0) {
    const Rank rank = token & ~kProcessToken;
    if (rank >= config_.rank_count || peers_[rank].process < 0) return;
    // Data that it sent before counts.
    if (const int index = peers_[rank].link; index >= 0) serve(index, EPOLLIN);
    if (peers_[rank].process >= 0) {
      reactor_->remove(peers_[rank].process);
      close(std::exchange(peers_[rank].process, -1));
    }
    return lost(rank);
  }
  const size_t index = token & 0xffffu;
  if (index >= connections_.size() || !connections_[index].used ||
      (connections_[index].generation & 0x3fffu) != token >> 16) {
    return;
  }
  serve(static_cast<int>(index), events);
}

void SocketNetwork::on_time(uint64_t now) {
  const std::lock_guard guard(lock_);
  next_time_ns.store(UINT64_MAX, std::memory_order_release);
  std::vector<Acceptor::Arrival> arrivals;
  if (now >= acceptor_->next_ns()) acceptor_->serve(&arrivals);
  take_in(std::move(arrivals));
  // A copy: attempts may end, or begin others.
  std::vector<Target> targets;
  for (const auto& [target, dial] : dials_) targets.push_back(target);
  for (const Target& target : targets) {
    const auto& [peer, subject] = target;
    const Dial* dial = dial_of(peer, subject);
    if (dial == nullptr) continue;
    if (now >= dial->give_up_ns && subject == kLinkSubject) {
      end_dial(peer);
      lost(peer);
      continue;
    }
    if (now >= dial->give_up_ns) {
      // A rank that is linked with this one does not refuse it; another host with the same address
      // may.
      const bool is_refused = !dial->refusal.empty();
      const std::string failure = is_refused              ? dial->refusal
                                  : dial->failure.empty() ? "no answer"
                                                          : dial->failure;
      // Other ranks of this process may have taken the last one.
      const std::string lack = lack_of_descriptors();
      give_up(target, !lack.empty() ? Status(Code::kSystem, fmt::format("{} ({})", lack, failure))
                      : is_refused  ? Status(Code::kRefused, "timed out: " + failure)
                                    : Status(Code::kTimeout, "timed out: " + failure));
      continue;
    }
    if (now >= dial->next_ns && dial->proving < 0) dial_next(target, now);
    // A refusal by a rank that is being verified ends the dialing.
    dial = dial_of(peer, subject);
    if (dial != nullptr) {
      schedule(std::min(dial->proving >= 0 ? UINT64_MAX : dial->next_ns, dial->give_up_ns));
    }
  }
  for (size_t i = 0; i < connections_.size(); ++i) {
    if (!connections_[i].used) continue;
    Connection& one = connections_[i];
    if (!one.link->is_proven()) continue;
    const Peer& peer = peers_[one.peer];
    if (!peer.is_neighbor && joined_ && !one.closing) {
      const bool fetching = std::any_of(fetches_.begin(), fetches_.end(),
                                        [&](const Fetch& f) { return f.peer == one.peer; });
      if (now >= one.used_ns + kIdleNs && !fetching && peer.wants.empty() &&
          one.link->queued_bytes() == 0) {
        one.closing = true;
        one.link->queue({Frame::Kind::kBye});
        push(static_cast<int>(i));
      } else {
        schedule(std::max(one.used_ns + kIdleNs, now + kLookNs));
      }
    }
    // Nothing is checked while nothing was sent.
    if (one.unacknowledged_ns != 0) {
      if (one.link->is_acknowledged()) {
        one.unacknowledged_ns = 0;
      } else {
        schedule(now + kLookNs);
      }
    }
  }
}

// ---- Connections --------------------------------------------------------------------------------

int SocketNetwork::make_connection() {
  if (free_.empty()) {
    if (connections_.size() == kConnectionsMax) return -1;
    free_.push_back(static_cast<int>(connections_.size()));
    connections_.emplace_back();
  }
  const int index = free_.back();
  free_.pop_back();
  Connection& one = connections_[static_cast<size_t>(index)];
  const uint32_t generation = one.generation + 1;
  one = Connection();
  one.generation = generation;
  one.used = true;
  return index;
}

// Lets epoll wait for the link's events.
void SocketNetwork::watch(int index) {
  Connection& one = connections_[static_cast<size_t>(index)];
  if (!one.used) return;
  const uint32_t events = one.connecting ? uint32_t{EPOLLOUT} : one.link->events();
  if (one.link->is_proven() && one.unacknowledged_ns == 0 && !one.link->is_acknowledged()) {
    one.unacknowledged_ns = now_ns();
    const bool earlier = next_time_ns.load() > one.unacknowledged_ns + kLookNs;
    schedule(one.unacknowledged_ns + kLookNs);
    if (earlier) reactor_->wake();
  }
  if (events == one.events) return;
  const uint32_t token = static_cast<uint32_t>(index) | (one.generation & 0x3fffu) << 16;
  const bool known = one.events != 0;
  one.events = events;
  const bool good = known ? reactor_->change(one.link->fd(), token, events)
                          : reactor_->add(one.link->fd(), token, events);
  if (!good && !known) one.events = 0;
}

void SocketNetwork::close_connection(int index) {
  Connection& one = connections_[static_cast<size_t>(index)];
  if (!one.used) return;
  if (one.events != 0) reactor_->remove(one.link->fd());
  one.link.reset();
  one.used = false;
  one.dirty.clear();
  one.dirty_ranks.clear();
  free_.push_back(index);
}

// ---- Accepting ----------------------------------------------------------------------------------

void SocketNetwork::take_in(std::vector<Acceptor::Arrival> arrivals) {
  schedule(acceptor_->next_ns());
  for (Acceptor::Arrival& arrival : arrivals) take_in(std::move(arrival));
}

void SocketNetwork::take_in(Acceptor::Arrival arrival) {
  net::Handshake& handshake = arrival.link->handshake();
  const Rank rank = handshake.peer();
  const bool is_link = handshake.subject() == kLinkSubject;
  const Dial* const dial = dial_of(rank, handshake.subject());
  // Of two that connect to each other at once, the higher rank's connection is taken.
  const bool crossing = dial != nullptr && dial->proving >= 0 && rank < config_.rank;
  // The lower rank's connection may still be under way when the higher one's is established.
  const bool is_late = made_.count({rank, handshake.subject()}) != 0;
  const bool may_come =
      is_link ? !has_link(rank)
              : !is_late && !arrival.link->is_local() && arrived_.size() < kArrivedMax;
  if (!may_come || crossing || life(rank) != Life::kHere) return;
  handshake.welcome();
  int error_number = 0;
  (void)arrival.link->advance(&error_number);
  // A rank that is not welcomed at once comes again.
  const int index = arrival.link->is_proven() ? make_connection() : -1;
  if (index < 0) return;
  Connection& one = connections_[static_cast<size_t>(index)];
  one.peer = rank;
  one.from = arrival.from;
  one.link = std::move(arrival.link);
  proven(index);
  if (one.used) serve(index, EPOLLIN);
}

// ---- Dialing ------------------------------------------------------------------------------------

// The most promising ones first.
void SocketNetwork::find_candidates(Rank peer, std::vector<Candidate>* candidates) const {
  const NetworkAddress& to = addresses_[peer];
  const bool here = own_.host.known() && to.host == own_.host;
  if (here) candidates->push_back({true, {}, 0, {}, "over a Unix socket"});
  std::vector<Candidate> near;
  std::vector<Candidate> others;
  std::vector<uint32_t> near_speed;
  std::vector<Offer> offers = to.offers;
  std::stable_sort(offers.begin(), offers.end(),
                   [](const Offer& a, const Offer& b) { return a.speed_mbits > b.speed_mbits; });
  for (const Offer& offer : offers) {
    Candidate one;
    one.address = offer.address;
    one.port = offer.port;
    if (offer.is_loopback) {
      if (!here) continue;
      one.why = "loopback";
      others.push_back(one);
      continue;
    }
    for (const net::Interface& own : interfaces_) {
      if (!own.is_loopback && !one.source.valid() &&
          net::same_subnet(own.address, offer.address, own.prefix_bits)) {
        one.source = own.address;
        one.why = "over " + own.name + ": same subnet";
      }
    }
    const bool is_near = one.source.valid();
    if (!is_near) one.why = "by routing";
    (is_near ? near : others).push_back(one);
  }
  candidates->insert(candidates->end(), near.begin(), near.end());
  candidates->insert(candidates->end(), others.begin(), others.end());
}

void SocketNetwork::dial(Rank peer, bool verifies) {
  Dial dial;
  find_candidates(peer, &dial.candidates);
  const uint64_t now = now_ns();
  dial.next_ns = now;
  dial.verifies = verifies;
  if (verifies) dial.give_up_ns = now + kVerifyNs;
  if (dial.candidates.empty()) {
    dial.failure =
        "it is on another host and offers no address that this rank can reach; is its network up, "
        "and does WEIR_IFNAME allow it?";
    dial.next_ns = UINT64_MAX;
    dial.refusal = dial.failure;
    dial.round_count = 1;
  }
  dials_[{peer, kLinkSubject}] = std::move(dial);
  schedule(now);
}

// Null: nothing is being tried.
const SocketNetwork::Dial* SocketNetwork::dial_of(Rank peer, const net::Subject& subject) const {
  const auto it = dials_.find({peer, subject});
  return it == dials_.end() ? nullptr : &it->second;
}

SocketNetwork::Dial* SocketNetwork::dial_of(Rank peer, const net::Subject& subject) {
  const auto it = dials_.find({peer, subject});
  return it == dials_.end() ? nullptr : &it->second;
}

void SocketNetwork::end_dial(Rank peer, const net::Subject& subject) {
  dials_.erase({peer, subject});
}

void SocketNetwork::end_attempts(const Target& target, int but) {
  for (size_t i = 0; i < connections_.size(); ++i) {
    const Connection& other = connections_[i];
    if (static_cast<int>(i) != but && other.used && other.is_client && other.peer == target.first &&
        other.subject == target.second && !other.link->is_proven()) {
      close_connection(static_cast<int>(i));
    }
  }
}

void SocketNetwork::set_life(Rank rank, Life life, uint8_t flags) {
  lives_[rank].store(static_cast<uint8_t>(life) | flags, std::memory_order_release);
  std::vector<Target> ended;
  for (auto it = dials_.lower_bound({rank, kLinkSubject});
       it != dials_.end() && it->first.first == rank; ++it) {
    if (it->first.second != kLinkSubject) ended.push_back(it->first);
  }
  for (const Target& target : ended) {
    give_up(target,
            Status(Code::kPeerLost,
                   fmt::format("rank {} {}", rank, life == Life::kLeft ? "has left" : "has died")));
  }
}

void SocketNetwork::dial_next(const Target& target, uint64_t now) {
  const Rank peer = target.first;
  Dial& dial = *dial_of(peer, target.second);
  const size_t index = dial.next;
  const Candidate& candidate = dial.candidates[index];
  if (++dial.next == dial.candidates.size()) {
    dial.next = 0;
    ++dial.round_count;
    dial.next_ns = now + retry_after_ns(dial.round_count);
  } else {
    dial.next_ns = now + kStaggerNs;
  }
  // One attempt at a time for each address.
  for (const Connection& one : connections_) {
    if (one.used && one.is_client && one.peer == peer && one.subject == target.second &&
        one.candidate == index && !one.link->is_proven()) {
      return;
    }
  }
  net::Handshake::Nonce nonce;
  int fd = -1;
  if (net::fill_random(nonce.data(), nonce.size())) {
    fd = candidate.is_local ? net::connect_locally(socket_name(addresses_[peer].nonce))
                            : net::begin_connect(candidate.address, candidate.port,
                                                 candidate.source, candidate.device.c_str());
  }
  const int made = fd < 0 ? -1 : make_connection();
  if (made < 0) {
    const int error_number = errno;
    if (fd >= 0) close(fd);
    dial.failure = reason_of(error_number);
    const bool is_out_of_descriptors = error_number == EMFILE || error_number == ENFILE;
    if (target.second != kLinkSubject && is_out_of_descriptors) {
      return give_up(target, Status(Code::kSystem, reason_of(error_number)));
    }
    out_of_descriptors_ = is_out_of_descriptors;
    // On this host, a socket at which no process listens shows that the rank has ended.
    if (dial.verifies && error_number == ECONNREFUSED) {
      end_dial(peer);
      return lost(peer);
    }
    if (dial.next != 0) dial.next_ns = now;
    return;
  }
  out_of_descriptors_ = false;
  Connection& one = connections_[static_cast<size_t>(made)];
  net::Stream stream(fd);
  pid_t pid = 0;
  const bool good = candidate.is_local
                        ? same_user(fd, &pid)
                        : tls_ == nullptr || stream.secure(*tls_, net::Stream::Role::kClient);
  one.is_client = true;
  one.peer = peer;
  one.subject = target.second;
  one.candidate = index;
  one.connecting = !candidate.is_local;
  one.link = std::make_unique<Link>(std::move(stream), candidate.is_local,
                                    net::Handshake(identity_, nonce, peer, target.second));
  if (!good) return attempt_failed(made, candidate.is_local ? EPERM : ENOMEM);
  if (candidate.is_local || candidate.address.is_loopback()) dial.next_ns = now + kLocalStaggerNs;
  watch(made);
  if (candidate.is_local) serve(made, EPOLLOUT);
}

// `error_number`: of the system, or 0 where the handshake tells why.
void SocketNetwork::attempt_failed(int index, int error_number) {
  const Connection& one = connections_[static_cast<size_t>(index)];
  const Rank peer = one.peer;
  const Target target{peer, one.subject};
  Dial* const dial = dial_of(peer, one.subject);
  std::string failure;
  bool refused = false;
  const net::Handshake& handshake = one.link->handshake();
  const net::Stream& stream = one.link->stream();
  // Inside TLS a wrong secret fails before any data is exchanged.
  const bool no_tls = stream.failure() == net::Stream::Failure::kRefused;
  switch (no_tls ? net::Handshake::State::kRefused : handshake.state()) {
    case net::Handshake::State::kRefused:
      refused = true;
      failure = fmt::format(
          "does not accept the secret, communicator or rank count of rank {}, or it is another "
          "rank{}",
          config_.rank, no_tls ? " (" + stream.reason() + ")" : "");
      break;
    case net::Handshake::State::kOtherVersion:
      refused = true;
      failure =
          fmt::format("speaks version {} of the protocol, rank {} version {}",
                      handshake.other_version(), config_.rank, net::Handshake::kProtocolVersion);
      break;
    case net::Handshake::State::kMalformed:
      failure = "does not speak Weir's protocol";
      break;
    default:
      failure = !stream.reason().empty() ? stream.reason() : reason_of(error_number);
  }
  std::string where;
  // A port may belong to another network by now: its answer says nothing about a rank of this host,
  // which has a Unix socket with a name of its own.
  bool is_sure = true;
  if (dial != nullptr && one.candidate < dial->candidates.size()) {
    const Candidate& candidate = dial->candidates[one.candidate];
    if (!candidate.is_local) where = net::to_string(candidate.address, candidate.port) + " ";
    is_sure = candidate.is_local || !dial->candidates.front().is_local;
  }
  const bool gone = is_sure && (error_number == ECONNREFUSED || refused ||
                                handshake.state() == net::Handshake::State::kMalformed);
  close_connection(index);
  if (dial == nullptr) return;
  dial->failure = where + failure;
  if (dial->round_count <= 1 && dial->candidates.size() > 1) {
    dial->passed_over += (dial->passed_over.empty() ? "" : "; ") + dial->failure;
  }
  if (refused && is_sure) dial->refusal = dial->failure;
  if (dial->proving == index) dial->proving = -1;
  if (dial->verifies && gone) {
    end_dial(peer);
    return lost(peer);
  }
  // The next attempt may begin at once.
  const uint64_t now = now_ns();
  dial->next_ns =
      dial->next != 0 ? now : std::min(dial->next_ns, now + retry_after_ns(dial->round_count));
  schedule(dial->next_ns);
}

// ---- Serving ------------------------------------------------------------------------------------

void SocketNetwork::serve(int index, uint32_t events) {
  // Looked up by index: the functions called below may move the list.
  const auto at = [this, index]() -> Connection& {
    return connections_[static_cast<size_t>(index)];
  };
  if (at().connecting) {
    if ((events & (EPOLLOUT | EPOLLERR | EPOLLHUP)) == 0) return;
    if (const int error_number = net::connect_error(at().link->fd()); error_number != 0) {
      return attempt_failed(index, error_number);
    }
    at().connecting = false;
  }
  if (!at().link->is_proven()) {
    using State = net::Handshake::State;
    int error_number = 0;
    Link::Step step = at().link->advance(&error_number);
    net::Handshake& handshake = at().link->handshake();
    if (step == Link::Step::kGoesOn && handshake.state() == State::kChallenged) {
      const Rank rank = at().peer;
      const bool is_link = at().subject == kLinkSubject;
      Dial* const dial = dial_of(rank, at().subject);
      if (dial != nullptr && dial->verifies) {
        // It lives, and only the path to it was lost: for this rank it is lost for good.
        end_dial(rank);
        close_connection(index);
        set_life(rank, Life::kLost, kCutOff);
        change_count_.fetch_add(1, std::memory_order_release);
        changed_.notify_all();
        return;
      }
      // One proof at a time, so that both ends mean the same connection.
      if (dial == nullptr || dial->proving >= 0 || (is_link && has_link(rank))) {
        return close_connection(index);
      }
      dial->proving = index;
      handshake.prove();
      step = at().link->advance(&error_number);
    }
    if (step == Link::Step::kEnded) return attempt_failed(index, error_number);
    if (!at().link->is_proven()) return watch(index);
    proven(index);
    if (!at().used) return;
  }
  bool good = at().link->receive([&](const Frame& frame) { return take_frame(index, frame); });
  while (good && at().used && at().link->has_unread()) {
    good = at().link->receive([&](const Frame& frame) { return take_frame(index, frame); });
  }
  if (!at().used) return;
  if (!good) return link_ended(index, at().closing);
  push_all();
  if (!at().used) return;
  if (at().heard_bye && at().link->queued_bytes() == 0) {
    return link_ended(index, true);
  }
  watch(index);
  // Who waits for a link, a life or a descriptor is woken where that changes.
  if (emptying_ > 0) changed_.notify_all();
}

void SocketNetwork::proven(int index) {
  Connection& one = connections_[static_cast<size_t>(index)];
  const Rank rank = one.is_client ? one.peer : one.link->handshake().peer();
  one.peer = rank;
  one.subject = one.link->handshake().subject();
  if (one.subject != kLinkSubject) return hand_over(index);
  Peer& peer = peers_[rank];
  if (has_link(rank)) return close_connection(index);
  if (const Dial* dial = dial_of(rank); one.is_client && dial != nullptr) {
    const Candidate& candidate = dial->candidates[one.candidate];
    one.route = candidate.is_local
                    ? fmt::format("rank {} over a Unix socket", rank)
                    : fmt::format("rank {} at {} ({})", rank,
                                  net::to_string(candidate.address, candidate.port), candidate.why);
  } else {
    one.route = one.link->is_local() ? fmt::format("rank {} over a Unix socket", rank)
                                     : fmt::format("rank {}, which connected from {}", rank,
                                                   net::to_string(one.from));
  }
  peer.link = index;
  // Other attempts for it are no longer needed.
  end_dial(rank);
  end_attempts({rank, kLinkSubject}, index);
  one.used_ns = now_ns();
  if (!peer.is_neighbor && !addresses_.empty()) schedule(one.used_ns + kIdleNs);
  watch_process(index);
  one.dirty.assign(config_.rank_count, false);
  for (Rank p = 0; p < config_.rank_count; ++p) {
    if (p == rank || (peers_[p].version == 0 && peers_[p].told == Life::kHere)) continue;
    one.dirty[p] = true;
    one.dirty_ranks.push_back(p);
  }
  for (const Message& message : peer.outbox) {
    one.link->queue({Frame::Kind::kMessage, message.channel, 0, 0, message.bytes});
  }
  peer.outbox.clear();
  for (Fetch& fetch : fetches_) {
    if (fetch.peer != rank || fetch.fd >= 0) continue;
    const std::string_view key(reinterpret_cast<const char*>(fetch.key.data()), fetch.key.size());
    one.link->queue({Frame::Kind::kWantDescriptor, 0, 0, 0, key});
    fetch.sent = true;
  }
  push(index);
  // A rank that joins is woken by the last of its links alone.
  const bool joins = !joined_ && !addresses_.empty() && fetches_.empty() && emptying_ == 0;
  const bool lacks_links =
      joins && std::any_of(neighbors_.begin(), neighbors_.end(),
                           [this](Rank neighbor) { return !has_link(neighbor); });
  if (!lacks_links) changed_.notify_all();
}

void SocketNetwork::watch_process(int index) {
  const Connection& one = connections_[static_cast<size_t>(index)];
  const Rank rank = one.peer;
  const Rank count = config_.rank_count;
  const Rank distance =
      std::min((rank + count - config_.rank) % count, (config_.rank + count - rank) % count);
  pid_t pid = 0;
  if (!one.link->is_local() || distance > kWatchedDistance || peers_[rank].process >= 0 ||
      !same_user(one.link->fd(), &pid) || pid <= 0 || pid == getpid()) {
    return;
  }
#ifdef SYS_pidfd_open
  const int fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (fd < 0) return;
  (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
  if (!reactor_->add(fd, kProcessToken | rank, EPOLLIN)) {
    close(fd);
    return;
  }
  peers_[rank].process = fd;
#endif
}

// `in_order`: both ends have agreed on it.
void SocketNetwork::link_ended(int index, bool in_order) {
  const Rank rank = connections_[static_cast<size_t>(index)].peer;
  close_connection(index);
  Peer& peer = peers_[rank];
  if (peer.link == index) peer.link = -1;
  peer.wants.clear();
  changed_.notify_all();
  if (peer.told != Life::kHere || life(rank) != Life::kHere || left_) return;
  if (!in_order) {
    // It connected and ended before this rank knew any address.
    if (addresses_.empty()) return lost(rank);
    dial(rank, true);
    // If none of its addresses can be reached from here, it has time to connect by itself.
    const Dial* const again = dial_of(rank);
    if (again != nullptr && !again->candidates.empty()) dial_next({rank, kLinkSubject}, now_ns());
    return;
  }
  const bool wanted = !peer.outbox.empty() ||
                      std::any_of(fetches_.begin(), fetches_.end(),
                                  [&](const Fetch& one) { return one.peer == rank && one.fd < 0; });
  if (wanted) dial(rank, false);
}

// The ranks that are here stay connected with each other, however many others have left or died:
// each is linked with the next one around the ring.
void SocketNetwork::mend_ring() {
  if (!joined_ || left_) return;
  const Rank count = config_.rank_count;
  for (const bool up : {true, false}) {
    Rank next = config_.rank;
    do {
      next = (next + (up ? 1 : count - 1)) % count;
    } while (next != config_.rank && peers_[next].told != Life::kHere);
    Peer& peer = peers_[next];
    if (next == config_.rank || peer.is_neighbor) continue;
    peer.is_neighbor = true;
    neighbors_.push_back(next);
    if (next < config_.rank && !has_link(next) && dial_of(next) == nullptr) dial(next, false);
  }
}

bool SocketNetwork::take_frame(int index, const Frame& frame) {
  Connection& one = connections_[static_cast<size_t>(index)];
  Peer& peer = peers_[one.peer];
  switch (frame.kind) {
    case Frame::Kind::kState:
      if (frame.rank >= config_.rank_count || frame.detail > static_cast<uint8_t>(Life::kLost)) {
        return false;
      }
      merge(index, frame.rank, frame.version, frame.payload, static_cast<Life>(frame.detail));
      return true;
    case Frame::Kind::kMessage:
      if (peer.inbox.size() >= kInboxMax) return false;
      one.used_ns = now_ns();
      peer.inbox.push_back({frame.detail, std::string(frame.payload)});
      change_count_.fetch_add(1, std::memory_order_release);
      return true;
    case Frame::Kind::kBye:
      one.closing = true;
      one.heard_bye = true;
      return true;
    case Frame::Kind::kWantDescriptor: {
      if (!one.link->is_local()) return false;
      Key key;
      std::memcpy(key.data(), frame.payload.data(), key.size());
      one.used_ns = now_ns();
      if (offers_.count(key) != 0) {
        say_descriptor(index, key);
      } else if (peer.wants.size() < kWantsMax) {
        peer.wants.push_back(key);
      } else {
        return false;
      }
      return true;
    }
    case Frame::Kind::kDescriptor: {
      const bool was_sent = frame.detail != Frame::kWithoutDescriptor;
      const int fd = was_sent ? one.link->take_descriptor() : -1;
      one.used_ns = now_ns();
      for (Fetch& fetch : fetches_) {
        if (fetch.peer != one.peer || fetch.fd >= 0 ||
            std::memcmp(fetch.key.data(), frame.payload.data(), fetch.key.size()) != 0) {
          continue;
        }
        fetch.fd = fd;
        fetch.dropped = fd < 0;
        fetch.lacking = was_sent ? config_.rank : fetch.peer;
        changed_.notify_all();
        return true;
      }
      if (fd >= 0) close(fd);  // no thread waits for it any more
      return true;
    }
    case Frame::Kind::kStart:
      break;  // the ranks know each other already
  }
  return false;
}

void SocketNetwork::say_descriptor(int index, const Key& key) {
  Connection& one = connections_[static_cast<size_t>(index)];
  one.used_ns = now_ns();
  const std::string_view bytes(reinterpret_cast<const char*>(key.data()), key.size());
  one.link->queue_descriptor(bytes, offers_.at(key));
}

}  // namespace weir::control
