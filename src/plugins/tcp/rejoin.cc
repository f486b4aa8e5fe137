// SPDX-License-Identifier: Apache-2.0
#include "plugins/tcp/rejoin.h"

#include <errno.h>

#include <algorithm>
#include <string>
#include <utility>

#include "net/ip_socket.h"

namespace weir::plugins::tcp {
namespace {

constexpr uint64_t kStepNs = 10'000'000;
constexpr uint64_t kPauseNsMin = 50'000'000;
constexpr uint64_t kPauseNsMax = 1'000'000'000;
// Time limit for an attempt to bring a rail back, and for the lower rank to accept it, which it
// does when it makes progress.
constexpr uint64_t kPatienceNs = 2'000'000'000;
constexpr uint64_t kFirstPatienceNs = 30'000'000'000;
// The lower rank connects a rail by itself after so long without the higher one.
constexpr uint64_t kLowerConnectsNs = 1'000'000'000;

bool is_same_link(const Way& one, const Way& other) {
  return one.device == other.device && one.source == other.source &&
         one.offer.address == other.offer.address;
}

bool is_over(const Stream& stream, const Way& way) {
  if (way.device.empty()) return true;
  const net::IpAddress local = net::local_address(stream.fd());
  return !local.valid() || local == way.source;
}

}  // namespace

Rejoin::~Rejoin() {
  for (Peer& peer : peers_) {
    for (Absent& rail : peer.rails) close(&rail);
  }
}

void Rejoin::add(uint32_t peer, bool is_lower, Bundle* bundle, std::vector<std::vector<Way>> ways) {
  const uint32_t count = bundle->rail_count();
  std::vector<uint32_t> after(count);
  for (uint32_t rail = 0; rail < count; ++rail) {
    after[rail] = rail;
    for (uint32_t other = 0; other < rail; ++other) {
      const bool have_ways = !ways[rail].empty() && !ways[other].empty();
      if (have_ways && is_same_link(ways[rail][0], ways[other][0])) after[rail] = other;
    }
  }
  peers_.push_back({peer, is_lower, bundle, std::move(ways), std::vector<Absent>(count),
                    std::move(after), std::vector<bool>(count)});
}

// The peer may have both connections of the rail, and use it.
void Rejoin::say_goodbye() {
  for (Peer& peer : peers_) {
    for (Absent& rail : peer.rails) {
      Control control;
      control.attach(rail.control);
      control.say_goodbye();
      rail.control.shut();
      rail.data.shut();
      rail.data.drain();
    }
  }
}

void Rejoin::step(uint64_t now_ns) {
  const bool is_due = now_ns >= next_ns_;
  if (is_due) next_ns_ = now_ns + kStepNs;
  awaits_first_ = std::any_of(peers_.begin(), peers_.end(),
                              [](const Peer& peer) { return peer.bundle->awaits_first(); });
  for (Peer& peer : peers_) {
    if (!peer.bundle->any_down() || !(is_due || !peer.bundle->has_begun())) continue;
    for (uint32_t rail = 0; rail < peer.rails.size(); ++rail) {
      if (peer.rails[rail].under_way) {
        await_welcome(&peer, rail, now_ns);
      } else {
        start(&peer, rail, now_ns);
      }
    }
  }
}

Rejoin::Peer* Rejoin::peer_of(uint32_t rank) {
  const auto at = std::find_if(peers_.begin(), peers_.end(),
                               [rank](const Peer& peer) { return peer.rank == rank; });
  return at == peers_.end() ? nullptr : &*at;
}

void Rejoin::close(Absent* rail) {
  rail->control.close();
  rail->data.close();
}

void Rejoin::try_later(Absent* rail, uint64_t now_ns) {
  rail->under_way = false;
  rail->next_ns = now_ns + std::min(kPauseNsMax, kPauseNsMin << std::min(rail->attempt_count, 5u));
  ++rail->attempt_count;
}

void Rejoin::start(Peer* peer, uint32_t rail_index, uint64_t now_ns) {
  Absent& rail = peer->rails[rail_index];
  const Bundle& bundle = *peer->bundle;
  const uint32_t returns = bundle.returns(rail_index) + 1;
  const bool is_first = returns == 1;
  if (!bundle.may_return(rail_index) || bundle.left() || !(is_first || peer->is_lower)) return;
  const uint32_t before = peer->after[rail_index];
  if (is_first && before != rail_index && bundle.returns(before) == 0) return;
  // A peer that cannot be reached yet goes before one that could be reached faster.
  if (is_first && awaits_first_ && bundle.has_begun()) return;
  if (rail.next_ns == 0) {
    rail.attempt_count = 0;
    rail.next_ns = now_ns + (is_first ? kLowerConnectsNs : kPauseNsMin);
  }
  const bool is_at_once = is_first && rail.attempt_count == 0 &&
                          (peer->is_lower || (!bundle.has_begun() && bundle.has_unsent()));
  if (now_ns < rail.next_ns && !is_at_once) return;
  // What the peer has connected already is half of it.
  if (rail.returns != returns) close(&rail);
  rail.returns = returns;
  rail.under_way = true;
  const uint64_t deadline_ns = now_ns + (is_first ? kFirstPatienceNs : kPatienceNs);
  // A rail that returns takes its own link: over the link of another rail it would be of no use.
  std::vector<Way> ways = peer->ways[rail_index];
  if (!is_first && !ways[0].device.empty()) ways.erase(ways.begin() + 1, ways.end());
  for (const uint32_t lane : {kControlLane, kRailLane}) {
    const bool is_there = (lane == kControlLane ? rail.control : rail.data).is_open();
    if (is_there) continue;
    connector_->connect(peer->rank, {lane, rail_index, bundle.rail_count(), returns}, ways,
                        deadline_ns);
  }
}

void Rejoin::failed(uint32_t rank, const Subject& subject, uint64_t now_ns) {
  Peer* peer = peer_of(rank);
  if (peer == nullptr || subject.rail >= peer->rails.size()) return;
  Absent& rail = peer->rails[subject.rail];
  if (!rail.under_way || rail.returns != subject.returns) return;
  // The other connection, if it has come, is half of it, and the peer may hold its end.
  if (subject.returns > 1) close(&rail);
  try_later(&rail, now_ns);
}

void Rejoin::joined(uint32_t rank, const Subject& subject, Stream stream, uint64_t now_ns) {
  Peer* peer = peer_of(rank);
  if (peer == nullptr || subject.rail_count != peer->rails.size()) return stream.close();
  Absent& rail = peer->rails[subject.rail];
  if (subject.returns < rail.returns) return stream.close();
  if (subject.returns > rail.returns) {
    close(&rail);
    rail.returns = subject.returns;
    rail.under_way = false;
  }
  Stream& place = subject.lane == kControlLane ? rail.control : rail.data;
  place.close();
  place = stream;
  if (rail.control.is_open() && rail.data.is_open()) complete(peer, subject.rail, now_ns);
}

// Both connections are there.
void Rejoin::complete(Peer* peer, uint32_t rail_index, uint64_t now_ns) {
  Absent& rail = peer->rails[rail_index];
  Bundle& bundle = *peer->bundle;
  const bool is_next =
      rail.returns == bundle.returns(rail_index) + 1 && bundle.may_return(rail_index);
  const bool is_first = rail.returns == 1;
  if (is_first) return is_next ? attach(peer, rail_index) : close(&rail);
  if (peer->is_lower) {
    rail.expiry_ns = now_ns + kPatienceNs;
    return;
  }
  const bool is_again = rail.returns == bundle.returns(rail_index) && !bundle.left();
  // Otherwise one of the ends does not know yet what the other has received: the peer tries again.
  if (!is_next && !is_again) return close(&rail);
  if (is_again) bundle.forget_connection(rail_index);
  if (rail.data.send(&kWelcome, 1) != 1) return close(&rail);
  attach(peer, rail_index);
}

void Rejoin::await_welcome(Peer* peer, uint32_t rail_index, uint64_t now_ns) {
  Absent& rail = peer->rails[rail_index];
  if (!rail.control.is_open() || !rail.data.is_open()) return;
  unsigned char word = 0;
  const ssize_t got = rail.data.receive(&word, 1);
  const bool waits = got < 0 && (Stream::is_temporary(errno) || errno == EINTR);
  // The peer may have ended the connection before its word came.
  const bool is_next =
      rail.returns == peer->bundle->returns(rail_index) + 1 && peer->bundle->may_return(rail_index);
  if (is_next && waits && now_ns < rail.expiry_ns) return;
  if (is_next && got == 1 && word == kWelcome) return attach(peer, rail_index);
  close(&rail);
  try_later(&rail, now_ns);
}

void Rejoin::attach(Peer* peer, uint32_t rail_index) {
  Absent& rail = peer->rails[rail_index];
  rail.under_way = false;
  rail.next_ns = 0;
  const std::vector<Way>& ways = peer->ways[rail_index];
  peer->over_other_link[rail_index] =
      rail.returns == 1 && peer->is_lower && !ways.empty() &&
      !(is_over(rail.data, ways[0]) && is_over(rail.control, ways[0]));
  if (arrivals_ != nullptr) {
    arrivals_->watch(rail.data.fd(), {peer->rank, rail_index, false});
    arrivals_->watch(rail.control.fd(), {peer->rank, rail_index, true});
  }
  peer->bundle->attach(rail_index, std::exchange(rail.data, Stream()),
                       std::exchange(rail.control, Stream()), rail.returns);
  move_to_own_links(peer);
  if (rail.returns == 1) {
    next_ns_ = 0;  // the next one over its link
    return;
  }
  report_.log(Report::kInformation, "tcp: rail " + std::to_string(rail_index) + " to rank " +
                                        std::to_string(peer->rank) + " is back");
}

void Rejoin::move_to_own_links(Peer* peer) const {
  for (uint32_t rail = 0; rail < peer->rails.size(); ++rail) {
    if (!peer->over_other_link[rail] || peer->bundle->up_count() < 2) continue;
    peer->over_other_link[rail] = false;
    report_.log(Report::kInformation, "tcp: rail " + std::to_string(rail) + " to rank " +
                                          std::to_string(peer->rank) +
                                          " goes over the link of another one, and is connected "
                                          "again over its own");
    peer->bundle->move(rail);
  }
}

}  // namespace weir::plugins::tcp
