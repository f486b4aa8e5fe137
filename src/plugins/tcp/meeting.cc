// SPDX-License-Identifier: Apache-2.0
#include "plugins/tcp/meeting.h"

#include <errno.h>
#include <time.h>

#include <algorithm>
#include <utility>

#include "net/listening.h"
#include "plugins/common/look.h"
#include "plugins/tcp/clock.h"

namespace weir::plugins::tcp {
namespace {

// How much later the next address of a peer is tried while the one before does not answer.
constexpr uint64_t kStaggerNs = 50'000'000;
// Between attempts at the same address, growing with their number.
constexpr uint64_t kRetryNsMin = 2'000'000;
constexpr uint64_t kRetryNsMax = 100'000'000;
// From the first answer of a peer, for those over other interfaces.
constexpr uint64_t kGatherNs = 250'000'000;
// Attempts at a connection after which the way itself is sought again.
constexpr uint32_t kSlotAttemptsMax = 12;
// Of more, most pairs never use most of their lanes.
constexpr uint32_t kEagerRanksMax = 8;

weir_result_t code_of(int error_number) {
  return error_number == ENOMEM || error_number == ENOBUFS ? WEIR_ERROR_NO_MEMORY
                                                           : WEIR_ERROR_SYSTEM;
}

}  // namespace

Meeting::~Meeting() {
  for (Attempt& attempt : attempts_) attempt.stream.close();
  for (Peer& peer : peers_) clear_slots(&peer);
  for (Early& one : early_) one.stream.close();
}

// Connections to some peer may come later.
bool Meeting::listens_on() const {
  for (uint32_t rank = 0; rank < identity_.rank_count; ++rank) {
    if (peers_[rank].rail_count > 1 || (rank > identity_.rank && is_lazy(rank))) return true;
  }
  return false;
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
  own_.tls_mode = identity_.tls_mode;
  if (const char* text = report_.setting("WEIR_TCP_CONNECTIONS"); text != nullptr && *text != 0) {
    if (text[0] < '1' || text[0] > '0' + static_cast<char>(kRailsMax) || text[1] != 0) {
      return report_.fail(WEIR_ERROR_INVALID_ARGUMENT,
                          std::string("tcp: WEIR_TCP_CONNECTIONS is '") + text +
                              "', not a number from 1 to " + text_of(kRailsMax));
    }
    own_.connections = static_cast<uint32_t>(text[0] - '0');
  }
  const char* lazy = report_.setting("WEIR_TCP_LAZY");
  const std::string wish = lazy != nullptr && *lazy != 0 ? lazy : "auto";
  if (wish != "auto" && wish != "0" && wish != "1") {
    return report_.fail(WEIR_ERROR_INVALID_ARGUMENT,
                        "tcp: WEIR_TCP_LAZY is '" + wish + "', none of auto, 0 and 1");
  }
  own_.is_lazy = wish == "1" || (wish == "auto" && identity_.rank_count > kEagerRanksMax);
  own_.host = net::this_host();
  const uint64_t connection_count = uint64_t{identity_.rank_count} * kConnectionsPerPeer;
  const std::vector<net::Listening> all =
      net::listen_at_all(interfaces, filter, kOffersMax, connection_count, &reason);
  if (all.empty()) return report_.fail(WEIR_ERROR_UNSUPPORTED, "tcp: " + reason);
  const std::vector<uint32_t> numbers = numbers_of(interfaces);
  for (const net::Listening& listening : all) {
    const net::Interface& one = interfaces[listening.interface];
    acceptor_->add(listening.fd);
    interfaces_.push_back(one);
    own_.offers.push_back({one.address, listening.port, one.speed_mbits, one.prefix_bits,
                           numbers[listening.interface], one.is_loopback,
                           filter.asks_for(one.name)});
  }
  return WEIR_OK;
}

weir_result_t Meeting::find_candidates(const std::vector<PeerAddress>& peers) {
  const bool all_here = std::all_of(peers.begin(), peers.end(), [&](const PeerAddress& peer) {
    return own_.host.known() && peer.host == own_.host;
  });
  for (uint32_t rank = 0; rank < identity_.rank_count; ++rank) {
    peers_[rank].is_lazy = tcp::is_lazy(own_, peers[rank]);
  }
  for (uint32_t rank = 0; rank < identity_.rank; ++rank) {
    Peer& peer = peers_[rank];
    peer.connections = std::min(own_.connections, peers[rank].connections);
    for (const Way& way : ways_to(own_, interfaces_, peers[rank], all_here)) {
      peer.candidates.push_back({way, "", false, false});
    }
    if (peer.candidates.empty()) {
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

void Meeting::clear_slots(Peer* peer) {
  for (Slot& slot : peer->slots) slot.stream.close();
  peer->slots.clear();
  peer->rail_count = 0;
}

void Meeting::make_slots(Peer* peer, uint32_t rail_count) {
  clear_slots(peer);
  peer->rail_count = rail_count;
  if (rail_count == 1 && peer->is_lazy) {
    peer->slots.push_back({kControlLane, 0});
    return;
  }
  if (rail_count == 1) {
    for (uint32_t lane = 0; lane < kConnectionsPerPeer; ++lane) peer->slots.push_back({lane, 0});
    return;
  }
  for (uint32_t rail = 0; rail < rail_count; ++rail) {
    peer->slots.push_back({kControlLane, rail});
    if (rail == 0 || !peer->is_lazy) peer->slots.push_back({kRailLane, rail});
  }
}

int Meeting::slot_of(const Peer& peer, uint32_t lane, uint32_t rail) {
  for (size_t i = 0; i < peer.slots.size(); ++i) {
    if (peer.slots[i].lane == lane && peer.slots[i].rail == rail) return static_cast<int>(i);
  }
  return -1;
}

bool Meeting::is_missing(uint32_t rank) const {
  const Peer& peer = peers_[rank];
  if (rank == identity_.rank) return false;
  return peer.slots.empty() || std::any_of(peer.slots.begin(), peer.slots.end(),
                                           [](const Slot& slot) { return !slot.stream.is_open(); });
}

bool Meeting::any_missing() const {
  for (uint32_t rank = 0; rank < identity_.rank_count; ++rank) {
    if (is_missing(rank)) return true;
  }
  return false;
}

size_t Meeting::candidate_of(const Peer& peer, const Slot& slot) const {
  return peer.chosen[slot.rail % peer.chosen.size()];
}

weir_result_t Meeting::meet(const std::vector<PeerAddress>& peers, uint64_t deadline_ns) {
  peers_.resize(identity_.rank_count);
  weir_result_t result = find_candidates(peers);
  while (result == WEIR_OK && any_missing()) {
    const uint64_t now = monotonic_ns();
    if (now >= deadline_ns) {
      result = time_out();
      break;
    }
    if (now >= next_look_ns_) {
      next_look_ns_ = now + common::kLookNs;
      result = common::look(report_.host);
      if (result != WEIR_OK) break;
    }
    result = start_attempts(now);
    if (result != WEIR_OK || !any_missing()) break;
    entries_.clear();
    for (const Attempt& attempt : attempts_) {
      entries_.push_back({attempt.held ? -1 : attempt.stream.fd(), attempt.events(), 0});
    }
    const size_t attempt_count = attempts_.size();
    acceptor_->append_entries(now, &entries_);
    const uint64_t until = next_event_ns(now, deadline_ns);
    const uint64_t left = until > now ? until - now : 0;
    const timespec patience = {static_cast<time_t>(left / 1'000'000'000),
                               static_cast<long>(left % 1'000'000'000)};
    if (ppoll(entries_.data(), entries_.size(), &patience, nullptr) < 0) {
      if (errno == EINTR) continue;
      result = report_.fail(code_of(errno), "tcp: ppoll: " + reason_of(errno));
      break;
    }
    // From the end, since one that has ended is taken out by moving the last into its place; those
    // that are begun meanwhile are not.
    for (size_t i = attempt_count; i-- > 0;) {
      if (i < attempts_.size() && entries_[i].fd == attempts_[i].stream.fd() &&
          entries_[i].revents != 0) {
        serve_attempt(i);
      }
    }
    acceptor_->serve(entries_.data() + attempt_count, monotonic_ns(), this);
  }
  for (Attempt& attempt : attempts_) attempt.stream.close();
  attempts_.clear();
  if (result != WEIR_OK || !listens_on()) acceptor_->close();
  if (result != WEIR_OK) return result;
  for (uint32_t rank = 0; rank < identity_.rank; ++rank) {
    report_.log(Report::kInformation,
                "tcp: rank " + text_of(identity_.rank) + " uses " + peers_[rank].route);
  }
  return WEIR_OK;
}

uint64_t Meeting::next_event_ns(uint64_t now, uint64_t deadline_ns) const {
  uint64_t next = std::min({deadline_ns, next_look_ns_, acceptor_->next_event_ns(now)});
  for (uint32_t rank = 0; rank < identity_.rank; ++rank) {
    const Peer& peer = peers_[rank];
    if (peer.chosen.empty()) {
      next = std::min(next, peer.gather_end_ns != 0 ? peer.gather_end_ns : peer.next_start_ns);
      continue;
    }
    for (const Slot& slot : peer.slots) {
      if (!slot.stream.is_open() && slot.under_way == 0) next = std::min(next, slot.retry_ns);
    }
  }
  return next;
}

weir_result_t Meeting::start_attempts(uint64_t now) {
  for (uint32_t rank = 0; rank < identity_.rank; ++rank) {
    Peer& peer = peers_[rank];
    if (peer.chosen.empty() && peer.gather_end_ns != 0) {
      if (now >= peer.gather_end_ns || !goes_on_gathering(peer)) choose(rank);
      continue;
    }
    if (peer.chosen.empty()) {
      const weir_result_t result = start_route(rank, now);
      if (result != WEIR_OK) return result;
      continue;
    }
    for (size_t i = 0; i < peer.slots.size(); ++i) {
      Slot& slot = peer.slots[i];
      if (slot.stream.is_open() || slot.under_way != 0 || slot.retry_ns > now) continue;
      if (slot.attempt_count >= kSlotAttemptsMax && peer.rail_count > 1) {
        // A rail that has answered is gone: which there are is sought anew.
        abandon(rank);
        break;
      }
      start_attempt(rank, static_cast<int>(i), candidate_of(peer, slot), now);
    }
  }
  return WEIR_OK;
}

// The control connection finds the way: the others follow it.
weir_result_t Meeting::start_route(uint32_t rank, uint64_t now) {
  Peer& peer = peers_[rank];
  while (now >= peer.next_start_ns && peer.next_candidate < peer.candidates.size()) {
    const size_t candidate = peer.next_candidate++;
    const bool is_rail = peer.candidates[candidate].way.is_rail;
    // One that fails at once leaves its place to the next one; rails are tried together.
    const bool started = start_attempt(rank, -1, candidate, now);
    const bool together = is_rail && peer.next_candidate < peer.candidates.size() &&
                          peer.candidates[peer.next_candidate].way.is_rail;
    peer.next_start_ns = started && !together ? now + kStaggerNs : now;
  }
  if (now < peer.next_start_ns) return WEIR_OK;
  if (peer.seeking == 0) {
    for (const Candidate& candidate : peer.candidates) {
      if (candidate.refused) return refused(rank);
    }
    peer.next_candidate = 0;
  }
  peer.next_start_ns = now + kStaggerNs;
  return WEIR_OK;
}

bool Meeting::start_attempt(uint32_t rank, int slot_index, size_t candidate, uint64_t now) {
  Peer& peer = peers_[rank];
  Candidate& chosen = peer.candidates[candidate];
  Slot* slot = slot_index >= 0 ? &peer.slots[static_cast<size_t>(slot_index)] : nullptr;
  if (slot != nullptr) {
    slot->retry_ns = now + std::min(kRetryNsMax, kRetryNsMin << std::min(slot->attempt_count, 6u));
    ++slot->attempt_count;
  }
  int error_number = 0;
  std::optional<tcp::Attempt> begun = begin_attempt(
      identity_, chosen.way, rank, slot != nullptr ? slot->lane : kControlLane, &error_number);
  if (!begun) {
    chosen.failure = reason_of(error_number);
    return false;
  }
  if (slot != nullptr) begun->handshake.set_rail(slot->rail, peer.rail_count, 0);
  ++(slot != nullptr ? slot->under_way : peer.seeking);
  attempts_.push_back({std::move(*begun), rank, slot_index, candidate});
  return true;
}

void Meeting::drop_attempt(size_t index, const std::string& failure) {
  Attempt& attempt = attempts_[index];
  Peer& peer = peers_[attempt.peer];
  peer.candidates[attempt.candidate].failure = failure;
  attempt.stream.close();
  const uint32_t rank = attempt.peer;
  const int slot = attempt.slot;
  const bool is_control = slot >= 0 && peer.slots[static_cast<size_t>(slot)].lane == kControlLane;
  // Whatever was chosen does not answer any more.
  const bool ends =
      is_control && (peer.rail_count == 1 || peer.candidates[attempt.candidate].refused);
  // The next one need not be waited for.
  if ((slot < 0 || ends) && peer.next_candidate < peer.candidates.size()) peer.next_start_ns = 0;
  forget_attempt(index);
  if (ends) abandon(rank);
}

// Which way leads to the peer is sought anew.
void Meeting::abandon(uint32_t rank) {
  for (size_t i = attempts_.size(); i-- > 0;) {
    if (attempts_[i].peer != rank) continue;
    attempts_[i].stream.close();
    forget_attempt(i);
  }
  clear_slots(&peers_[rank]);
  peers_[rank].chosen.clear();
  peers_[rank].gather_end_ns = 0;
}

void Meeting::forget_attempt(size_t index) {
  Attempt& attempt = attempts_[index];
  Peer& peer = peers_[attempt.peer];
  --(attempt.slot < 0 ? peer.seeking : peer.slots[static_cast<size_t>(attempt.slot)].under_way);
  if (&attempt != &attempts_.back()) attempt = std::move(attempts_.back());
  attempts_.pop_back();
}

bool Meeting::goes_on_gathering(const Peer& peer) const {
  const Peer* wanted = &peer;
  return std::any_of(attempts_.begin(), attempts_.end(), [&](const Attempt& attempt) {
    return &peers_[attempt.peer] == wanted && attempt.slot < 0 && !attempt.held &&
           peer.candidates[attempt.candidate].way.is_rail;
  });
}

// The rails, among the ways that have answered.
void Meeting::choose(uint32_t rank) {
  Peer& peer = peers_[rank];
  std::vector<Way> ways;
  std::vector<size_t> answered;
  for (size_t i = 0; i < peer.candidates.size(); ++i) {
    ways.push_back(peer.candidates[i].way);
    if (peer.candidates[i].answered) answered.push_back(i);
    peer.candidates[i].answered = false;
  }
  peer.gather_end_ns = 0;
  peer.chosen = choose_rails(ways, answered);
  const auto count = static_cast<uint32_t>(peer.chosen.size());
  make_slots(&peer, std::min(kRailsMax, count * peer.connections));
  // Only one proof is under way for each connection, so that both ends mean the same one.
  for (size_t i = attempts_.size(); i-- > 0;) {
    Attempt& attempt = attempts_[i];
    if (attempt.peer != rank) continue;
    const auto at = std::find(peer.chosen.begin(), peer.chosen.end(), attempt.candidate);
    const int slot =
        attempt.held && at != peer.chosen.end()
            ? slot_of(peer, kControlLane, static_cast<uint32_t>(at - peer.chosen.begin()))
            : -1;
    if (slot < 0) {
      Candidate& candidate = peer.candidates[attempt.candidate];
      candidate.failure = attempt.held ? "another one was chosen" : "no answer in time";
      attempt.stream.close();
      forget_attempt(i);
      continue;
    }
    Slot& taken = peer.slots[static_cast<size_t>(slot)];
    --peer.seeking;
    ++taken.under_way;
    attempt.slot = slot;
    attempt.held = false;
    attempt.handshake.set_rail(taken.rail, peer.rail_count, 0);
    attempt.handshake.prove();
  }
  tell_route(rank);
}

void Meeting::serve_attempt(size_t index) {
  Attempt& attempt = attempts_[index];
  int error_number = 0;
  Step step = attempt.move(&error_number);
  Peer& peer = peers_[attempt.peer];
  if (attempt.handshake.state() == Handshake::State::kChallenged) {
    if (attempt.slot < 0) {
      attempt.held = true;
      peer.candidates[attempt.candidate].answered = true;
      if (peer.gather_end_ns == 0) peer.gather_end_ns = monotonic_ns() + kGatherNs;
      if (!goes_on_gathering(peer)) choose(attempt.peer);
      return;
    }
    attempt.handshake.prove();
    step = exchange(&attempt.stream, &attempt.handshake, &error_number);
  }
  if (step != Step::kGoesOn) finish_attempt(index, step, error_number);
}

void Meeting::finish_attempt(size_t index, Step step, int error_number) {
  Attempt& attempt = attempts_[index];
  Peer& peer = peers_[attempt.peer];
  Candidate& candidate = peer.candidates[attempt.candidate];
  if (step == Step::kProven) {
    const Slot& slot = peer.slots[static_cast<size_t>(attempt.slot)];
    settle(&peer, slot.lane, slot.rail, attempt.stream);
    return forget_attempt(index);
  }
  // It has ended before the proof, then.
  const net::Stream* tls = attempt.stream.tls();
  const bool no_secret = tls != nullptr && tls->failure() == net::Stream::Failure::kRefused;
  const std::string reason = tls != nullptr ? tls->reason() : "";
  switch (no_secret ? Handshake::State::kRefused : attempt.handshake.state()) {
    case Handshake::State::kRefused:
      candidate.refused = true;
      return drop_attempt(index, "does not accept the secret, communicator or rank count of rank " +
                                     text_of(identity_.rank) + ", or is another rank" +
                                     (no_secret ? " (" + reason + ")" : ""));
    case Handshake::State::kOtherVersion:
      candidate.refused = true;
      return drop_attempt(index, "speaks version " + text_of(attempt.handshake.other_version()) +
                                     " of the protocol, rank " + text_of(identity_.rank) +
                                     " version " + text_of(kProtocolVersion));
    case Handshake::State::kMalformed:
      return drop_attempt(index, "does not speak the protocol of this transport");
    default:
      return drop_attempt(index, reason.empty() ? reason_of(error_number) : reason);
  }
}

void Meeting::join(const Handshake& shown, Stream stream, uint64_t) {
  Peer& peer = peers_[shown.peer()];
  // The guest has the choice, and may choose again.
  if (peer.rail_count != shown.rail_count()) make_slots(&peer, shown.rail_count());
  settle(&peer, shown.lane(), shown.rail(), stream);
}

void Meeting::settle(Peer* peer, uint32_t lane, uint32_t rail, Stream stream) {
  const int index = slot_of(*peer, lane, rail);
  if (index < 0) {
    // The peer has ended its meeting, and uses a lane or a rail.
    early_.push_back({static_cast<uint32_t>(peer - peers_.data()), lane, rail, stream});
    return;
  }
  Slot& slot = peer->slots[static_cast<size_t>(index)];
  // An earlier one the peer has given up: it never has two of a slot under way.
  slot.stream.close();
  slot.stream = stream;
}

Stream Meeting::take_connection(uint32_t rank, uint32_t lane, uint32_t rail) {
  Slot& slot = peers_[rank].slots[static_cast<size_t>(slot_of(peers_[rank], lane, rail))];
  return std::exchange(slot.stream, Stream());
}

const Way& Meeting::way(uint32_t rank, uint32_t rail) const {
  const Peer& peer = peers_[rank];
  return peer.candidates[peer.chosen[rail % peer.chosen.size()]].way;
}

}  // namespace weir::plugins::tcp
