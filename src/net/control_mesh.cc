// SPDX-License-Identifier: Apache-2.0
#include "net/control_mesh.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "net/ip_socket.h"
#include "net/listening.h"
#include "net/missing_ranks.h"

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
// Between two questions whether to stop.
constexpr uint64_t kAskNs = 20'000'000;
// Read at the end of a connection to a peer that may go on sending.
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

TurnedAway::Why reason_to_turn_away(Stream::Failure failure, MeshLink::State state) {
  using Why = TurnedAway::Why;
  Why why = Why::kSilent;
  if (TurnedAway::why_of(failure, &why)) return why;
  switch (state) {
    case MeshLink::State::kRefused:
      return Why::kNoSecret;
    case MeshLink::State::kOtherVersion:
      return Why::kOtherVersion;
    case MeshLink::State::kMalformed:
      return Why::kMalformed;
    default:
      return Why::kSilent;
  }
}

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
  if (config.tls != TlsMode::kOff) {
    char id[17];
    (void)snprintf(id, sizeof id, "%016llx", static_cast<unsigned long long>(config.comm_id));
    tls_ = TlsContext::make(config.secret, config.secret_bytes, "mesh " + config.purpose + " " + id,
                            &tls_reason_);
  }
  config_.secret = nullptr;  // the caller's, and not needed any more
}

ControlMesh::~ControlMesh() {
  stop_listening();
  const bool ends = owner_ == getpid();
  for (Peer& peer : peers_) {
    // A forked child has copies of the connections, which are its parent's to end.
    if (!peer.stream.is_open() || !ends) continue;
    peer.stream.shut();
    // A connection that is closed with something unread takes back what it has sent.
    unsigned char bytes[4096];
    for (int i = 0; i < kReadCountMax; ++i) {
      if (recv(peer.stream.fd(), bytes, sizeof bytes, MSG_DONTWAIT) <= 0) break;
    }
  }
  explicit_bzero(identity_.key.data(), identity_.key.size());
}

ControlMesh::Outcome ControlMesh::fail(Outcome outcome, std::string text) {
  text_ = std::move(text);
  return outcome;
}

void ControlMesh::stop_listening() {
  for (const Listener& listener : listeners_) close(listener.fd);
  listeners_.clear();
  connections_.clear();
}

ControlMesh::Outcome ControlMesh::listen(const InterfaceFilter& filter) {
  std::vector<Interface> interfaces;
  std::string reason;
  if (config_.tls != TlsMode::kOff && tls_ == nullptr) return fail(Outcome::kSystem, tls_reason_);
  if (!list_interfaces(filter, &interfaces, &reason)) return fail(Outcome::kSystem, reason);
  own_.rank = config_.rank;
  own_.host = this_host();
  own_.tls = config_.tls;
  const std::vector<Listening> all =
      listen_at_all(interfaces, filter, mesh::kOffersMax, config_.rank_count, &reason);
  if (all.empty()) return fail(Outcome::kUnsupported, reason);
  for (const Listening& listening : all) {
    const Interface& one = interfaces[listening.interface];
    listeners_.push_back({listening.fd, one});
    own_.offers.push_back({one.address, listening.port, one.speed_mbits, one.prefix_bits,
                           one.is_loopback, filter.asks_for(one.name)});
  }
  return Outcome::kOk;
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
    } else if (decoded[rank].tls != config_.tls) {
      outcome =
          fail(Outcome::kRefused,
               "rank " + text_of(rank) + " runs with WEIR_TLS=" + name_of(decoded[rank].tls) +
                   ", rank " + text_of(config_.rank) + " with WEIR_TLS=" + name_of(config_.tls) +
                   "; it must be the same on all ranks");
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
    if (now >= deadline_ns || is_stopped(now)) return time_out();
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
      if (!connection.stream.is_open() || later < connection.expiry_ns) continue;
      end_connection(&connection, ETIMEDOUT);
    }
    std::erase_if(connections_,
                  [](const Connection& connection) { return !connection.stream.is_open(); });
    for (size_t i = 0; i < listeners_.size(); ++i) {
      if (!was_accepting || entries_[i].revents != 0) accept_all(listeners_[i].fd, deadline_ns);
    }
  }
  return Outcome::kOk;
}

bool ControlMesh::is_stopped(uint64_t now) {
  if (!config_.stop || now < next_ask_ns_) return false;
  next_ask_ns_ = now + kAskNs;
  return config_.stop();
}

void ControlMesh::wait_for_events(uint64_t now, uint64_t deadline_ns) {
  entries_.clear();
  const bool accepts = accepting_ && who_gives_way(now).room_ns <= now;
  for (const Listener& listener : listeners_) {
    entries_.push_back({accepts ? listener.fd : -1, POLLIN, 0});
  }
  for (const Connection& connection : connections_) {
    const short events = connection.connecting
                             ? static_cast<short>(POLLOUT)
                             : connection.stream.events(connection.link->out_bytes() > 0);
    entries_.push_back({connection.stream.fd(), events, 0});
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
  if (config_.stop) next = std::min(next, next_ask_ns_);
  for (const Connection& connection : connections_) next = std::min(next, connection.expiry_ns);
  if (!accepting_) next = std::min(next, now + kNoDescriptorNs);
  if (const uint64_t room_ns = who_gives_way(now).room_ns; room_ns > now) {
    next = std::min(next, room_ns);
  }
  for (const Peer& peer : peers_) {
    if (peer.stream.is_open() || peer.proving >= 0) continue;
    for (const Candidate& candidate : peer.candidates) {
      if (!candidate.under_way) next = std::min(next, candidate.retry_ns);
    }
  }
  return next;
}

ControlMesh::Outcome ControlMesh::start_attempts(uint64_t now) {
  for (uint32_t rank = 0; rank < config_.rank; ++rank) {
    Peer& peer = peers_[rank];
    if (peer.stream.is_open() || peer.proving >= 0) continue;
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
  Stream stream(fd);
  if (!secure(&stream, Stream::Role::kClient)) {
    candidate.failure = "no memory for TLS";
    return false;
  }
  candidate.under_way = true;
  connections_.push_back({std::move(stream), true, true, rank, index, IpAddress(), now, UINT64_MAX,
                          std::make_unique<MeshLink>(identity_, nonce, &card_, rank)});
  return true;
}

// Without room nobody is accepted: who has come waits in the kernel's queue.
GivesWay ControlMesh::who_gives_way(uint64_t now_ns) const {
  const auto is_unproven = [&](size_t i) {
    return !connections_[i].is_guest && !connections_[i].link->proven();
  };
  size_t count = 0;
  for (size_t i = 0; i < connections_.size(); ++i) count += is_unproven(i) ? 1u : 0u;
  if (count < config_.unproven_count) return {GivesWay::kNobody, now_ns};
  return net::who_gives_way(
      connections_.size(), now_ns, is_unproven,
      [&](size_t i) { return connections_[i].link->is_silent(); },
      [&](size_t i) { return connections_[i].accepted_ns; });
}

// The oldest that has said nothing goes. False: there is none.
bool ControlMesh::drop_silent() {
  const auto silent =
      std::find_if(connections_.begin(), connections_.end(), [](const Connection& connection) {
        return !connection.is_guest && connection.link->is_silent();
      });
  if (silent == connections_.end()) return false;
  end_connection(&*silent, ETIMEDOUT);
  connections_.erase(silent);
  return true;
}

void ControlMesh::accept_all(int listener, uint64_t deadline_ns) {
  uint64_t now = now_ns();
  for (int i = 0; i < kAcceptCountMax && who_gives_way(now).room_ns <= now; ++i) {
    IpAddress from;
    const int fd = accept_from(listener, &from);
    if (fd < 0) {
      if ((errno == EMFILE || errno == ENFILE) && drop_silent()) continue;
      accepting_ = accepting_ && (errno == EAGAIN || errno == EWOULDBLOCK);
      return;
    }
    Stream stream(fd);
    mesh::Nonce nonce;
    if (!fill_random(nonce.data(), nonce.size()) || !secure(&stream, Stream::Role::kServer)) return;
    now = now_ns();
    if (const size_t index = who_gives_way(now).index; index != GivesWay::kNobody) {
      const auto at = connections_.begin() + static_cast<std::ptrdiff_t>(index);
      end_connection(&*at, ETIMEDOUT);
      connections_.erase(at);
    }
    connections_.push_back({std::move(stream), false, false, 0, 0, from, now,
                            now + config_.unproven_ns,
                            std::make_unique<MeshLink>(identity_, nonce, &card_)});
    // Mostly its hello has come already.
    serve(&connections_.back(), deadline_ns);
    if (!connections_.back().stream.is_open()) connections_.pop_back();
  }
}

bool ControlMesh::secure(Stream* stream, Stream::Role role) const {
  return tls_ == nullptr || stream->secure(*tls_, role);
}

bool ControlMesh::exchange(Connection* connection, int* error_number) {
  MeshLink& link = *connection->link;
  for (;;) {
    while (link.out_bytes() > 0) {
      const ssize_t sent = connection->stream.send(link.out(), link.out_bytes());
      if (sent < 0) {
        if (is_temporary(errno)) break;
        *error_number = errno;
        return false;
      }
      link.sent(static_cast<size_t>(sent));
    }
    if (link.wanted() == 0 || link.state() == MeshLink::State::kJoined) return true;
    unsigned char bytes[4096];
    const bool was_ready = connection->stream.is_ready();
    const ssize_t got = connection->stream.recv(bytes, std::min(link.wanted(), sizeof bytes));
    if (got < 0) {
      // What had to wait for TLS's handshake may leave now.
      if (is_temporary(errno) && !was_ready && connection->stream.is_ready()) continue;
      if (is_temporary(errno)) return true;
      *error_number = errno;
      return false;
    }
    if (got == 0) {
      *error_number = ECONNRESET;
      return false;
    }
    link.feed(bytes, static_cast<size_t>(got));
  }
}

void ControlMesh::serve(Connection* connection, uint64_t deadline_ns) {
  MeshLink& link = *connection->link;
  int error_number = 0;
  if (connection->connecting) {
    error_number = connect_error(connection->stream.fd());
    if (error_number != 0) return end_connection(connection, error_number);
    connection->connecting = false;
  }
  bool good = exchange(connection, &error_number);
  if (good && link.state() == MeshLink::State::kChallenged) {
    Peer& peer = peers_[connection->peer];
    // Only one proof is under way per peer, so that both ends mean the same connection.
    if (peer.proving >= 0 || peer.stream.is_open()) return end_connection(connection, EALREADY);
    peer.proving = static_cast<int>(connection->candidate);
    link.prove();
    good = exchange(connection, &error_number);
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
  const Stream::Failure failure = connection->stream.failure();
  const std::string reason = connection->stream.reason();
  connection->stream.close();
  if (!connection->is_guest) {
    if (link.proven()) return;  // an honest rank, which comes again
    turned_away_.add(reason_to_turn_away(failure, link.state()), connection->from);
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
  const bool no_tls = failure == Stream::Failure::kRefused;
  switch (no_tls ? MeshLink::State::kRefused : link.state()) {
    case MeshLink::State::kRefused:
      candidate.refused = true;
      candidate.failure = "does not accept the secret, communicator or rank count of rank " +
                          text_of(config_.rank) + ", or is another rank" +
                          (no_tls ? " (" + reason + ")" : "");
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
      candidate.failure = reason.empty() ? reason_of(error_number) : reason;
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
  if (peer.stream.is_open()) {
    // The peer has given that connection up: it never has two under way.
    peer.stream.close();
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
  peer.stream = std::move(connection->stream);
  peer.link = std::move(connection->link);
}

ControlMesh::Outcome ControlMesh::time_out() {
  MissingRanks missing;
  std::string details;
  for (uint32_t rank = 0; rank < config_.rank_count; ++rank) {
    const Peer& peer = peers_[rank];
    if (rank == config_.rank || peer.stream.is_open() || !missing.add(rank)) continue;
    for (const Candidate& candidate : peer.candidates) {
      details += "; " + to_string(candidate.offer.address, candidate.offer.port) + " of rank " +
                 text_of(rank) + ": " +
                 (candidate.failure.empty() ? "no answer" : candidate.failure);
    }
  }
  return fail(Outcome::kTimeout, missing.text(config_.rank, config_.rank_count) + details +
                                     turned_away_.text(config_.tls != TlsMode::kOff));
}

}  // namespace weir::net
