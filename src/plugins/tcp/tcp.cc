// SPDX-License-Identifier: Apache-2.0
// The transport `tcp`: ranks on one or many hosts, over a TCP connection per peer and lane, or over
// several rails where there are several ways to a peer or several connections are asked for. A
// connection is made when the first operation needs it. See docs/transports.md.
//
// Progress is made by nonblocking calls on the connections that have something to do, without
// epoll: with few of them the call that moves the bytes is also the cheapest way to ask whether
// there are any. Above kDirectMax connections one poll covers all of them, and the calls on those
// that are ready share one of io_uring, where that is allowed.
#include <poll.h>
#include <string.h>

#include <algorithm>
#include <string>

#include "plugins/tcp/instance.h"
#include "weir/plugin.h"

namespace weir::plugins::tcp {
namespace {

constexpr uint32_t kCredit = 8;  // of 1 KiB; the least socket buffer holds several times that
static_assert(kCredit <= Bundle::kAheadCount && 1024 <= Bundle::kEagerBytes);
constexpr uint64_t kGoodbyePatienceNs = 500'000'000;
constexpr uint64_t kQuiescePatienceNs = 100'000'000;

void close(weir_transport_t* instance) { delete from(instance); }

// The state of a peer, or null with the error reported.
Peer* peer_of(Instance* self, uint32_t peer, uint32_t lane, weir_result_t* problem) {
  if (!self->joined || peer >= self->rank_count || lane >= kLaneCount) [[unlikely]] {
    if (!self->joined) {
      *problem = self->report.fail(WEIR_ERROR_INVALID_USAGE, "tcp: not connected");
    } else {
      *problem = self->report.fail(WEIR_ERROR_INVALID_ARGUMENT,
                                   "tcp: peer " + text_of(peer) + ", lane " + text_of(lane) +
                                       ": there are " + text_of(self->rank_count) + " ranks and " +
                                       text_of(kLaneCount) + " lanes");
    }
    return nullptr;
  }
  *problem = WEIR_ERROR_NO_MEMORY;
  return self->use(peer);
}

weir_result_t tell(Instance* self, Channel* channel, bool is_send) {
  return tell(self, channel->peer, channel->lane, is_send,
              is_send ? &channel->send_failure() : &channel->recv_failure());
}

weir_result_t tell(Instance* self, Bundle* bundle, uint32_t lane, bool is_send) {
  return tell(self, bundle->peer, lane, is_send,
              is_send ? &bundle->send_failure(lane) : &bundle->recv_failure(lane));
}

weir_result_t settle(Instance* self, Channel* channel, bool is_send, weir_result_t result) {
  if (result == WEIR_OK) return result;
  if (result != WEIR_IN_PROGRESS) return tell(self, channel, is_send);
  if (!channel->active) {
    channel->active = true;
    channel->next_active = self->active;
    self->active = channel;
    ++self->active_count;
  }
  return result;
}

// An operation on a lane without a connection: the sender makes the connection.
weir_result_t begin(Instance* self, Peer* peer, Channel* channel, bool is_send) {
  if (is_send || peer->rank == self->rank) self->connect_lane(peer, channel->lane);
  self->step(monotonic_ns());
  channel->drive_send();
  channel->drive_recv();
  const Failure& failure = is_send ? channel->send_failure() : channel->recv_failure();
  return failure.result != WEIR_OK ? tell(self, channel, is_send) : WEIR_IN_PROGRESS;
}

void activate(Instance* self, Bundle* bundle) {
  bundle->active = true;
  self->active_bundles.push_back(bundle->peer);
}

weir_result_t settle(Instance* self, Bundle* bundle, uint32_t lane, bool is_send,
                     weir_result_t result) {
  if (!bundle->active && !bundle->idle()) activate(self, bundle);
  if (!bundle->has_begun() && result == WEIR_IN_PROGRESS) [[unlikely]]
    self->step(monotonic_ns());
  return result > WEIR_IN_PROGRESS ? tell(self, bundle, lane, is_send) : result;
}

weir_result_t send(weir_transport_t* instance, uint32_t peer_index, uint32_t lane, const void* data,
                   uint64_t bytes, weir_transport_op_t* op) {
  Instance* self = from(instance);
  weir_result_t problem = WEIR_OK;
  Peer* peer = peer_of(self, peer_index, lane, &problem);
  if (peer == nullptr) return problem;
  if (bytes > kMessageBytesMax) {
    return self->report.fail(WEIR_ERROR_INVALID_ARGUMENT,
                             "tcp: a message of " + text_of(bytes) + " bytes is above the limit");
  }
  auto* entry = reinterpret_cast<Op*>(op);
  if (Bundle* bundle = peer->bundle.get(); bundle != nullptr) {
    return settle(self, bundle, lane, true, bundle->post_send(lane, data, bytes, entry));
  }
  Channel* channel = &peer->lanes[lane];
  const weir_result_t result = settle(self, channel, true, channel->post_send(data, bytes, entry));
  if (result != WEIR_IN_PROGRESS || channel->is_connected()) [[likely]]
    return result;
  const weir_result_t begun = begin(self, peer, channel, true);
  return entry->state == kOpDone ? WEIR_OK : begun;
}

weir_result_t recv(weir_transport_t* instance, uint32_t peer_index, uint32_t lane, void* data,
                   uint64_t bytes, weir_transport_op_t* op) {
  Instance* self = from(instance);
  weir_result_t problem = WEIR_OK;
  Peer* peer = peer_of(self, peer_index, lane, &problem);
  if (peer == nullptr) return problem;
  if (bytes > kMessageBytesMax) {
    return self->report.fail(WEIR_ERROR_INVALID_ARGUMENT,
                             "tcp: a message of " + text_of(bytes) + " bytes is above the limit");
  }
  auto* entry = reinterpret_cast<Op*>(op);
  if (Bundle* bundle = peer->bundle.get(); bundle != nullptr) {
    return settle(self, bundle, lane, false, bundle->post_recv(lane, data, bytes, entry));
  }
  Channel* channel = &peer->lanes[lane];
  const weir_result_t result = settle(self, channel, false, channel->post_recv(data, bytes, entry));
  if (result != WEIR_IN_PROGRESS || channel->is_connected()) [[likely]]
    return result;
  const weir_result_t begun = begin(self, peer, channel, false);
  return entry->state == kOpDone ? WEIR_OK : begun;
}

weir_result_t test_rails(Instance* self, Op* op) {
  auto* bundle = reinterpret_cast<Bundle*>(op->channel);
  if (op->state == kOpPending) {
    if (bundle->any_down()) [[unlikely]]
      self->step(monotonic_ns());
    bundle->drive();
  }
  if (op->state == kOpDone) return WEIR_OK;
  if (op->state == kOpPending) return WEIR_IN_PROGRESS;
  return tell(self, bundle, Bundle::lane_of(*op), Bundle::is_send(*op));
}

weir_result_t test(weir_transport_t* instance, weir_transport_op_t* op) {
  Instance* self = from(instance);
  auto* entry = reinterpret_cast<Op*>(op);
  if (Bundle::owns(*entry)) return test_rails(self, entry);
  auto* channel = reinterpret_cast<Channel*>(entry->channel);
  if (entry->state == kOpPending) {
    if (!channel->is_connected()) [[unlikely]]
      self->step(monotonic_ns());
    if (entry->is_send != 0) {
      channel->drive_send();
    } else {
      channel->drive_recv();
    }
  }
  if (entry->state == kOpDone) return WEIR_OK;
  if (entry->state == kOpPending) return WEIR_IN_PROGRESS;
  if (entry->state > kOpFailed) return tell(self, channel, entry->is_send != 0);
  return self->report.fail(WEIR_ERROR_INVALID_USAGE, "tcp: test of an operation never posted");
}

void drive(Batch* batch, Channel* channel, bool sends, bool receives) {
  if (sends && batch == nullptr) channel->drive_send();
  if (sends && batch != nullptr) batch->send(channel);
  if (receives && batch == nullptr) channel->drive_recv();
  if (receives && batch != nullptr) batch->receive(channel);
}

bool sends(const Channel& channel) { return channel.sending() || channel.awaits_kernel(); }

// Polls all active channels at once, and drives those that can move.
void drive_ready(Instance* self) {
  nfds_t count = 0;
  bool any_unread = false;
  for (Channel* channel = self->active; channel != nullptr; channel = channel->next_active) {
    if (!channel->is_connected()) [[unlikely]]
      continue;
    if (sends(*channel)) {
      const short events = channel->sending() ? POLLOUT : 0;  // the error queue is always polled
      self->entries[count++] = {channel->send_stream().fd(), events, 0};
    }
    if (!channel->receiving()) continue;
    // What TLS has decrypted already, poll does not see.
    if (channel->recv_stream().has_unread()) any_unread = true;
    self->entries[count++] = {channel->recv_stream().fd(), POLLIN, 0};
  }
  const int ready = poll(self->entries.data(), count, 0);
  if (ready <= 0 && !any_unread) return;
  const pollfd* entry = self->entries.data();
  for (Channel* channel = self->active; channel != nullptr; channel = channel->next_active) {
    if (!channel->is_connected()) [[unlikely]]
      continue;
    const bool can_send = sends(*channel) && (entry++)->revents != 0;
    const bool can_receive =
        channel->receiving() && ((entry++)->revents != 0 || channel->recv_stream().has_unread());
    drive(self->batch.get(), channel, can_send, can_receive);
  }
}

// Reports what happened to rails since the last time, and brings back those that are down.
void look_after_rails(Instance* self, uint32_t peer, Bundle* bundle) {
  const uint32_t news = bundle->take_news();
  for (uint32_t rail = 0; news != 0 && rail < bundle->rail_count(); ++rail) {
    if ((news >> rail & 1) == 0 || bundle->left() || bundle->lost()) continue;
    self->report.log(Report::kWarning, "tcp: rail " + text_of(rail) + " to rank " + text_of(peer) +
                                           " was taken out of use (" + bundle->down_reason(rail) +
                                           "); the other rails carry its messages");
  }
}

weir_result_t progress_rails(Instance* self) {
  weir_result_t result = WEIR_OK;
  const bool many = self->active_bundles.size() > kDirectPeersMax && self->arrivals.is_complete();
  if (many) {
    self->arrivals.collect([self](const Arrivals::Connection& one) {
      if (Bundle* bundle = self->bundle_of(one.peer))
        bundle->note_arrival(one.rail, one.is_control);
    });
  }
  for (size_t i = 0; i < self->active_bundles.size();) {
    const uint32_t peer = self->active_bundles[i];
    Bundle* bundle = self->bundle_of(peer);
    bundle->knows_arrivals(many);
    bundle->drive();
    look_after_rails(self, peer, bundle);
    for (uint32_t lane = 0; lane < kLaneCount; ++lane) {
      for (const bool is_send : {true, false}) {
        const Failure& failure = is_send ? bundle->send_failure(lane) : bundle->recv_failure(lane);
        if (failure.result != WEIR_OK && !failure.reported)
          result = tell(self, bundle, lane, is_send);
      }
    }
    if (!bundle->idle()) {
      ++i;
      continue;
    }
    bundle->active = false;
    self->active_bundles[i] = self->active_bundles.back();
    self->active_bundles.pop_back();
  }
  return result;
}

// A bundle without operations is looked after, too: the latest state for its peer may have been
// lost with a rail, and is sent again when that is noticed.
void look_after_idle_bundles(Instance* self) {
  constexpr uint32_t kCallsPerClock = 64;
  if (++self->progress_calls % kCallsPerClock != 0) return;
  const uint64_t now_ns = monotonic_ns();
  if (now_ns - self->looked_ns < Bundle::kLookNs) return;
  self->looked_ns = now_ns;
  for (const std::unique_ptr<Peer>& peer : self->peers) {
    if (peer == nullptr || peer->bundle == nullptr || peer->bundle->active) continue;
    activate(self, peer->bundle.get());
  }
}

// Something waits for a connection.
bool is_waiting(const Instance& self) {
  for (const uint32_t peer : self.active_bundles) {
    if (self.bundle_of(peer)->any_down()) return true;
  }
  for (const Channel* channel = self.active; channel != nullptr; channel = channel->next_active) {
    if (!channel->is_connected()) return true;
  }
  return false;
}

weir_result_t progress(weir_transport_t* instance) {
  Instance* self = from(instance);
  if (self->rejoin != nullptr) look_after_idle_bundles(self);
  if (is_waiting(*self)) [[unlikely]]
    self->step(monotonic_ns());
  weir_result_t result = self->active_bundles.empty() ? WEIR_OK : progress_rails(self);
  const bool directly = self->active_count <= kDirectMax;
  Batch* batch = self->io_mode == IoMode::kUring ? self->batch.get() : nullptr;
  if (!directly) drive_ready(self);
  for (Channel* channel = self->active; directly && channel != nullptr;
       channel = channel->next_active) {
    if (!channel->is_connected()) [[unlikely]]
      continue;
    drive(batch, channel, sends(*channel), channel->receiving());
  }
  if (self->batch != nullptr) self->batch->flush();
  Channel** link = &self->active;
  while (*link != nullptr) {
    Channel* channel = *link;
    for (const bool is_send : {true, false}) {
      const Failure& failure = is_send ? channel->send_failure() : channel->recv_failure();
      if (failure.result != WEIR_OK && !failure.reported) result = tell(self, channel, is_send);
    }
    if (channel->idle()) {
      channel->active = false;
      --self->active_count;
      *link = channel->next_active;
    } else {
      link = &channel->next_active;
    }
  }
  return result;
}

// Data that the peers' hosts accept soon still leave; a connection whose memory is not given back
// by then is broken off. The peers have been sent the reason before (plugin.h).
void quiesce(weir_transport_t* instance) {
  Instance* self = from(instance);
  const uint64_t patience_ns = monotonic_ns() + kQuiescePatienceNs;
  for (const std::unique_ptr<Peer>& peer : self->peers) {
    if (peer == nullptr) continue;
    for (uint32_t lane = 0; peer->lanes != nullptr && lane < kLaneCount; ++lane) {
      Channel& channel = peer->lanes[lane];
      if (!channel.recall(patience_ns)) {
        self->report.log(
            Report::kWarning,
            "tcp: a network interface still uses the buffer of a send that was given up");
      }
      channel.active = false;
    }
    if (peer->bundle == nullptr) continue;
    peer->bundle->quiesce();
    peer->bundle->active = false;
  }
  self->active = nullptr;
  self->active_count = 0;
  self->active_bundles.clear();
}

weir_result_t peer_alive(weir_transport_t* instance, uint32_t peer_index) {
  Instance* self = from(instance);
  if (!self->joined || peer_index >= self->rank_count) {
    return self->report.fail(
        WEIR_ERROR_INVALID_ARGUMENT,
        "tcp: peer_alive of rank " + text_of(peer_index) + " of " + text_of(self->rank_count));
  }
  const int life = peer_index == self->rank ? int{WEIR_LIFE_HERE} : self->life(peer_index);
  if (life == WEIR_LIFE_LEFT) return WEIR_OK;
  const std::string name = "tcp: rank " + text_of(peer_index);
  if (life == WEIR_LIFE_LOST) {
    return self->report.fail(WEIR_ERROR_PEER_LOST, name + " is dead: its process has ended");
  }
  Peer* peer = self->peers[peer_index].get();
  if (peer == nullptr) return WEIR_OK;
  if (Bundle* bundle = peer->bundle.get(); bundle != nullptr) {
    bundle->listen();
    if (bundle->left() || !bundle->lost()) return WEIR_OK;
    if (peer->ended_ns == 0) peer->ended_ns = monotonic_ns();
  }
  // The control network may take longer to tell that it has left or died.
  if (peer->ended_ns == 0 || monotonic_ns() - peer->ended_ns <= kGoodbyePatienceNs) return WEIR_OK;
  return self->report.fail(
      WEIR_ERROR_PEER_LOST,
      name + " cannot be reached: " +
          (peer->bundle != nullptr ? "all rails to it" : "its connections") +
          " ended without a goodbye, and the control network does not say that it is dead");
}

void describe_peer(weir_transport_t* instance, uint32_t peer_index, char* text, size_t text_bytes) {
  const Instance& self = *from(instance);
  const Peer* peer = peer_index < self.peers.size() ? self.peers[peer_index].get() : nullptr;
  std::string way;
  if (peer_index < self.peers.size() && peer_index != self.rank) {
    way = peer == nullptr || peer->way.empty()
              ? "rank " + text_of(peer_index) + ", to be connected at the first operation"
              : peer->way;
  }
  if (!way.empty() && peer != nullptr && peer->bundle != nullptr) {
    const Bundle& bundle = *peer->bundle;
    way += "; large sends copied: over several rails";
    if (bundle.any_down()) {
      way += "; " + text_of(bundle.up_count()) + " of " + text_of(bundle.rail_count()) +
             " rails are connected";
    }
  } else if (!way.empty() && peer != nullptr) {
    // Of the lane that has tried most; the way is the same for all.
    const Channel* lanes = peer->lanes.get();
    const Channel* known = lanes;
    for (const Channel* lane = lanes; lane < lanes + kLaneCount; ++lane) {
      if (lane->zero_copy().knows() && !known->zero_copy().knows()) known = lane;
    }
    way += "; large sends " + known->zero_copy().describe();
    const auto connected = std::count_if(lanes, lanes + kLaneCount,
                                         [](const Channel& lane) { return lane.is_connected(); });
    if (connected < static_cast<std::ptrdiff_t>(kLaneCount)) {
      way += "; " + std::to_string(connected) + " of " + text_of(kLaneCount) +
             " lanes are connected so far";
    }
  }
  if (!way.empty() && self.batch != nullptr && !self.batch->is_broken()) way += "; io_uring";
  snprintf(text, text_bytes, "%s", way.c_str());
}

constexpr weir_transport_functions_t kFunctions = {
    .abi_version = WEIR_PLUGIN_ABI_VERSION,
    .struct_bytes = sizeof(weir_transport_functions_t),
    .name = "tcp",
    .summary = "ranks on one or many hosts, over TCP, over several interfaces where there are",
    .caps = {.bits = WEIR_CAP_SEND_RECV | WEIR_CAP_PEER_FAILURE | WEIR_CAP_SELF | WEIR_CAP_QUIESCE |
                     WEIR_CAP_SEALED,
             .memory_kinds = WEIR_MEMORY_HOST,
             .lane_count = kLaneCount,
             .message_bytes_max = kMessageBytesMax,
             .rank_count_max = UINT32_MAX,
             .credit = kCredit},
    .viable = viable,
    .open = open,
    .address = address,
    .connect = connect,
    .close = close,
    .send = send,
    .recv = recv,
    .test = test,
    .progress = progress,
    .peer_alive = peer_alive,
    .quiesce = quiesce,
    .describe_peer = describe_peer,
    .peer_leave = peer_leave,
};

}  // namespace

const weir_transport_functions_t* transport() { return &kFunctions; }

}  // namespace weir::plugins::tcp
