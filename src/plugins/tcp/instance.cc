// SPDX-License-Identifier: Apache-2.0
#include "plugins/tcp/instance.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <algorithm>
#include <new>
#include <utility>

#include "net/ip_socket.h"

namespace weir::plugins::tcp {
namespace {

// Time for data that have not left, or whose memory the kernel holds, when a rank leaves.
constexpr uint64_t kFarewellNs = 500'000'000;
// The same for rails, of which a failed one is noticed after 0.5 s.
constexpr uint64_t kRailsFarewellNs = 2'000'000'000;
// The same where the peer must say what it has of a failed one, which it does when it makes a call.
constexpr uint64_t kWordNs = 30'000'000'000;
// Such a wait usually takes no longer.
constexpr uint64_t kShortNs = 20'000'000;

// Time limit for a lane's connection while nothing answers.
constexpr uint64_t kConnectPatienceNs = 30'000'000'000;
// A receiver connects by itself after so long without its sender.
constexpr uint64_t kReceiverConnectsNs = 1'000'000'000;
constexpr uint64_t kWaitLookNs = 1'000'000;

bool has_left(const Instance* self, Peer* peer, uint32_t lane) {
  if (self->life(peer->rank) == WEIR_LIFE_LEFT) return true;
  return peer->bundle != nullptr ? peer->bundle->left() : peer->lanes[lane].hear_goodbye();
}

}  // namespace

// A rail may have failed with it, and another one, which may still be on its way, carries it then.
void Instance::flush(uint32_t peer, Bundle* bundle) {
  const uint64_t began_ns = monotonic_ns();
  uint64_t until_ns = began_ns + kRailsFarewellNs;
  uint64_t now_ns = began_ns;
  while (!(bundle->flush() && bundle->is_acknowledged()) && now_ns < until_ns) {
    const timespec pause = {0, now_ns - began_ns < kShortNs ? 200'000 : 2'000'000};
    nanosleep(&pause, nullptr);
    now_ns = monotonic_ns();
    step(now_ns);
    bundle->drive();
    if (!bundle->awaits_word() || life(peer) != WEIR_LIFE_HERE) continue;
    until_ns = std::min(now_ns + kRailsFarewellNs, began_ns + kWordNs);
  }
}

Instance::~Instance() {
  // A forked child has copies of the connections, which only its parent may end.
  const bool ends = owner == getpid();
  for (const int listener : listeners) close(listener);
  // A peer may use connections of which this rank has taken no notice yet, and awaits their
  // goodbye.
  const uint64_t now_ns = monotonic_ns();
  if (ends && joined) take_arrived(now_ns);
  const uint64_t patience_ns = ends ? now_ns + kFarewellNs : 0;
  for (const std::unique_ptr<Peer>& peer : peers) {
    if (peer == nullptr || !ends) continue;
    if (Bundle* bundle = peer->bundle.get(); bundle != nullptr) {
      bundle->quiesce();
      flush(peer->rank, bundle);
      for (uint32_t rail = 0; rail < bundle->rail_count(); ++rail) {
        bundle->control(rail).say_goodbye();
        bundle->control(rail).stream().shut();
        bundle->data_stream(rail).shut();
        bundle->data_stream(rail).drain();
      }
    }
  }
  if (ends && rejoin != nullptr) rejoin->say_goodbye();
  for (const std::unique_ptr<Peer>& peer : peers) {
    if (peer == nullptr || peer->lanes == nullptr) continue;
    for (uint32_t lane = 0; lane < kLaneCount; ++lane) {
      Channel& channel = peer->lanes[lane];
      if (ends) {
        (void)channel.recall(patience_ns);
        channel.say_goodbye();
        // What the kernel has taken still arrives.
        channel.send_stream().shut();
        channel.recv_stream().drain();
      }
      const bool is_one = channel.recv_stream().fd() == channel.send_stream().fd();
      channel.send_stream().close();
      if (!is_one) channel.recv_stream().close();
    }
  }
}

// Makes the lanes or rails to a peer.
weir_result_t Instance::make(uint32_t index) {
  auto made = std::make_unique<Peer>();
  made->rank = index;
  PeerAddress other;
  if (!decode(reinterpret_cast<const unsigned char*>(addresses[index].data()),
              addresses[index].size(), &other)) {
    return report.fail(WEIR_ERROR_INTERNAL, "tcp: the address of rank " + text_of(index));
  }
  made->ways = ways_to(own, interfaces, other, all_here);
  const bool is_lower = index < rank;
  const std::vector<RailEnds> pairs =
      is_lower ? rails_between(other, own) : rails_between(own, other);
  const uint32_t rail_count = index == rank ? 1 : rail_count_between(own, other, pairs.size());
  if (rail_count > 1) {
    std::vector<std::vector<Way>> ways(rail_count);
    for (uint32_t rail = 0; rail < rail_count; ++rail) {
      if (!pairs.empty()) {
        const RailEnds& pair = pairs[rail % pairs.size()];
        const Offer& here = is_lower ? pair.higher : pair.lower;
        const Offer& there = is_lower ? pair.lower : pair.higher;
        std::string device;
        for (const net::Interface& one : interfaces) {
          if (one.address == here.address) device = one.name;
        }
        ways[rail].push_back({there, here.address, device, why_rail(device, pair.how, there)});
      }
      // Where none of these leads to the peer, one of the others may.
      if (rail == 0 || pairs.empty()) {
        ways[rail].insert(ways[rail].end(), made->ways.begin(), made->ways.end());
      }
    }
    const size_t shown = std::max<size_t>(pairs.size(), 1);
    for (size_t rail = 0; rail < shown && !ways[rail].empty(); ++rail) {
      const Way& way = ways[rail][0];
      made->way += (rail == 0 ? "rank " + text_of(index) + " at " : ", ") +
                   net::to_string(way.offer.address, way.offer.port) + " (" + way.why + ")";
    }
    made->way += ", " + text_of(rail_count) + " rails";
    made->bundle = std::make_unique<Bundle>(rail_count);
    made->bundle->peer = index;
    made->bundle->fix_shares(shares);
    if (rejoin == nullptr) {
      const bool many = rank_count - 1 > kDirectPeersMax;
      rejoin = std::make_unique<Rejoin>(report, this, many ? &arrivals : nullptr);
    }
    rejoin->add(index, is_lower, made->bundle.get(), std::move(ways));
  } else {
    made->lanes = std::make_unique<Channel[]>(kLaneCount);
    for (uint32_t lane = 0; lane < kLaneCount; ++lane) {
      made->lanes[lane].peer = index;
      made->lanes[lane].lane = static_cast<uint8_t>(lane);
    }
    entries.resize(entries.size() + size_t{2} * kLaneCount);
  }
  peers[index] = std::move(made);
  return WEIR_OK;
}

Peer* Instance::use(uint32_t index) {
  if (peers[index] != nullptr) [[likely]]
    return peers[index].get();
  try {
    if (make(index) != WEIR_OK) return nullptr;
  } catch (const std::bad_alloc&) {
    (void)report.fail(WEIR_ERROR_NO_MEMORY,
                      "tcp: no memory for connections to rank " + text_of(index));
    return nullptr;
  }
  return peers[index].get();
}

void Instance::connect(uint32_t peer, const Subject& subject, const std::vector<Way>& ways,
                       uint64_t deadline_ns) {
  std::vector<weir_control_way_t> all;
  for (const Way& way : ways) {
    weir_control_way_t one{};
    memcpy(one.address, way.offer.address.bytes.data(), sizeof one.address);
    memcpy(one.source, way.source.bytes.data(), sizeof one.source);
    one.port = way.offer.port;
    one.address_family = way.offer.address.family;
    one.source_family = way.source.family;
    (void)snprintf(one.device, sizeof one.device, "%s", way.device.c_str());
    all.push_back(one);
  }
  const uint64_t secure = subject.lane == kControlLane ? WEIR_CONTROL_STAYS_SECURE : 0;
  control->connect(control->context, peer, subject.pack() | secure, all.data(), all.size(),
                   deadline_ns);
}

void Instance::connect_lane(Peer* peer, uint32_t lane) {
  if (peer->asked[lane] || peer->lanes[lane].is_connected()) return;
  peer->asked[lane] = true;
  if (peer->rank != rank) {
    return connect(peer->rank, {.lane = lane}, peer->ways, monotonic_ns() + kConnectPatienceNs);
  }
  // A rank's lanes to itself are socket pairs, so that they behave as all others.
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) != 0) {
    peer->problem = reason_of(errno);
    return peer->lanes[lane].give_up(WEIR_ERROR_SYSTEM);
  }
  peer->lanes[lane].attach(Stream(fds[0]), Stream(fds[1]), static_cast<uint8_t>(lane),
                           ZeroCopy::Mode::kOff);
}

void Instance::take(const weir_control_connection_t& connection, weir_result_t result,
                    uint64_t now_ns) {
  Subject subject;
  Stream stream;
  if (result == WEIR_OK) stream = Stream(control, connection);
  const bool good = Subject::unpack(connection.subject & ~WEIR_CONTROL_STAYS_SECURE, &subject) &&
                    connection.peer < rank_count && connection.peer != rank;
  Peer* peer = good ? use(connection.peer) : nullptr;
  if (peer == nullptr || (subject.rail_count > 1) != (peer->bundle != nullptr)) {
    return stream.close();
  }
  if (peer->bundle == nullptr) return take_lane(peer, subject.lane, stream, connection, result);
  if (result == WEIR_OK) return rejoin->joined(peer->rank, subject, stream, now_ns);
  rejoin->failed(peer->rank, subject, now_ns);
  if (peer->bundle->up_count() > 0) return;
  peer->problem = connection.reason;
  // Where one leads nowhere others may.
  if (result == WEIR_ERROR_SYSTEM) {
    peer->bundle->give_up(result, 0);
  } else if (subject.rail == 0) {
    peer->bundle->give_up(WEIR_ERROR_PEER_LOST, 0);
  }
}

void Instance::take_lane(Peer* peer, uint32_t lane, Stream stream,
                         const weir_control_connection_t& connection, weir_result_t result) {
  Channel& channel = peer->lanes[lane];
  if (result != WEIR_OK) {
    if (channel.is_connected()) return;
    peer->asked[lane] = false;
    peer->problem = connection.reason;
    return channel.give_up(result == WEIR_ERROR_SYSTEM ? result : WEIR_ERROR_PEER_LOST);
  }
  if (channel.is_connected() || channel.send_failure().result != WEIR_OK) return stream.close();
  channel.attach(stream, stream, static_cast<uint8_t>(lane), zero_copy);
  if (!peer->way.empty()) return;
  if (connection.way < peer->ways.size()) {
    const Way& way = peer->ways[connection.way];
    peer->way = "rank " + text_of(peer->rank) + " at " +
                net::to_string(way.offer.address, way.offer.port) + " (" + way.why;
    if (connection.reason[0] != 0) peer->way += std::string("; not ") + connection.reason;
    peer->way += ")";
  } else {
    const net::IpAddress local = net::local_address(stream.fd());
    peer->way = "rank " + text_of(peer->rank) + ", which connected to " +
                (local.valid() ? net::to_string(local) : "this rank") + " and chose the path";
  }
  report.log(Report::kInformation, "tcp: rank " + text_of(rank) + " uses " + peer->way);
}

void Instance::take_arrived(uint64_t now_ns) {
  if (control == nullptr) return;
  weir_control_connection_t connection{};
  connection.struct_bytes = sizeof connection;
  for (;;) {
    const weir_result_t result = control->connected(control->context, &connection);
    if (result == WEIR_IN_PROGRESS) return;
    take(connection, result, now_ns);
  }
}

void Instance::step(uint64_t now_ns) {
  if (control == nullptr) return;
  // Asked first: connections that a peer made before it ended count.
  const bool looks = now_ns - waited_ns >= kWaitLookNs;
  std::vector<bool> gone;
  std::vector<bool> gone_bundles;
  if (looks) {
    waited_ns = now_ns;
    for (Channel* channel = active; channel != nullptr; channel = channel->next_active) {
      gone.push_back(channel->is_waiting() && life(channel->peer) != WEIR_LIFE_HERE);
    }
    for (const uint32_t peer : active_bundles) {
      gone_bundles.push_back(bundle_of(peer)->up_count() == 0 && life(peer) != WEIR_LIFE_HERE);
    }
  }
  take_arrived(now_ns);
  if (rejoin != nullptr) rejoin->step(now_ns);
  if (!looks) return;
  size_t i = 0;
  for (Channel* channel = active; channel != nullptr; channel = channel->next_active, ++i) {
    if (!channel->is_waiting()) continue;
    if (gone[i]) {
      channel->give_up(WEIR_ERROR_PEER_LOST);
      continue;
    }
    // The sender connects, unless nothing leads from there to here.
    Peer* peer = peers[channel->peer].get();
    uint64_t& since_ns = peer->waits_ns[channel->lane];
    if (since_ns == 0) since_ns = now_ns;
    if (now_ns - since_ns >= kReceiverConnectsNs) connect_lane(peer, channel->lane);
  }
  i = 0;
  for (const uint32_t peer : active_bundles) {
    Bundle* bundle = bundle_of(peer);
    const bool may_come = bundle->has_begun() && bundle->left() && bundle->awaits_first();
    if (gone_bundles[i++] && bundle->up_count() == 0 && !may_come) {
      bundle->give_up(WEIR_ERROR_PEER_LOST, 0);
    }
  }
}

weir_result_t tell(Instance* self, uint32_t peer_index, uint32_t lane_index, bool is_send,
                   Failure* told) {
  Failure& failure = *told;
  failure.reported = true;
  const std::string peer = text_of(peer_index);
  const std::string lane = text_of(lane_index);
  const std::string me = text_of(self->rank);
  switch (failure.result) {
    case WEIR_ERROR_MISMATCH:
      return self->report.fail(failure.result, "tcp: rank " + peer + " sent a message of " +
                                                   text_of(failure.sent_bytes) +
                                                   " bytes where rank " + me + " expected " +
                                                   text_of(failure.expected_bytes) + " (lane " +
                                                   lane + ")");
    case WEIR_ERROR_PEER_LOST: {
      Peer& it = *self->peers[peer_index];
      const bool left = has_left(self, &it, lane_index);
      const bool had_connection =
          it.bundle != nullptr ? it.bundle->has_begun() : it.lanes[lane_index].is_connected();
      if (!left && had_connection && it.ended_ns == 0) it.ended_ns = monotonic_ns();
      std::string how = "has closed the communicator";
      if (!left && had_connection) {
        how = "was lost: its connection " + (failure.error_number == 0
                                                 ? std::string("was closed")
                                                 : "failed, " + reason_of(failure.error_number));
      } else if (!left) {
        how = self->life(peer_index) == WEIR_LIFE_HERE ? "cannot be reached: " : "was lost: ";
        how += it.problem.empty() ? "its process has ended" : it.problem;
      }
      return self->report.fail(failure.result,
                               "tcp: rank " + peer + " " + how +
                                   (is_send ? ", while rank " + me + " sent to it"
                                            : ", while rank " + me + " waited for a message") +
                                   " (lane " + lane + ")");
    }
    case WEIR_ERROR_SYSTEM:
      return self->report.fail(
          failure.result, "tcp: rank " + me + " cannot connect lane " + lane + " to rank " + peer +
                              ": " + self->peers[peer_index]->problem + "; raise `ulimit -n`");
    default:
      return self->report.fail(
          failure.result, "tcp: the data that rank " + peer + " sent to rank " + me + " on lane " +
                              lane +
                              " is not a message of the tcp transport: it was damaged in transit, "
                              "or another program wrote to the connection");
  }
}

}  // namespace weir::plugins::tcp
