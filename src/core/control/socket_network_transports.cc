// SPDX-License-Identifier: Apache-2.0
// Connections that the network makes and accepts for transports. They are proven as links are
// (socket_network_links.cc) and then handed over.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/base/clock.h"
#include "core/control/socket_network.h"

namespace weir::control {
namespace {

constexpr uint32_t kSecureBit = 512;

}  // namespace

// Three words: 0 for a link, else 1 + channel, plus 512 if the connection stays secure; then the
// number.
net::Subject SocketNetwork::subject_of(const Purpose& purpose) {
  return {1u + purpose.channel + (purpose.stays_secure ? kSecureBit : 0),
          static_cast<uint32_t>(purpose.number), static_cast<uint32_t>(purpose.number >> 32)};
}

Purpose SocketNetwork::purpose_of(const net::Subject& subject) {
  return {static_cast<uint8_t>((subject[0] & (kSecureBit - 1)) - 1), (subject[0] & kSecureBit) != 0,
          subject[1] | uint64_t{subject[2]} << 32};
}

Status SocketNetwork::listen(int listener) {
  const std::lock_guard guard(lock_);
  if (!acceptor_->add(listener, false)) return system_error("epoll_ctl, for a listener");
  return Status();
}

void SocketNetwork::connect(Rank peer, const Purpose& purpose, std::vector<Path> paths,
                            uint64_t deadline_ns) {
  const std::lock_guard guard(lock_);
  const Target target{peer, subject_of(purpose)};
  const bool is_there =
      dials_.count(target) != 0 ||
      std::any_of(arrived_.begin(), arrived_.end(), [&](const auto& one) {
        return one.second.peer == peer && one.first == target.second && one.second.status.ok();
      });
  if (is_there) return;
  Dial& dial = dials_[target];
  for (const Path& path : paths) {
    dial.candidates.push_back(
        {.address = path.address, .port = path.port, .source = path.source, .device = path.device});
  }
  dial.give_up_ns = deadline_ns;
  if (life(peer) != Life::kHere) {
    return give_up(target, Status(Code::kPeerLost, fmt::format("rank {} has left or died", peer)));
  }
  if (dial.candidates.empty()) {
    return give_up(target,
                   Status(Code::kUnsupported,
                          fmt::format("rank {} offers no address that this rank can reach", peer)));
  }
  const uint64_t now = now_ns();
  dial_next(target, now);
  if (const Dial* begun = dial_of(peer, target.second); begun != nullptr) {
    const bool earlier = next_time_ns.load() > begun->next_ns;
    schedule(std::min(begun->next_ns, begun->give_up_ns));
    if (earlier) reactor_->wake();
  }
}

bool SocketNetwork::connected(uint8_t channel, Connected* connected) {
  if (arrived_count_.load(std::memory_order_acquire) == 0) return false;
  const std::lock_guard guard(lock_);
  const auto it = std::find_if(arrived_.begin(), arrived_.end(), [channel](const auto& one) {
    return one.second.purpose.channel == channel;
  });
  if (it == arrived_.end()) return false;
  *connected = std::move(it->second);
  arrived_.erase(it);
  arrived_count_.store(arrived_.size(), std::memory_order_release);
  return true;
}

// Reports to a transport that its connection has failed.
void SocketNetwork::give_up(const Target& target, const Status& status) {
  end_dial(target.first, target.second);
  end_attempts(target, -1);
  Connected none;
  none.peer = target.first;
  none.purpose = purpose_of(target.second);
  none.status = status;
  arrived_.emplace_back(target.second, std::move(none));
  arrived_count_.store(arrived_.size(), std::memory_order_release);
  changed_.notify_all();
}

// Queues the connection for the transport, which takes it later.
void SocketNetwork::hand_over(int index) {
  Connection& one = connections_[static_cast<size_t>(index)];
  const Target target{one.peer, one.subject};
  Connected made;
  made.peer = one.peer;
  made.purpose = purpose_of(one.subject);
  if (one.is_client) made.path = static_cast<uint32_t>(one.candidate);
  if (one.is_client && one.peer < config_.rank) made_.insert(target);
  if (std::exchange(one.events, 0) != 0) reactor_->remove(one.link->fd());
  made.stream = one.link->take_stream();
  close_connection(index);
  net::Stream& stream = made.stream;
  if (stream.is_secured() && config_.tls == net::TlsMode::kControl && !made.purpose.stays_secure) {
    if (!stream.is_ready() || stream.has_unread()) {
      return give_up(
          target, Status(Code::kRefused, "the peer sent data before the handshake was complete"));
    }
    stream = net::Stream(stream.release());
  }
  if (const Dial* dial = dial_of(target.first, target.second); dial != nullptr) {
    made.passed_over = dial->passed_over;
  }
  end_dial(target.first, target.second);
  end_attempts(target, -1);
  // If a connection comes again before the first one was taken, the peer has lost the first.
  std::erase_if(arrived_, [&](const auto& other) {
    return other.second.peer == target.first && other.first == target.second &&
           other.second.status.ok();
  });
  arrived_.emplace_back(target.second, std::move(made));
  arrived_count_.store(arrived_.size(), std::memory_order_release);
  changed_.notify_all();
}

}  // namespace weir::control
