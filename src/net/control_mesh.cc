// SPDX-License-Identifier: Apache-2.0
#include "net/control_mesh.h"

#include <errno.h>
#include <linux/sockios.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

#include "net/ip_socket.h"

namespace weir::net {
namespace {

using mesh::MeshLink;

// How much later the next address of a peer is tried while the one before does not answer.
constexpr uint64_t kStaggerNs = 50'000'000;
// Between attempts at the same address, growing with their number.
constexpr uint64_t kRetryNsMin = 2'000'000;
constexpr uint64_t kRetryNsMax = 100'000'000;
constexpr uint64_t kNoDescriptorNs = 5'000'000;
constexpr int kAcceptCountMax = 64;
constexpr uint64_t kBacklogMax = 4096;
// How soon one who may be told to stop hears of it.
constexpr uint64_t kCancelNs = 20'000'000;
// In one look at a peer, that may go on sending.
constexpr int kReadCountMax = 8192;

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

bool is_temporary(int error_number) {
  return error_number == EAGAIN || error_number == EWOULDBLOCK || error_number == ENOBUFS ||
         error_number == ENOMEM;
}

}  // namespace

ControlMesh::ControlMesh(const MeshConfig& config)
    : config_(config), owner_(getpid()), peers_(config.rank_count) {
  identity_.key = mesh::mesh_key(config.secret, config.secret_bytes, config.purpose);
  identity_.comm_id = config.comm_id;
  identity_.rank = config.rank;
  identity_.rank_count = config.rank_count;
  config_.secret = nullptr;  // the caller's, and not needed any more
}

ControlMesh::~ControlMesh() {
  stop_listening();
  const bool ends = owner_ == getpid();
  for (Peer& peer : peers_) {
    if (peer.fd < 0) continue;
    // A forked child has copies of the connections, which are its parent's to end.
    if (ends) {
      shutdown(peer.fd, SHUT_WR);
      // A connection that is closed with something unread takes back what it has sent.
      unsigned char bytes[4096];
      for (int i = 0; i < kReadCountMax; ++i) {
        if (recv(peer.fd, bytes, sizeof bytes, MSG_DONTWAIT) <= 0) break;
      }
    }
    close(peer.fd);
  }
  explicit_bzero(identity_.key.data(), identity_.key.size());
}

ControlMesh::Outcome ControlMesh::fail(Outcome outcome, std::string text) {
  text_ = std::move(text);
  return outcome;
}

void ControlMesh::stop_listening() {
  for (const Listener& listener : listeners_) close(listener.fd);
  for (const Connection& connection : connections_) close(connection.fd);
  listeners_.clear();
  connections_.clear();
}

ControlMesh::Outcome ControlMesh::listen(const InterfaceFilter& filter) {
  std::vector<Interface> interfaces;
  std::string reason;
  if (!list_interfaces(filter, &interfaces, &reason)) return fail(Outcome::kSystem, reason);
  own_.rank = config_.rank;
  own_.host = this_host();
  const auto backlog =
      static_cast<int>(std::min<uint64_t>(uint64_t{config_.rank_count} + 64, kBacklogMax));
  for (const Interface& one : interfaces) {
    // Room is kept for one loopback address, which comes last.
    if (!one.is_loopback && own_.offers.size() + 1 >= mesh::kOffersMax) continue;
    if (own_.offers.size() == mesh::kOffersMax) break;
    mesh::Offer offer{one.address,     0,
                      one.speed_mbits, one.prefix_bits,
                      one.is_loopback, filter.asks_for(one.name)};
    const int fd = listen_at(one.address, &offer.port, backlog);
    if (fd < 0) {
      // Addresses come and go; IPv6 may be switched off in the kernel.
      reason += (reason.empty() ? "" : "; ") + one.name + " " + to_string(one.address) + ": " +
                reason_of(errno);
      continue;
    }
    listeners_.push_back({fd, one});
    own_.offers.push_back(offer);
  }
  if (!own_.offers.empty()) return Outcome::kOk;
  const std::string allowed =
      filter.text().empty() ? "" : " that the setting '" + filter.text() + "' allows";
  return fail(Outcome::kUnsupported, "no network interface" + allowed +
                                         " is up and has an address" +
                                         (reason.empty() ? "" : " (" + reason + ")"));
}

size_t ControlMesh::address(unsigned char* out) const { return mesh::encode(own_, out); }

ControlMesh::Outcome ControlMesh::join(const unsigned char* const* addresses,
                                       const size_t* address_bytes, const mesh::Bytes& card,
                                       uint64_t deadline_ns) {
  card_ = card;
  notice_.reserve(mesh::kNoticeBytesMax);
  std::vector<mesh::Address> decoded(config_.rank_count);
  Outcome outcome = Outcome::kOk;
  for (uint32_t rank = 0; rank < config_.rank_count && outcome == Outcome::kOk; ++rank) {
    if (!mesh::decode(addresses[rank], address_bytes[rank], &decoded[rank]) ||
        decoded[rank].rank != rank) {
      outcome = fail(Outcome::kBadAddress, "the address given for rank " + text_of(rank) +
                                               " is not that of a rank " + text_of(rank) +
                                               " of this version");
    }
  }
  if (outcome == Outcome::kOk) outcome = find_candidates(decoded);
  if (outcome == Outcome::kOk) outcome = form(deadline_ns);
  stop_listening();
  return outcome;
}

ControlMesh::Outcome ControlMesh::find_candidates(const std::vector<mesh::Address>& addresses) {
  const auto is_here = [&](const mesh::Address& address) {
    return own_.host.known() && address.host == own_.host;
  };
  const bool all_here = std::all_of(addresses.begin(), addresses.end(), is_here);
  for (uint32_t rank = 0; rank < config_.rank_count; ++rank) {
    peers_[rank].shares_host = is_here(addresses[rank]);
  }
  for (uint32_t rank = 0; rank < config_.rank; ++rank) {
    std::vector<Candidate> same_net, others, loopback;
    for (const mesh::Offer& offer : addresses[rank].offers) {
      Candidate candidate;
      candidate.offer = offer;
      if (offer.is_loopback) {
        if (!is_here(addresses[rank]) || !(all_here || offer.is_asked_for)) continue;
        candidate.why = all_here ? "loopback: all ranks share a host" : "loopback: asked for";
        loopback.push_back(std::move(candidate));
        continue;
      }
      for (const Listener& own : listeners_) {
        if (!own.interface.is_loopback && !candidate.source.valid() &&
            same_subnet(own.interface.address, offer.address, own.interface.prefix_bits)) {
          candidate.source = own.interface.address;
          candidate.why = "over " + own.interface.name + ": same subnet";
        }
      }
      const bool near = candidate.source.valid();
      if (!near) candidate.why = "by routing";
      (near ? same_net : others).push_back(std::move(candidate));
    }
    const auto faster = [](const Candidate& a, const Candidate& b) {
      return a.offer.speed_mbits > b.offer.speed_mbits;
    };
    std::stable_sort(same_net.begin(), same_net.end(), faster);
    std::stable_sort(others.begin(), others.end(), faster);
    std::vector<Candidate>& all = peers_[rank].candidates;
    for (auto* list : {&loopback, &same_net, &others}) {
      all.insert(all.end(), std::make_move_iterator(list->begin()),
                 std::make_move_iterator(list->end()));
    }
    if (all.empty()) {
      return fail(Outcome::kUnsupported,
                  "rank " + text_of(rank) + " is on another host than rank " +
                      text_of(config_.rank) +
                      " and offers only its loopback interface; is its network up, and does "
                      "WEIR_IFNAME allow it?");
    }
  }
  return Outcome::kOk;
}

ControlMesh::Outcome ControlMesh::form(uint64_t deadline_ns) {
  open_count_ = config_.rank_count - 1;
  const uint64_t start = now_ns();
  for (Peer& peer : peers_) {
    for (size_t i = 0; i < peer.candidates.size(); ++i) {
      peer.candidates[i].retry_ns = start + i * kStaggerNs;
    }
  }
  while (open_count_ > 0) {
    const uint64_t now = now_ns();
    const bool cancelled = config_.cancelled != nullptr && *config_.cancelled;
    if (now >= deadline_ns || cancelled) return time_out();
    const Outcome started = start_attempts(now);
    if (started != Outcome::kOk) return started;
    wait_for_events(now, deadline_ns);
    const bool was_accepting = accepting_;
    accepting_ = true;
    const size_t count = connections_.size();
    for (size_t i = 0; i < count; ++i) {
      if (entries_[listeners_.size() + i].revents != 0) serve(&connections_[i], deadline_ns);
    }
    const uint64_t later = now_ns();
    for (Connection& connection : connections_) {
      if (connection.fd < 0 || later < connection.expiry_ns) continue;
      end_connection(&connection, ETIMEDOUT);
    }
    std::erase_if(connections_, [](const Connection& connection) { return connection.fd < 0; });
    for (size_t i = 0; i < listeners_.size(); ++i) {
      if (!was_accepting || entries_[i].revents != 0) accept_all(listeners_[i].fd);
    }
  }
  return Outcome::kOk;
}

void ControlMesh::wait_for_events(uint64_t now, uint64_t deadline_ns) {
  entries_.clear();
  for (const Listener& listener : listeners_) {
    entries_.push_back({accepting_ ? listener.fd : -1, POLLIN, 0});
  }
  for (const Connection& connection : connections_) {
    const int events = connection.connecting              ? POLLOUT
                       : connection.link->out_bytes() > 0 ? POLLIN | POLLOUT
                                                          : POLLIN;
    entries_.push_back({connection.fd, static_cast<short>(events), 0});
  }
  const uint64_t until = next_event_ns(now, deadline_ns);
  const uint64_t left = until > now ? until - now : 0;
  const timespec patience = {static_cast<time_t>(left / 1'000'000'000),
                             static_cast<long>(left % 1'000'000'000)};
  if (ppoll(entries_.data(), entries_.size(), &patience, nullptr) < 0) {
    for (pollfd& entry : entries_) entry.revents = 0;
  }
}

uint64_t ControlMesh::next_event_ns(uint64_t now, uint64_t deadline_ns) const {
  uint64_t next = deadline_ns;
  if (config_.cancelled != nullptr) next = std::min(next, now + kCancelNs);
  for (const Connection& connection : connections_) next = std::min(next, connection.expiry_ns);
  if (!accepting_) next = std::min(next, now + kNoDescriptorNs);
  for (const Peer& peer : peers_) {
    if (peer.fd >= 0 || peer.proving >= 0) continue;
    for (const Candidate& candidate : peer.candidates) {
      if (!candidate.under_way) next = std::min(next, candidate.retry_ns);
    }
  }
  return next;
}

ControlMesh::Outcome ControlMesh::start_attempts(uint64_t now) {
  for (uint32_t rank = 0; rank < config_.rank; ++rank) {
    Peer& peer = peers_[rank];
    if (peer.fd >= 0 || peer.proving >= 0) continue;
    bool all_tried = true;
    bool refused = false;
    for (size_t i = 0; i < peer.candidates.size(); ++i) {
      Candidate& candidate = peer.candidates[i];
      if (!candidate.under_way && !candidate.refused && candidate.retry_ns <= now) {
        start_attempt(rank, i, now);
      }
      all_tried = all_tried && candidate.attempt_count > 0 && !candidate.under_way;
      refused = refused || candidate.refused;
    }
    if (!refused || !all_tried) continue;
    std::string text = "rank " + text_of(rank) + " cannot be joined:";
    for (const Candidate& candidate : peer.candidates) {
      text += " " + to_string(candidate.offer.address, candidate.offer.port) + " " +
              candidate.failure + ";";
    }
    return fail(Outcome::kRefused, text + " do all ranks run the same version with the same id?");
  }
  return Outcome::kOk;
}

bool ControlMesh::start_attempt(uint32_t rank, size_t index, uint64_t now) {
  Candidate& candidate = peers_[rank].candidates[index];
  candidate.retry_ns =
      now + std::min(kRetryNsMax, kRetryNsMin << std::min(candidate.attempt_count, 6u));
  ++candidate.attempt_count;
  mesh::Nonce nonce;
  if (!fill_random(nonce.data(), nonce.size())) {
    candidate.failure = "getrandom: " + reason_of(errno);
    return false;
  }
  const int fd = begin_connect(candidate.offer.address, candidate.offer.port, candidate.source);
  if (fd < 0) {
    candidate.failure = reason_of(errno);
    return false;
  }
  candidate.under_way = true;
  connections_.push_back({fd, true, true, rank, index, IpAddress(), UINT64_MAX,
                          std::make_unique<MeshLink>(identity_, nonce, &card_, rank)});
  return true;
}

void ControlMesh::accept_all(int listener) {
  for (int i = 0; i < kAcceptCountMax; ++i) {
    IpAddress from;
    const int fd = accept_from(listener, &from);
    if (fd < 0) {
      accepting_ = accepting_ && (errno == EAGAIN || errno == EWOULDBLOCK);
      return;
    }
    mesh::Nonce nonce;
    if (!fill_random(nonce.data(), nonce.size())) {
      close(fd);
      return;
    }
    const auto unproven = [](const Connection& connection) {
      return !connection.is_guest && !connection.link->proven();
    };
    const auto count = std::count_if(connections_.begin(), connections_.end(), unproven);
    if (static_cast<size_t>(count) >= config_.unproven_count) {
      const auto oldest = std::find_if(connections_.begin(), connections_.end(), unproven);
      end_connection(&*oldest, ETIMEDOUT);
      connections_.erase(oldest);
    }
    connections_.push_back({fd, false, false, 0, 0, from, now_ns() + config_.unproven_ns,
                            std::make_unique<MeshLink>(identity_, nonce, &card_)});
  }
}

bool ControlMesh::exchange(int fd, MeshLink* link, int* error_number) {
  for (;;) {
    while (link->out_bytes() > 0) {
      const ssize_t sent = send(fd, link->out(), link->out_bytes(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0) {
        if (errno == EINTR) continue;
        if (is_temporary(errno)) break;
        *error_number = errno;
        return false;
      }
      link->sent(static_cast<size_t>(sent));
    }
    if (link->wanted() == 0 || link->state() == MeshLink::State::kJoined) return true;
    unsigned char bytes[4096];
    const ssize_t got = recv(fd, bytes, std::min(link->wanted(), sizeof bytes), MSG_DONTWAIT);
    if (got < 0) {
      if (errno == EINTR) continue;
      if (is_temporary(errno)) return true;
      *error_number = errno;
      return false;
    }
    if (got == 0) {
      *error_number = ECONNRESET;
      return false;
    }
    link->feed(bytes, static_cast<size_t>(got));
  }
}

void ControlMesh::serve(Connection* connection, uint64_t deadline_ns) {
  MeshLink& link = *connection->link;
  int error_number = 0;
  if (connection->connecting) {
    error_number = connect_error(connection->fd);
    if (error_number != 0) return end_connection(connection, error_number);
    connection->connecting = false;
  }
  bool good = exchange(connection->fd, &link, &error_number);
  if (good && link.state() == MeshLink::State::kChallenged) {
    Peer& peer = peers_[connection->peer];
    // Only one proof is under way per peer, so that both ends mean the same connection.
    if (peer.proving >= 0 || peer.fd >= 0) return end_connection(connection, EALREADY);
    peer.proving = static_cast<int>(connection->candidate);
    link.prove();
    good = exchange(connection->fd, &link, &error_number);
  }
  if (!good) return end_connection(connection, error_number);
  switch (link.state()) {
    case MeshLink::State::kJoined:
      if (link.out_bytes() == 0) settle(connection);
      return;
    case MeshLink::State::kProven:
      connection->expiry_ns = deadline_ns;
      return;
    case MeshLink::State::kBusy:
      return;
    default:
      return end_connection(connection, 0);
  }
}

// `error_number`: of the system, or 0 when the link's state tells why.
void ControlMesh::end_connection(Connection* connection, int error_number) {
  const MeshLink& link = *connection->link;
  close(connection->fd);
  connection->fd = -1;
  if (!connection->is_guest) {
    if (link.proven()) return;  // an honest rank, which comes again
    switch (link.state()) {
      case MeshLink::State::kRefused:
        ++turned_away_.proof;
        break;
      case MeshLink::State::kOtherVersion:
        ++turned_away_.version;
        break;
      case MeshLink::State::kMalformed:
        ++turned_away_.malformed;
        break;
      default:
        ++turned_away_.silent;
    }
    turned_away_.last = connection->from;
    return;
  }
  Peer& peer = peers_[connection->peer];
  Candidate& candidate = peer.candidates[connection->candidate];
  candidate.under_way = false;
  if (error_number == EALREADY) {
    candidate.failure = "answered later";
    return;
  }
  if (peer.proving == static_cast<int>(connection->candidate)) peer.proving = -1;
  switch (link.state()) {
    case MeshLink::State::kRefused:
      candidate.refused = true;
      candidate.failure = "does not accept the secret, communicator or rank count of rank " +
                          text_of(config_.rank) + ", or is another rank";
      break;
    case MeshLink::State::kOtherVersion:
      candidate.refused = true;
      candidate.failure = "speaks version " + text_of(link.other_version()) +
                          " of the protocol, rank " + text_of(config_.rank) + " version " +
                          text_of(mesh::kProtocolVersion);
      break;
    case MeshLink::State::kMalformed:
      candidate.failure = "does not speak the protocol of this transport";
      break;
    default:
      candidate.failure = reason_of(error_number);
  }
  // The next one need not be waited for.
  for (Candidate& other : peer.candidates) {
    if (other.attempt_count == 0) {
      other.retry_ns = 0;
      break;
    }
  }
}

void ControlMesh::settle(Connection* connection) {
  const uint32_t rank = connection->is_guest ? connection->peer : connection->link->peer();
  Peer& peer = peers_[rank];
  if (peer.fd >= 0) {
    // The peer has given that connection up: it never has two under way.
    close(peer.fd);
  } else {
    --open_count_;
  }
  if (connection->is_guest) {
    const Candidate& candidate = peer.candidates[connection->candidate];
    peer.candidates[connection->candidate].under_way = false;
    peer.route = "rank " + text_of(rank) + " at " +
                 to_string(candidate.offer.address, candidate.offer.port) + " (" + candidate.why +
                 ")";
  }
  peer.proving = -1;
  peer.fd = connection->fd;
  peer.link = std::move(connection->link);
  connection->fd = -1;
}

ControlMesh::Outcome ControlMesh::time_out() {
  std::string ranks;
  std::string details;
  uint32_t count = 0;
  for (uint32_t rank = 0; rank < config_.rank_count; ++rank) {
    const Peer& peer = peers_[rank];
    if (rank == config_.rank || peer.fd >= 0) continue;
    if (++count > 16) continue;
    ranks += (count > 1 ? ", " : "") + text_of(rank);
    for (const Candidate& candidate : peer.candidates) {
      details += "; " + to_string(candidate.offer.address, candidate.offer.port) + " of rank " +
                 text_of(rank) + ": " +
                 (candidate.failure.empty() ? "no answer" : candidate.failure);
    }
  }
  if (count > 16) ranks += " and " + text_of(count - 16) + " more";
  std::string text = std::string("timed out: ") + (count == 1 ? "rank " : "ranks ") + ranks +
                     " of " + text_of(config_.rank_count) + (count == 1 ? " is" : " are") +
                     " not connected to rank " + text_of(config_.rank) + details;
  const uint32_t turned_away =
      turned_away_.proof + turned_away_.version + turned_away_.malformed + turned_away_.silent;
  if (turned_away > 0) {
    text += "; connections turned away meanwhile: " + text_of(turned_away_.proof) +
            " without the secret, " + text_of(turned_away_.version) + " of another version, " +
            text_of(turned_away_.malformed) + " of another protocol, " +
            text_of(turned_away_.silent) + " silent (last: " + to_string(turned_away_.last) + ")";
  }
  return fail(Outcome::kTimeout, text);
}

ControlMesh::Life ControlMesh::look(uint32_t rank) {
  Peer& peer = peers_[rank];
  if (peer.fd < 0 || peer.life != Life::kHere) return peer.life;
  for (int i = 0; i < kReadCountMax; ++i) {
    unsigned char bytes[mesh::kNoticeFrameBytesMax];
    const size_t wanted = std::min(peer.link->wanted(), sizeof bytes);
    const ssize_t got = recv(peer.fd, bytes, wanted, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && is_temporary(errno)) return Life::kHere;
    if (got <= 0) {
      peer.life = Life::kLost;
      return peer.life;
    }
    const MeshLink::State state = peer.link->feed(bytes, static_cast<size_t>(got));
    if (state == MeshLink::State::kJoined) continue;
    peer.life = state == MeshLink::State::kLeft ? Life::kLeft : Life::kLost;
    return peer.life;
  }
  return Life::kHere;
}

bool ControlMesh::push(Peer* peer) {
  MeshLink& link = *peer->link;
  while (link.out_bytes() > 0 && !peer->deaf) {
    const ssize_t sent = send(peer->fd, link.out(), link.out_bytes(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && is_temporary(errno)) return false;
    // Why is told by what can be read: the end, or a goodbye before it.
    peer->deaf = sent < 0;
    if (sent > 0) link.sent(static_cast<size_t>(sent));
  }
  return !peer->deaf;
}

bool ControlMesh::send_notice(Peer* peer) const {
  if (peer->fd < 0 || peer->life != Life::kHere || peer->deaf) return true;
  if (!push(peer)) return peer->deaf;
  if (peer->sent_version == notice_version_) return true;
  peer->link->say_notice(notice_.data(), notice_.size());
  peer->sent_version = notice_version_;
  return push(peer) || peer->deaf;
}

void ControlMesh::send_notices() {
  notice_waits_ = false;
  for (Peer& peer : peers_) notice_waits_ = !send_notice(&peer) || notice_waits_;
}

void ControlMesh::show(const unsigned char* notice, size_t bytes) {
  notice_.assign(notice, notice + std::min(bytes, mesh::kNoticeBytesMax));
  ++notice_version_;
  send_notices();
}

const mesh::Bytes& ControlMesh::read_notice(uint32_t rank, bool* arrived) {
  Peer& peer = peers_[rank];
  (void)look(rank);
  if (notice_waits_) send_notices();
  *arrived = true;
  if (peer.fd >= 0 && peer.life == Life::kHere && !peer.deaf &&
      peer.arrived_version != notice_version_) {
    int waiting = 0;
    const bool acknowledged = peer.sent_version == notice_version_ && peer.link->out_bytes() == 0 &&
                              !(ioctl(peer.fd, SIOCOUTQ, &waiting) == 0 && waiting > 0);
    if (acknowledged) peer.arrived_version = notice_version_;
    *arrived = acknowledged;
  }
  return peer.link->notice();
}

void ControlMesh::leave(uint32_t rank, const mesh::Bytes& farewell) {
  Peer& peer = peers_[rank];
  if (peer.fd < 0 || owner_ != getpid()) return;
  (void)send_notice(&peer);
  peer.link->say_goodbye(farewell.data(), farewell.size());
  // It waits for nobody: a peer that has read nothing for long may miss it.
  (void)push(&peer);
}

}  // namespace weir::net
