// SPDX-License-Identifier: Apache-2.0
// The network's state and its interface; socket_network_dials.cc begins connections,
// socket_network_links.cc accepts and serves them, socket_network_transports.cc hands over those of
// transports.
#include "core/control/socket_network.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "core/base/clock.h"
#include "core/control/overlay.h"
#include "net/ip_socket.h"
#include "net/listening.h"
#include "net/missing_ranks.h"
#include "net/unix_socket.h"

namespace weir::control {
namespace {

// Between two checks whether a wait is still useful.
constexpr uint64_t kAskNs = 20'000'000;
// Time at the end for queued data to leave.
constexpr uint64_t kFarewellNs = 100'000'000;
constexpr int kDrainCountMax = 4096;
constexpr int kBacklog = 1024;
// How long a joining rank waits for free descriptors, which others may give back.
constexpr uint64_t kDescriptorsNs = 2'000'000'000;

std::chrono::nanoseconds pause_until(uint64_t now, uint64_t deadline_ns) {
  const uint64_t left = deadline_ns > now ? deadline_ns - now : 0;
  return std::chrono::nanoseconds(std::min(left, kAskNs));
}

}  // namespace

SocketNetwork::SocketNetwork(const NetworkConfig& config)
    : config_(config), peers_(config.rank_count) {
  identity_.key =
      net::key_for(config.secret.bytes.data(), config.secret.bytes.size(), config.purpose);
  identity_.comm_id = config.comm_id;
  identity_.rank = config.rank;
  identity_.rank_count = config.rank_count;
  lives_ = std::make_unique<std::atomic<uint8_t>[]>(config.rank_count);
}

Result<std::unique_ptr<Network>> Network::open(const NetworkConfig& config) {
  auto made = SocketNetwork::make(config);
  if (!made.ok()) return made.status();
  return std::unique_ptr<Network>(made.take());
}

Result<std::unique_ptr<SocketNetwork>> SocketNetwork::make(const NetworkConfig& config) {
  std::unique_ptr<SocketNetwork> network(new SocketNetwork(config));
  auto registered = Reactor::Registration::make(network.get());
  if (!registered.ok()) return registered.status();
  Status status;
  {
    const std::lock_guard guard(network->lock_);
    network->reactor_ = registered.take();
    status = network->listen_here();
  }
  if (!status.ok()) return status;
  return network;
}

Status SocketNetwork::listen_here() {
  if (!net::fill_random(nonce_.data(), nonce_.size())) return system_error("getrandom");
  own_.rank = config_.rank;
  own_.tls = config_.tls;
  own_.host = net::this_host();
  own_.nonce = nonce_;
  AcceptorConfig config;
  config.identity = identity_;
  config.unproven_ns = config_.unproven_ns;
  config.unproven_count = config_.unproven_count;
  if (config_.tls != net::TlsMode::kOff) config.tls = [this] { return tls_.get(); };
  config.watch = [this](int operation, int fd, uint32_t token, uint32_t events) {
    static_assert(kAcceptorToken == kAcceptorTokenEnd);
    token |= kAcceptorToken;
    if (operation == EPOLL_CTL_ADD) return reactor_->add(fd, token, events);
    if (operation == EPOLL_CTL_MOD) return reactor_->change(fd, token, events);
    reactor_->remove(fd);
    return true;
  };
  auto made = Acceptor::make(config);
  if (!made.ok()) return made.status();
  acceptor_ = made.take();
  const int local = net::listen_locally(socket_name(nonce_), kBacklog);
  if (local < 0 || !acceptor_->add(local, true)) {
    return system_error("an abstract socket for the control network");
  }
  std::string reason;
  if (config_.tls != net::TlsMode::kOff) {
    tls_ =
        net::TlsContext::make(config_.secret.bytes.data(), config_.secret.bytes.size(),
                              fmt::format("{} {:016x}", config_.purpose, config_.comm_id), &reason);
    if (tls_ == nullptr) return Status(Code::kSystem, reason);
  }
  return config_.leaves_host ? listen_for_hosts() : Status();
}

Status SocketNetwork::leave_host() {
  const std::lock_guard guard(lock_);
  return own_.offers.empty() ? listen_for_hosts() : Status();
}

Status SocketNetwork::listen_for_hosts() {
  std::string reason;
  if (!net::list_interfaces(config_.filter, &interfaces_, &reason)) {
    return Status(Code::kSystem, reason);
  }
  const auto all =
      net::listen_at_all(interfaces_, config_.filter, kOffersMax, config_.rank_count, &reason);
  if (all.empty()) return Status(Code::kUnsupported, reason);
  for (const net::Listening& one : all) {
    const net::Interface& interface = interfaces_[one.interface];
    if (!acceptor_->add(one.fd, false)) return system_error("epoll_ctl, for the control network");
    own_.offers.push_back({interface.address, one.port, interface.speed_mbits,
                           interface.prefix_bits, interface.is_loopback,
                           config_.filter.asks_for(interface.name)});
  }
  return Status();
}

SocketNetwork::~SocketNetwork() {
  const bool ends = maker_.is_this();
  if (ends && reactor_ != nullptr) {
    const uint64_t until_ns = now_ns() + kFarewellNs;
    std::unique_lock lock(lock_);
    const auto waits = [this] {
      return std::any_of(connections_.begin(), connections_.end(), [](const Connection& one) {
        return one.used && one.link->is_proven() && one.link->queued_bytes() > 0;
      });
    };
    ++emptying_;
    // Only a rank that leaves in order waits for its last messages to leave.
    while (left_ && waits() && now_ns() < until_ns) {
      changed_.wait_for(lock, pause_until(now_ns(), until_ns));
    }
  }
  // The reactor calls this object until then.
  if (reactor_ != nullptr) reactor_->end();
  for (Connection& one : connections_) {
    if (!one.used) continue;
    if (ends && one.link->is_proven()) {
      one.link->shut();
      // Closing a connection with unread data would discard data that it has sent.
      char bytes[4096];
      for (int i = 0; i < kDrainCountMax; ++i) {
        if (recv(one.link->fd(), bytes, sizeof bytes, MSG_DONTWAIT) <= 0) break;
      }
    }
    one.link.reset();
  }
  for (const Peer& peer : peers_) {
    if (peer.process >= 0) close(peer.process);
  }
  for (const auto& [key, fd] : offers_) close(fd);
  for (const Fetch& fetch : fetches_) {
    if (fetch.fd >= 0) close(fetch.fd);
  }
  net::wipe(identity_.key.data(), identity_.key.size());
}

std::string SocketNetwork::address() const {
  const std::lock_guard guard(lock_);
  return own_.pack();
}

Status SocketNetwork::join(const std::vector<std::string>& addresses, uint64_t deadline_ns,
                           const StillPossible& still_possible) {
  std::unique_lock lock(lock_);
  std::vector<NetworkAddress> unpacked(config_.rank_count);
  for (Rank p = 0; p < config_.rank_count; ++p) {
    WEIR_RETURN_IF_ERROR(unpack(p, addresses[p], &unpacked[p]));
  }
  addresses_ = std::move(unpacked);
  close_unneeded();
  neighbors_ = neighbors(config_.rank, config_.rank_count);
  for (const Rank p : neighbors_) {
    peers_[p].is_neighbor = true;
    if (p < config_.rank && !has_link(p)) dial(p, Aim::kConnect);
  }
  for (Rank p = 0; p < config_.rank_count; ++p) {
    const bool waits = !peers_[p].outbox.empty();
    if (waits && !has_link(p) && dial_of(p) == nullptr) dial(p, Aim::kConnect);
  }
  reactor_->wake();
  uint64_t lacking_since_ns = now_ns();
  for (;;) {
    const uint64_t now = now_ns();
    bool missing = false;
    for (const Rank p : neighbors_) {
      if (has_link(p)) continue;
      if (life(p) != Life::kHere) {
        return Status(Code::kPeerLost,
                      fmt::format("rank {} {} while rank {} was connecting to it", p,
                                  life(p) == Life::kLeft ? "left" : "died", config_.rank));
      }
      missing = true;
    }
    if (!missing) break;
    const bool lacks_descriptors = out_of_descriptors_ || acceptor_->is_out_of_descriptors();
    if (!lacks_descriptors) lacking_since_ns = now;
    if (lacks_descriptors && now >= std::min(deadline_ns, lacking_since_ns + kDescriptorsNs)) {
      return Status(Code::kSystem,
                    fmt::format("rank {} of {} is out of file descriptors (or memory) and cannot "
                                "connect to the other ranks; raise `ulimit -n` (or the memory "
                                "limit)",
                                config_.rank, config_.rank_count));
    }
    if (now >= deadline_ns) return Status(Code::kTimeout, missing_text());
    for (const Rank p : neighbors_) WEIR_RETURN_IF_ERROR(refusal_of(p));
    if (still_possible) {
      lock.unlock();
      Status possible = still_possible();
      lock.lock();
      if (!possible.ok()) return possible;
    }
    changed_.wait_for(lock, pause_until(now, deadline_ns));
  }
  joined_ = true;
  return Status();
}

Status SocketNetwork::set_address(Rank rank, const std::string& address) {
  const std::lock_guard guard(lock_);
  NetworkAddress unpacked;
  WEIR_RETURN_IF_ERROR(unpack(rank, address, &unpacked));
  addresses_[rank] = std::move(unpacked);
  close_unneeded();
  return Status();
}

Status SocketNetwork::unpack(Rank rank, const std::string& address, NetworkAddress* to) const {
  if (!NetworkAddress::unpack(address, to) || to->rank != rank) {
    return Status(Code::kRefused,
                  fmt::format("the control network address that rank {} sent cannot be read; do "
                              "all ranks run the same version of Weir?",
                              rank));
  }
  if (to->tls == config_.tls) return Status();
  return Status(Code::kRefused,
                fmt::format("rank {} runs with WEIR_TLS={}, rank {} with WEIR_TLS={}; it must "
                            "be the same on all ranks",
                            rank, net::name_of(to->tls), config_.rank, net::name_of(config_.tls)));
}

// Among ranks of one host no links come over the network.
void SocketNetwork::close_unneeded() {
  const auto here = [this](const NetworkAddress& one) {
    return own_.host.known() && one.host == own_.host;
  };
  if (std::all_of(addresses_.begin(), addresses_.end(), here)) acceptor_->close_network();
}

std::string SocketNetwork::missing_text() const {
  net::MissingRanks missing;
  std::string details;
  for (const Rank p : neighbors_) {
    if (!is_missing(p) || !missing.add(p)) continue;
    if (const Dial* dial = dial_of(p); dial != nullptr) {
      details +=
          fmt::format("; rank {}: {}", p, dial->failure.empty() ? "no answer" : dial->failure);
    }
  }
  return missing.text(config_.rank, config_.rank_count) + details + acceptor_->turned_away().text();
}

// The error of a rank that has answered at some address but accepts this rank at none.
Status SocketNetwork::refusal_of(Rank rank) const {
  const Dial* dial = dial_of(rank);
  if (dial == nullptr || dial->refusal.empty() || dial->round_count == 0 || has_link(rank)) {
    return Status();
  }
  // Another attempt may be at the right one of its addresses.
  for (const Connection& one : connections_) {
    const bool is_attempt = one.used && one.is_client && one.peer == rank;
    if (is_attempt && one.subject == kLinkSubject && !one.link->is_proven()) return Status();
  }
  return Status(Code::kRefused,
                fmt::format("the control network cannot connect to rank {}: {}; do all ranks run "
                            "the same version of Weir with the same id?",
                            rank, dial->refusal));
}

void SocketNetwork::show(std::string_view notice) {
  const std::lock_guard guard(lock_);
  Peer& own = peers_[config_.rank];
  own.notice.assign(notice.substr(0, kNoticeBytesMax));
  ++own.version;
  mark(config_.rank, -1);
  push_all();
}

bool SocketNetwork::read(Rank rank, uint32_t* version, std::string* notice) const {
  const std::lock_guard guard(lock_);
  const Peer& peer = peers_[rank];
  if (peer.version == *version) return false;
  *version = peer.version;
  *notice = peer.notice;
  return true;
}

void SocketNetwork::collect_unreached(std::vector<Unreached>* ranks) const {
  ranks->clear();
  const std::lock_guard guard(lock_);
  for (const Connection& one : connections_) {
    const bool is_link = one.used && one.link->is_proven() && one.subject == kLinkSubject;
    if (is_link && one.unacknowledged_ns != 0) ranks->push_back({one.peer, one.unacknowledged_ns});
  }
}

void SocketNetwork::leave() {
  const std::lock_guard guard(lock_);
  if (left_) return;
  left_ = true;
  lives_[config_.rank].store(static_cast<uint8_t>(Life::kLeft), std::memory_order_release);
  ++peers_[config_.rank].version;
  mark(config_.rank, -1);
  push_all();
}

Status SocketNetwork::send(Rank peer, uint8_t channel, std::string_view message) {
  if (message.size() > kMessageBytesMax) {
    return invalid_argument(
        fmt::format("a control message of {} bytes to rank {} is longer than the limit of {} bytes",
                    message.size(), peer, kMessageBytesMax));
  }
  const std::lock_guard guard(lock_);
  if (life(peer) != Life::kHere) {
    return Status(Code::kPeerLost,
                  fmt::format("rank {} has {}", peer, life(peer) == Life::kLeft ? "left" : "died"));
  }
  Peer& to = peers_[peer];
  const int index = to.link;
  if (index >= 0) {
    Connection& one = connections_[static_cast<size_t>(index)];
    one.used_ns = now_ns();
    if (one.confirmed && !one.closing) {
      queue_message(index, {channel, std::string(message)});
      push(index);
      return Status();
    }
  }
  to.outbox.push_back({channel, std::string(message)});
  // Before join no rank's address is known.
  if (index < 0 && dial_of(peer) == nullptr && !addresses_.empty()) dial(peer, Aim::kConnect);
  reactor_->wake();
  return Status();
}

bool SocketNetwork::receive(Rank peer, uint8_t channel, std::string* message) {
  const std::lock_guard guard(lock_);
  std::deque<Message>& inbox = peers_[peer].inbox;
  const auto it = std::find_if(inbox.begin(), inbox.end(),
                               [channel](const Message& one) { return one.channel == channel; });
  if (it == inbox.end()) return false;
  *message = std::move(it->bytes);
  inbox.erase(it);
  return true;
}

Status SocketNetwork::flush(Rank peer, uint64_t deadline_ns) {
  std::unique_lock lock(lock_);
  ++emptying_;
  Status status = flush_locked(peer, deadline_ns, &lock);
  --emptying_;
  return status;
}

Status SocketNetwork::flush_locked(Rank peer, uint64_t deadline_ns,
                                   std::unique_lock<std::mutex>* lock) {
  for (;;) {
    const Peer& to = peers_[peer];
    const bool waits =
        !to.outbox.empty() ||
        (to.link >= 0 && connections_[static_cast<size_t>(to.link)].link->queued_bytes() > 0);
    if (!waits || life(peer) == Life::kLost) return Status();
    const uint64_t now = now_ns();
    if (now >= deadline_ns) {
      return Status(
          Code::kTimeout,
          fmt::format("timed out: the control messages to rank {} could not be sent in time",
                      peer));
    }
    changed_.wait_for(*lock, pause_until(now, deadline_ns));
  }
}

bool SocketNetwork::shares_host(Rank rank) const {
  const std::lock_guard guard(lock_);
  return rank == config_.rank ||
         (own_.host.known() && !addresses_.empty() && addresses_[rank].host == own_.host);
}

Status SocketNetwork::offer(const Key& key, int fd) {
  const int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) return system_error("dup of a descriptor for other ranks");
  const std::lock_guard guard(lock_);
  const auto [it, inserted] = offers_.try_emplace(key, copy);
  if (!inserted) {
    close(it->second);
    it->second = copy;
  }
  for (Peer& peer : peers_) {
    if (peer.link < 0 || std::erase(peer.wants, key) == 0) continue;
    say_descriptor(peer.link, key);
    push(peer.link);
  }
  return Status();
}

void SocketNetwork::withdraw(const Key& key) {
  const std::lock_guard guard(lock_);
  const auto it = offers_.find(key);
  if (it == offers_.end()) return;
  close(it->second);
  offers_.erase(it);
}

Result<int> SocketNetwork::fetch(Rank peer, const Key& key, uint64_t deadline_ns,
                                 const StillPossible& still_possible) {
  std::unique_lock lock(lock_);
  if (peer == config_.rank) {
    const auto it = offers_.find(key);
    const int copy = it == offers_.end() ? -1 : fcntl(it->second, F_DUPFD_CLOEXEC, 0);
    if (copy < 0) {
      return Status(Code::kInternal,
                    "this rank does not offer the file descriptor that it requests");
    }
    return copy;
  }
  if (addresses_.empty()) {
    return Status(Code::kInvalidUsage,
                  "a file descriptor was requested before the ranks had joined");
  }
  fetches_.push_back({peer, key});
  const auto it = std::prev(fetches_.end());
  const int link = peers_[peer].link;
  if (link >= 0 && !connections_[static_cast<size_t>(link)].closing) {
    const std::string_view bytes(reinterpret_cast<const char*>(key.data()), key.size());
    it->sent = true;
    connections_[static_cast<size_t>(link)].used_ns = now_ns();
    connections_[static_cast<size_t>(link)].link->queue(
        {Frame::Kind::kWantDescriptor, 0, 0, 0, bytes});
    push(link);
  } else if (link < 0 && dial_of(peer) == nullptr) {
    dial(peer, Aim::kConnect);
    reactor_->wake();
  }
  Status status;
  while (it->fd < 0) {
    const uint64_t now = now_ns();
    const int index = peers_[peer].link;
    if (index >= 0 && !connections_[static_cast<size_t>(index)].link->is_local()) {
      status = Status(
          Code::kUnsupported,
          fmt::format("rank {} is connected over the network, which cannot pass file descriptors: "
                      "ranks that share memory must run as the same user, and in the same network "
                      "namespace",
                      peer));
    } else if (life(peer) != Life::kHere) {
      status = Status(Code::kPeerLost,
                      fmt::format("rank {} {} before it passed a file descriptor to rank {}", peer,
                                  life(peer) == Life::kLeft ? "left" : "died", config_.rank));
    } else if (it->dropped) {
      status =
          Status(Code::kSystem,
                 fmt::format("a file descriptor could not be passed from rank {} to rank {}: the "
                             "process of rank {} is out of file descriptors; raise `ulimit -n`",
                             peer, config_.rank, it->lacking));
    } else if (now >= deadline_ns) {
      status = Status(Code::kTimeout,
                      fmt::format("timed out: rank {} has not passed a file descriptor to rank {}",
                                  peer, config_.rank));
    }
    if (status.ok() && still_possible) {
      lock.unlock();
      status = still_possible();
      lock.lock();
    }
    if (!status.ok()) break;
    changed_.wait_for(lock, pause_until(now, deadline_ns));
  }
  const int fd = it->fd;
  fetches_.erase(it);
  if (fd >= 0) return fd;
  return status;
}

net::Mac SocketNetwork::pair_key(Rank peer, std::string_view purpose) const {
  const std::lock_guard guard(lock_);
  const Rank low = std::min(peer, config_.rank);
  const Rank high = std::max(peer, config_.rank);
  std::string message = fmt::format("weir pair {} {} {} {}:", purpose, config_.comm_id, low, high);
  for (const Rank p : {low, high}) {
    const Mac32& nonce = p == config_.rank ? nonce_ : addresses_[p].nonce;
    message.append(reinterpret_cast<const char*>(nonce.data()), nonce.size());
  }
  return net::hmac_sha256(identity_.key.data(), identity_.key.size(), message.data(),
                          message.size());
}

std::string SocketNetwork::describe(Rank peer) const {
  const std::lock_guard guard(lock_);
  const int index = peers_[peer].link;
  return index < 0 ? std::string() : connections_[static_cast<size_t>(index)].route;
}

net::IpAddress SocketNetwork::own_address(Rank peer) const {
  const std::lock_guard guard(lock_);
  const int index = peers_[peer].link;
  if (index < 0) return net::IpAddress();
  const Link& link = *connections_[static_cast<size_t>(index)].link;
  return link.is_local() ? net::IpAddress() : net::local_address(link.fd());
}

size_t SocketNetwork::link_count() const {
  const std::lock_guard guard(lock_);
  return static_cast<size_t>(
      std::count_if(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.link >= 0; }));
}

size_t SocketNetwork::descriptor_count() const {
  const std::lock_guard guard(lock_);
  size_t count = acceptor_->descriptor_count() + offers_.size() + arrived_.size();
  for (const Connection& one : connections_) count += one.used ? 1 : 0;
  for (const Peer& peer : peers_) count += peer.process >= 0 ? 1 : 0;
  return count;
}

// ---- What changes -------------------------------------------------------------------------------

void SocketNetwork::mark(Rank rank, int but) {
  change_count_.fetch_add(1, std::memory_order_release);
  for (size_t i = 0; i < connections_.size(); ++i) {
    Connection& one = connections_[i];
    if (!one.used || !one.link->is_proven() || one.closing || static_cast<int>(i) == but) continue;
    if (one.dirty.empty()) one.dirty.resize(config_.rank_count);
    if (one.dirty[rank]) continue;
    one.dirty[rank] = true;
    one.dirty_ranks.push_back(rank);
  }
}

void SocketNetwork::merge(int from, Rank rank, uint32_t version, std::string_view notice,
                          Life told) {
  // States of this rank that others report do not count.
  if (rank == config_.rank) return;
  Peer& peer = peers_[rank];
  bool changed = false;
  // Versions may wrap.
  if (static_cast<int32_t>(version - peer.version) > 0) {
    peer.version = version;
    peer.notice.assign(notice);
    changed = true;
  }
  if (told > peer.told) {
    peer.told = told;
    changed = true;
    if (told > life(rank)) {
      set_life(rank, told);
      peer.outbox.clear();
    }
  }
  if (!changed) return;
  mark(rank, from);
  if (peer.told != Life::kHere) mend_ring();
  changed_.notify_all();
}

void SocketNetwork::lost(Rank peer) {
  const Life told = peers_[peer].told;
  if (told != Life::kHere) return;
  merge(-1, peer, peers_[peer].version, {}, Life::kLost);
  push_all();
}

void SocketNetwork::push_all() {
  for (size_t i = 0; i < connections_.size(); ++i) {
    if (connections_[i].used && connections_[i].link->is_proven()) push(static_cast<int>(i));
  }
}

// Writes the latest states that the link lacks, as many as keep the queue bounded.
void SocketNetwork::push(int index) {
  Connection& one = connections_[static_cast<size_t>(index)];
  constexpr size_t kQueuedBytesMax = 65536;
  for (;;) {
    while (!one.dirty_ranks.empty() && one.link->queued_bytes() < kQueuedBytesMax) {
      const Rank rank = one.dirty_ranks.back();
      one.dirty_ranks.pop_back();
      one.dirty[rank] = false;
      const Peer& peer = peers_[rank];
      const Life told = rank == config_.rank ? life(rank) : peer.told;
      one.link->queue(
          {Frame::Kind::kState, static_cast<uint8_t>(told), rank, peer.version, peer.notice});
      frame_count_.fetch_add(1, std::memory_order_relaxed);
    }
    // An end of the connection is found by reading.
    if (!one.link->flush() || one.link->queued_bytes() > 0 || one.dirty_ranks.empty()) break;
  }
  watch(index);
}

}  // namespace weir::control
