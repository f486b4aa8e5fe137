// SPDX-License-Identifier: Apache-2.0
// The network's connections: how they are made, served and ended. All but on_events and on_time is
// called with the lock held.
#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/control/overlay.h"
#include "core/control/socket_network.h"
#include "net/ip_socket.h"
#include "net/unix_socket.h"

namespace weir::control {
namespace {

// A link over which the peer's host has not answered for so long gets another path.
constexpr uint32_t kStalledMs = 500;
// Where links last less, not all of the time is spent on new ones.
constexpr uint64_t kLastsNs = 1'000'000'000;
constexpr uint64_t kPauseNs = 50'000'000;
// Messages that a rank receives before it says so, and their bytes.
constexpr uint32_t kUntoldMax = 32;
constexpr size_t kUntoldBytesMax = 65536;
// A link to a rank that is no neighbor is closed after so long without use.
constexpr uint64_t kIdleNs = 1'000'000'000;
constexpr uint64_t kLookNs = 20'000'000;
// Ranks at most this far around the ring are watched by their processes, too: a forked child may
// hold a dead rank's connections open.
constexpr Rank kWatchedDistance = 2;

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
  go_on_dialing(now);
  for (size_t i = 0; i < connections_.size(); ++i) {
    if (!connections_[i].used) continue;
    Connection& one = connections_[i];
    if (!one.link->is_proven()) continue;
    const Peer& peer = peers_[one.peer];
    if (!peer.is_neighbor && joined_ && !one.closing) {
      const bool fetching = std::any_of(fetches_.begin(), fetches_.end(),
                                        [&](const Fetch& f) { return f.peer == one.peer; });
      if (now >= one.used_ns + kIdleNs && !fetching && peer.wants.empty() && one.confirmed &&
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
        if (peer.link == static_cast<int>(i)) end_reroute(one.peer);
      } else {
        if (one.link->is_stalled(kStalledMs)) reroute(static_cast<int>(i), now);
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
  const bool is_link = is_of_link(handshake.subject());
  const Dial* const dial = dial_of(rank, is_link ? kLinkSubject : handshake.subject());
  // Of two that connect to each other at once, the higher rank's connection is taken.
  const bool crossing = dial != nullptr && dial->proving >= 0 && rank < config_.rank;
  // The lower rank's connection may still be under way when the higher one's is established.
  const bool is_late = made_.count({rank, handshake.subject()}) != 0;
  const bool may_come =
      is_link ? may_link(rank, handshake.subject()[1])
              : !is_late && !arrival.link->is_local() && arrived_.size() < kArrivedMax;
  if (life(rank) != Life::kHere) {
    // It need not try again.
    int error_number = 0;
    handshake.refuse();
    (void)arrival.link->advance(&error_number);
    return;
  }
  if (!may_come || crossing) return;
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
      if (dial != nullptr && dial->aim == Aim::kVerify) {
        end_dial(rank);
        close_connection(index);
        return cut_off(rank);
      }
      const bool is_wanted =
          dial != nullptr && (!is_link || !has_link(rank) || dial->aim == Aim::kReroute);
      // One proof at a time, so that both ends mean the same connection.
      if (!is_wanted || dial->proving >= 0) return close_connection(index);
      if (is_link) handshake.set_subject({kLinkSubject[0], peers_[rank].link_count + 1, 0});
      begin_proving(dial, index);
      handshake.prove();
      step = at().link->advance(&error_number);
    }
    if (step == Link::Step::kEnded) return attempt_failed(index, error_number);
    if (!at().link->is_proven()) return watch(index);
    proven(index);
    if (!at().used) return;
  }
  bool is_taken = true;
  const auto take = [&](const Frame& frame) { return is_taken = take_frame(index, frame); };
  bool good = at().link->receive(take);
  while (good && at().used && at().link->has_unread()) good = at().link->receive(take);
  if (!at().used) return;
  if (!good) {
    const bool is_of_peer = is_taken && !at().link->is_malformed();
    const bool in_order = at().closing && (at().heard_bye || at().link->is_acknowledged());
    return link_ended(index, in_order     ? End::kInOrder
                             : is_of_peer ? End::kBroken
                                          : End::kMisbehaved);
  }
  push_all();
  if (!at().used) return;
  if (at().heard_bye && at().link->queued_bytes() == 0) {
    return link_ended(index, End::kInOrder);
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
  if (!is_of_link(one.subject)) return hand_over(index);
  one.number = std::exchange(one.subject, kLinkSubject)[1];
  Peer& peer = peers_[rank];
  if (!may_link(rank, one.number)) return close_connection(index);
  // The peer sends again what has not been taken from it.
  const bool has_old = has_link(rank);
  if (has_old) close_connection(peer.link);
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
  const Dial* const ended = dial_of(rank);
  if (has_old || (ended != nullptr && ended->aim == Aim::kResume)) {
    log_info(fmt::format("control network: rank {} has a new link to {}: {}", config_.rank,
                         one.route, has_old ? "the old one did not answer" : "the old one broke"));
  }
  peer.link = index;
  peer.link_count = one.number;
  // Other attempts for it are no longer needed.
  end_dial(rank);
  end_attempts({rank, kLinkSubject}, index);
  one.made_ns = one.used_ns = now_ns();
  if (!peer.is_neighbor && !addresses_.empty()) schedule(one.used_ns + kIdleNs);
  watch_process(index);
  one.dirty.assign(config_.rank_count, false);
  for (Rank p = 0; p < config_.rank_count; ++p) {
    if (p == rank || (peers_[p].version == 0 && peers_[p].told == Life::kHere)) continue;
    one.dirty[p] = true;
    one.dirty_ranks.push_back(p);
  }
  // No path lies between processes of a host, and nothing has come before.
  if (one.link->is_local() && one.number == 1) {
    confirm(index);
  } else {
    tell_received(index);
  }
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

// Whether a link with this number may be made, or takes the place of the present one. A link that
// this rank accepted, and of which the peer may not know, gives way to another attempt of the peer.
bool SocketNetwork::may_link(Rank rank, uint32_t number) const {
  const Dial* const dial = dial_of(rank);
  if (dial != nullptr && dial->aim == Aim::kVerify) return false;
  if (!has_link(rank)) return true;
  const Connection& now = connections_[static_cast<size_t>(peers_[rank].link)];
  return number > now.number || (number == now.number && !now.confirmed && !now.is_client);
}

void SocketNetwork::queue_message(int index, Message message) {
  const Connection& one = connections_[static_cast<size_t>(index)];
  Peer& peer = peers_[one.peer];
  one.link->queue({Frame::Kind::kMessage, message.channel, 0, 0, message.bytes});
  ++peer.sent_count;
  peer.kept.push_back(std::move(message));
}

void SocketNetwork::tell_received(int index) {
  const Connection& one = connections_[static_cast<size_t>(index)];
  Peer& peer = peers_[one.peer];
  peer.told_count = peer.received_count;
  peer.untold_bytes = 0;
  one.link->queue({Frame::Kind::kReceived, 0, 0, peer.received_count});
}

// The peer has this link, and has received so many messages. False: it lacks some that are gone.
bool SocketNetwork::take_received(int index, uint32_t count) {
  Peer& peer = peers_[connections_[static_cast<size_t>(index)].peer];
  const uint32_t lacking = peer.sent_count - count;
  if (lacking > peer.kept.size()) return false;
  peer.kept.erase(peer.kept.begin(), peer.kept.end() - static_cast<ptrdiff_t>(lacking));
  confirm(index);
  return true;
}

void SocketNetwork::confirm(int index) {
  Connection& one = connections_[static_cast<size_t>(index)];
  if (std::exchange(one.confirmed, true)) return;
  Peer& peer = peers_[one.peer];
  for (const Message& message : peer.kept) {
    one.link->queue({Frame::Kind::kMessage, message.channel, 0, 0, message.bytes});
  }
  for (Message& message : peer.outbox) queue_message(index, std::move(message));
  peer.outbox.clear();
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

void SocketNetwork::watch_process(int index) {
  const Connection& one = connections_[static_cast<size_t>(index)];
  const Rank rank = one.peer;
  const Rank count = config_.rank_count;
  const Rank distance =
      std::min((rank + count - config_.rank) % count, (config_.rank + count - rank) % count);
  pid_t pid = 0;
  if (!one.link->is_local() || distance > kWatchedDistance || peers_[rank].process >= 0 ||
      !net::peer_of_same_user(one.link->fd(), &pid) || pid <= 0 || pid == getpid()) {
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

// In order: both ends have agreed on it.
void SocketNetwork::link_ended(int index, End end) {
  const Connection& one = connections_[static_cast<size_t>(index)];
  const Rank rank = one.peer;
  const bool was_confirmed = one.confirmed;
  const uint64_t now = now_ns();
  const uint64_t pause_ns = now < one.made_ns + kLastsNs ? kPauseNs : 0;
  close_connection(index);
  Peer& peer = peers_[rank];
  if (peer.link == index) peer.link = -1;
  peer.wants.clear();
  changed_.notify_all();
  if (peer.told != Life::kHere || life(rank) != Life::kHere || left_) return;
  if (end == End::kInOrder) {
    const bool wanted = !peer.outbox.empty() ||
                        std::any_of(fetches_.begin(), fetches_.end(), [rank](const Fetch& each) {
                          return each.peer == rank && each.fd < 0;
                        });
    if (wanted) dial(rank, Aim::kConnect);
    return;
  }
  if (!addresses_.empty()) return replace_link(rank, end == End::kMisbehaved, now + pause_ns);
  // It connected and ended before this rank knew any address.
  if (was_confirmed) lost(rank);
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
    if (next < config_.rank && !has_link(next) && dial_of(next) == nullptr)
      dial(next, Aim::kConnect);
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
      ++peer.received_count;
      peer.untold_bytes += frame.payload.size();
      if (peer.received_count - peer.told_count >= kUntoldMax ||
          peer.untold_bytes >= kUntoldBytesMax) {
        tell_received(index);
      }
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
    case Frame::Kind::kReceived:
      one.used_ns = now_ns();
      return take_received(index, frame.version);
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
