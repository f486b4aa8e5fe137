// SPDX-License-Identifier: Apache-2.0
#include "plugins/tcp/rejoin.h"

#include <algorithm>
#include <string>
#include <utility>

namespace weir::plugins::tcp {
namespace {

constexpr uint64_t kStepNs = 10'000'000;
constexpr uint64_t kNeededStepNs = 100'000;
constexpr uint64_t kPauseNsMin = 50'000'000;
constexpr uint64_t kPauseNsMax = 1'000'000'000;
constexpr uint64_t kPatienceNs = 2'000'000'000;
// A host answers when it makes progress; that its process lives the rail's control connection tells.
constexpr uint64_t kNeededPatienceNs = 30'000'000'000;

}  // namespace

Rejoin::~Rejoin() {
  for (Peer& peer : peers_) {
    for (Absent& rail : peer.rails) rail.control.close();
  }
}

void Rejoin::add(uint32_t peer, Bundle* bundle, std::vector<Way> ways) {
  peers_.push_back({peer, bundle, std::move(ways), std::vector<Absent>(bundle->rail_count())});
}

void Rejoin::step(uint64_t now_ns) {
  if (now_ns < next_ns_) return;
  bool is_needed = false;
  for (Peer& peer : peers_) {
    const bool needs_rails = peer.bundle->needs_rails();
    is_needed = is_needed || needs_rails;
    if (peer.ways.empty() || !(needs_rails || peer.bundle->any_down())) continue;
    for (uint32_t rail = 0; rail < peer.rails.size(); ++rail) start(&peer, rail, now_ns);
  }
  next_ns_ = now_ns + (is_needed ? kNeededStepNs : kStepNs);
  joiner_->step(now_ns);
}

Rejoin::Peer* Rejoin::peer_of(const Handshake& shown) {
  for (Peer& peer : peers_) {
    if (peer.rank == shown.peer() && peer.rails.size() == shown.rail_count()) return &peer;
  }
  return nullptr;
}

// The guest's end.

void Rejoin::start(Peer* peer, uint32_t rail_index, uint64_t now_ns) {
  Absent& rail = peer->rails[rail_index];
  const Bundle& bundle = *peer->bundle;
  const bool rests = bundle.rests(rail_index);
  if (rail.under_way || !(rests ? bundle.needs_rails() : bundle.may_return(rail_index))) return;
  if (rail.next_ns == 0) {
    rail.attempt_count = 0;
    rail.next_ns = now_ns + (rests ? 0 : kPauseNsMin);
  }
  if (now_ns < rail.next_ns) return;
  rail.returns = rests ? 0 : bundle.returns(rail_index) + 1;
  rail.under_way = begin(*peer, rail_index, rests ? kRailLane : kControlLane, now_ns);
  if (!rail.under_way) give_up(&rail, now_ns);
}

bool Rejoin::begin(const Peer& peer, uint32_t rail, uint32_t lane, uint64_t now_ns) {
  return joiner_->begin(
             {.peer = peer.rank,
              .lane = lane,
              .rail = rail,
              .rail_count = peer.bundle->rail_count(),
              .returns = peer.rails[rail].returns,
              .patience_ns = peer.rails[rail].returns == 0 ? kNeededPatienceNs : kPatienceNs},
             peer.ways[rail], now_ns) == 0;
}

void Rejoin::give_up(Absent* rail, uint64_t now_ns) {
  rail->under_way = false;
  rail->control.close();
  rail->next_ns = now_ns + std::min(kPauseNsMax, kPauseNsMin << std::min(rail->attempt_count, 5u));
  ++rail->attempt_count;
}

bool Rejoin::goes_on(const Handshake& meant) {
  const Bundle& bundle = *peer_of(meant)->bundle;
  return meant.returns() == 0 ? bundle.rests(meant.rail()) : bundle.may_return(meant.rail());
}

void Rejoin::fail(const Handshake& meant, int, uint64_t now_ns) {
  give_up(&peer_of(meant)->rails[meant.rail()], now_ns);
}

// The host's end.

// Else one of the ends does not know yet what the other has: the peer comes again.
bool Rejoin::may_come(const Handshake& shown) {
  Peer* peer = peer_of(shown);
  if (peer == nullptr || !peer->ways.empty()) return false;
  const Bundle& bundle = *peer->bundle;
  const uint32_t i = shown.rail();
  if (shown.returns() == 0) return shown.lane() == kRailLane && bundle.rests(i) && !bundle.left();
  const bool is_next = shown.returns() == bundle.returns(i) + 1 && bundle.may_return(i);
  const bool is_again = shown.returns() == bundle.returns(i) && !bundle.left();
  if (!is_next && !is_again) return false;
  const Absent& rail = peer->rails[i];
  return shown.lane() == kControlLane ||
         (rail.control.is_open() && rail.returns == shown.returns());
}

// Both.

void Rejoin::join(const Handshake& shown, Stream stream, uint64_t now_ns) {
  Peer* peer = peer_of(shown);
  const uint32_t i = shown.rail();
  Absent& rail = peer->rails[i];
  const bool is_guest = !peer->ways.empty();
  if (shown.lane() == kControlLane) {
    rail.control.close();
    rail.control = stream;
    rail.returns = shown.returns();
    if (is_guest && !begin(*peer, i, kRailLane, now_ns)) give_up(&rail, now_ns);
    return;
  }
  if (is_guest) {
    rail.under_way = false;
    rail.next_ns = 0;
  }
  if (shown.returns() == 0) return peer->bundle->attach_data(i, stream);
  if (!is_guest && shown.returns() == peer->bundle->returns(i)) {
    peer->bundle->forget_connection(i);
  }
  finish(peer, i, stream);
}

void Rejoin::take(uint32_t rank, uint32_t rail, Stream data) {
  for (Peer& peer : peers_) {
    if (peer.rank == rank && rail < peer.rails.size()) return peer.bundle->attach_data(rail, data);
  }
  data.close();
}

void Rejoin::finish(Peer* peer, uint32_t rail_index, Stream data) {
  Absent& rail = peer->rails[rail_index];
  peer->bundle->attach(rail_index, data, std::exchange(rail.control, Stream()), rail.returns);
  report_.log(Report::kInformation, "tcp: rail " + std::to_string(rail_index) + " to rank " +
                                        std::to_string(peer->rank) + " is back");
}

}  // namespace weir::plugins::tcp
