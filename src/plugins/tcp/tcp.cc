// SPDX-License-Identifier: Apache-2.0
// The transport `tcp`: ranks on one or many hosts, over a TCP connection per peer and lane, or over
// several rails where there are several ways to a peer or several connections are asked for. Among many
// ranks a lane's connection is made when the first operation needs it. See docs/transports.md.
//
// Progress is made by nonblocking calls on the connections that have something to do, without
// epoll: with few of them the call that moves the bytes is also the cheapest way to ask whether
// there are any. Above kDirectMax connections one poll asks for all, and the calls on those that are
// ready share one of io_uring, where that is allowed.
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

// The channel to a peer, or null with the error told.
Channel* channel_of(Instance* self, uint32_t peer, uint32_t lane) {
  if (!self->joined || peer >= self->identity.rank_count || lane >= kLaneCount) [[unlikely]] {
    if (!self->joined) {
      self->report.fail(WEIR_ERROR_INVALID_USAGE, "tcp: not connected");
    } else {
      self->report.fail(WEIR_ERROR_INVALID_ARGUMENT,
                        "tcp: peer " + text_of(peer) + ", lane " + text_of(lane) + ": there are " +
                            text_of(self->identity.rank_count) + " ranks and " +
                            text_of(kLaneCount) + " lanes");
    }
    return nullptr;
  }
  return &self->channels[peer * kLaneCount + lane];
}

weir_result_t tell(Instance* self, Channel* channel, bool is_send) {
  const auto index = static_cast<size_t>(channel - self->channels.data());
  return tell(self, static_cast<uint32_t>(index / kLaneCount),
              static_cast<uint32_t>(index % kLaneCount), is_send,
              is_send ? &channel->send_failure() : &channel->recv_failure());
}

weir_result_t tell(Instance* self, uint32_t peer, uint32_t lane, bool is_send) {
  Bundle& bundle = *self->bundles[peer];
  return tell(self, peer, lane, is_send,
              is_send ? &bundle.send_failure(lane) : &bundle.recv_failure(lane));
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
  if (channel->is_early_and_active()) [[unlikely]]
    self->lazy->step(monotonic_ns());
  return result;
}

void activate(Instance* self, uint32_t peer) {
  self->bundles[peer]->active = true;
  self->active_bundles.push_back(peer);
}

weir_result_t settle(Instance* self, uint32_t peer, uint32_t lane, bool is_send,
                     weir_result_t result) {
  Bundle& bundle = *self->bundles[peer];
  if (!bundle.active && !bundle.idle()) activate(self, peer);
  return result > WEIR_IN_PROGRESS ? tell(self, peer, lane, is_send) : result;
}

weir_result_t usage_error(const Instance* self) {
  return self->joined ? WEIR_ERROR_INVALID_ARGUMENT : WEIR_ERROR_INVALID_USAGE;
}

weir_result_t send(weir_transport_t* instance, uint32_t peer, uint32_t lane, const void* data,
                   uint64_t bytes, weir_transport_op_t* op) {
  Instance* self = from(instance);
  Channel* channel = channel_of(self, peer, lane);
  if (channel == nullptr) return usage_error(self);
  if (bytes > kMessageBytesMax) {
    return self->report.fail(WEIR_ERROR_INVALID_ARGUMENT,
                             "tcp: a message of " + text_of(bytes) + " bytes is above the limit");
  }
  if (Bundle* bundle = self->bundles[peer].get(); bundle != nullptr) {
    return settle(self, peer, lane, true,
                  bundle->post_send(lane, data, bytes, reinterpret_cast<Op*>(op)));
  }
  return settle(self, channel, true, channel->post_send(data, bytes, reinterpret_cast<Op*>(op)));
}

weir_result_t recv(weir_transport_t* instance, uint32_t peer, uint32_t lane, void* data,
                   uint64_t bytes, weir_transport_op_t* op) {
  Instance* self = from(instance);
  Channel* channel = channel_of(self, peer, lane);
  if (channel == nullptr) return usage_error(self);
  if (bytes > kMessageBytesMax) {
    return self->report.fail(WEIR_ERROR_INVALID_ARGUMENT,
                             "tcp: a message of " + text_of(bytes) + " bytes is above the limit");
  }
  if (Bundle* bundle = self->bundles[peer].get(); bundle != nullptr) {
    return settle(self, peer, lane, false,
                  bundle->post_recv(lane, data, bytes, reinterpret_cast<Op*>(op)));
  }
  return settle(self, channel, false, channel->post_recv(data, bytes, reinterpret_cast<Op*>(op)));
}

weir_result_t test_rails(Instance* self, Op* op) {
  auto* bundle = reinterpret_cast<Bundle*>(op->channel);
  if (op->state == kOpPending) bundle->drive();
  if (op->state == kOpDone) return WEIR_OK;
  if (op->state == kOpPending) return WEIR_IN_PROGRESS;
  const bool is_send = Bundle::is_send(*op);
  uint32_t peer = 0;
  while (self->bundles[peer].get() != bundle) ++peer;
  return tell(self, peer, Bundle::lane_of(*op), is_send);
}

weir_result_t test(weir_transport_t* instance, weir_transport_op_t* op) {
  Instance* self = from(instance);
  auto* entry = reinterpret_cast<Op*>(op);
  if (Bundle::owns(*entry)) return test_rails(self, entry);
  auto* channel = reinterpret_cast<Channel*>(entry->channel);
  if (entry->state == kOpPending) {
    if (channel->is_early_and_active()) [[unlikely]]
      self->lazy->step(monotonic_ns());
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
  if (channel->is_early_and_active()) [[unlikely]]
    batch = nullptr;
  if (sends && batch == nullptr) channel->drive_send();
  if (sends && batch != nullptr) batch->send(channel);
  if (receives && batch == nullptr) channel->drive_recv();
  if (receives && batch != nullptr) batch->receive(channel);
}

bool sends(const Channel& channel) { return channel.sending() || channel.awaits_kernel(); }

// Asks for all active channels at once, and drives those that can move.
// Returns whether there are early ones.
bool drive_ready(Instance* self) {
  nfds_t count = 0;
  bool any_early = false;
  bool any_unread = false;
  for (Channel* channel = self->active; channel != nullptr; channel = channel->next_active) {
    // Each by itself: what is to be waited for is not its own connection.
    if (channel->is_early_and_active()) [[unlikely]] {
      drive(nullptr, channel, sends(*channel), channel->receiving());
      if (channel->is_early_and_active()) {
        any_early = true;
        continue;
      }
    }
    if (sends(*channel)) {
      const short events = channel->sending() ? POLLOUT : 0;  // the kernel's word is always told of
      self->entries[count++] = {channel->send_stream().fd(), events, 0};
    }
    if (!channel->receiving()) continue;
    // What TLS has decrypted already, poll does not see.
    if (channel->recv_stream().has_unread()) any_unread = true;
    self->entries[count++] = {channel->recv_stream().fd(), POLLIN, 0};
  }
  const int ready = poll(self->entries.data(), count, 0);
  if (ready <= 0 && !any_unread) return any_early;
  const pollfd* entry = self->entries.data();
  for (Channel* channel = self->active; channel != nullptr; channel = channel->next_active) {
    if (channel->is_early_and_active()) [[unlikely]]
      continue;
    const bool can_send = sends(*channel) && (entry++)->revents != 0;
    const bool can_receive =
        channel->receiving() && ((entry++)->revents != 0 || channel->recv_stream().has_unread());
    drive(self->batch.get(), channel, can_send, can_receive);
  }
  return any_early;
}

// What became of rails since the last time is told; those that are down are brought back.
void look_after_rails(Instance* self, uint32_t peer, Bundle* bundle) {
  const uint32_t news = bundle->take_news();
  for (uint32_t rail = 0; news != 0 && rail < bundle->rail_count(); ++rail) {
    if ((news >> rail & 1) == 0 || bundle->left() || bundle->lost()) continue;
    self->report.log(Report::kWarning, "tcp: rail " + text_of(rail) + " to rank " + text_of(peer) +
                                           " was taken out (" + bundle->down_reason(rail) +
                                           "); its messages go over the others");
  }
  if (bundle->any_down() || bundle->needs_rails()) self->rejoin->step(monotonic_ns());
}

weir_result_t progress_rails(Instance* self) {
  weir_result_t result = WEIR_OK;
  for (size_t i = 0; i < self->active_bundles.size();) {
    const uint32_t peer = self->active_bundles[i];
    Bundle* bundle = self->bundles[peer].get();
    bundle->drive();
    look_after_rails(self, peer, bundle);
    for (uint32_t lane = 0; lane < kLaneCount; ++lane) {
      for (const bool is_send : {true, false}) {
        const Failure& failure = is_send ? bundle->send_failure(lane) : bundle->recv_failure(lane);
        if (failure.result != WEIR_OK && !failure.reported)
          result = tell(self, peer, lane, is_send);
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

// A bundle that has nothing is looked after, too: what its peer was told last may have been lost
// with a rail, and is told again when that is seen.
void look_after_idle_bundles(Instance* self) {
  constexpr uint32_t kCallsPerClock = 64;
  if (++self->progress_calls % kCallsPerClock != 0) return;
  const uint64_t now_ns = monotonic_ns();
  if (now_ns - self->looked_ns < Bundle::kLookNs) return;
  self->looked_ns = now_ns;
  for (uint32_t peer = 0; peer < self->bundles.size(); ++peer) {
    const Bundle* bundle = self->bundles[peer].get();
    if (bundle != nullptr && !bundle->active) activate(self, peer);
  }
}

weir_result_t progress(weir_transport_t* instance) {
  Instance* self = from(instance);
  if (self->rejoin != nullptr) look_after_idle_bundles(self);
  weir_result_t result = self->active_bundles.empty() ? WEIR_OK : progress_rails(self);
  // What was under way for rails whose peer has died in the meantime ends, too.
  if (self->rejoin != nullptr && self->joiner->is_busy()) [[unlikely]] {
    self->rejoin->step(monotonic_ns());
  }
  const bool directly = self->active_count <= kDirectMax;
  Batch* batch = self->io_wish == IoWish::kUring ? self->batch.get() : nullptr;
  bool any_early = directly ? false : drive_ready(self);
  for (Channel* channel = self->active; directly && channel != nullptr;
       channel = channel->next_active) {
    drive(batch, channel, sends(*channel), channel->receiving());
    any_early = any_early || channel->is_early_and_active();
  }
  if (self->batch != nullptr) self->batch->flush();
  if (self->lazy != nullptr && (any_early || self->lazy->is_due())) [[unlikely]] {
    self->lazy->step(monotonic_ns());
  }
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

// What the peers' hosts take soon still leaves; a connection whose memory is not given back by then is
// broken off. They have been told before why (plugin.h).
void quiesce(weir_transport_t* instance) {
  Instance* self = from(instance);
  const uint64_t patience_ns = monotonic_ns() + kQuiescePatienceNs;
  for (Channel& channel : self->channels) {
    if (!channel.recall(patience_ns)) {
      self->report.log(Report::kWarning,
                       "tcp: a network interface holds memory of a send that was given up");
    }
    channel.active = false;
  }
  self->active = nullptr;
  self->active_count = 0;
  for (const std::unique_ptr<Bundle>& bundle : self->bundles) {
    if (bundle == nullptr) continue;
    bundle->quiesce();
    bundle->active = false;
  }
  self->active_bundles.clear();
}

weir_result_t peer_alive(weir_transport_t* instance, uint32_t peer) {
  Instance* self = from(instance);
  if (!self->joined || peer >= self->identity.rank_count) {
    return self->report.fail(
        WEIR_ERROR_INVALID_ARGUMENT,
        "tcp: peer_alive of rank " + text_of(peer) + " of " + text_of(self->identity.rank_count));
  }
  if (Bundle* bundle = self->bundles[peer].get(); bundle != nullptr) {
    bundle->listen();
    if (bundle->left() || !bundle->lost()) return WEIR_OK;
    return self->report.fail(WEIR_ERROR_PEER_LOST, "tcp: rank " + text_of(peer) +
                                                       " is dead: all rails to it ended without a "
                                                       "goodbye");
  }
  Control& control = self->controls[peer];
  control.receive();
  // A goodbye leaves before any connection ends, but may take longer on its way.
  const bool without_goodbye = control.lane_ended_ns != 0 && !control.left() &&
                               monotonic_ns() - control.lane_ended_ns > kGoodbyePatienceNs;
  if (!control.lost() && !without_goodbye) return WEIR_OK;
  return self->report.fail(
      WEIR_ERROR_PEER_LOST,
      "tcp: rank " + text_of(peer) + " is dead: its connections ended without a goodbye");
}

void send_notice(Instance* self) {
  self->notice_waits = false;
  self->for_each_control([self](Control& control) {
    const bool left = control.send(self->notice, self->notice_bytes, self->notice_version);
    self->notice_waits = self->notice_waits || !left;
  });
}

weir_result_t notice_show(weir_transport_t* instance, const void* notice, size_t bytes) {
  Instance* self = from(instance);
  if (!self->joined) return self->report.fail(WEIR_ERROR_INVALID_USAGE, "tcp: not connected");
  if (bytes > kNoticeBytesMax) {
    return self->report.fail(
        WEIR_ERROR_INVALID_ARGUMENT,
        "tcp: a notice of " + text_of(bytes) + " bytes; there may be " + text_of(kNoticeBytesMax));
  }
  if (bytes != 0) memcpy(self->notice, notice, bytes);
  self->notice_bytes = bytes;
  ++self->notice_version;
  send_notice(self);
  return WEIR_OK;
}

weir_result_t notice_read(weir_transport_t* instance, uint32_t peer, void* notice, size_t* bytes) {
  Instance* self = from(instance);
  if (!self->joined || peer >= self->identity.rank_count) {
    return self->report.fail(
        self->joined ? WEIR_ERROR_INVALID_ARGUMENT : WEIR_ERROR_INVALID_USAGE,
        "tcp: notice_read of rank " + text_of(peer) + " of " + text_of(self->identity.rank_count));
  }
  if (peer == self->identity.rank) {
    memcpy(notice, self->notice, self->notice_bytes);
    *bytes = self->notice_bytes;
    return WEIR_OK;
  }
  if (Bundle* bundle = self->bundles[peer].get(); bundle != nullptr) {
    bundle->listen();
    if (self->notice_waits) send_notice(self);
    // A rail that has come back has not carried it yet.
    for (uint32_t rail = 0; rail < bundle->rail_count(); ++rail) {
      (void)bundle->control(rail).send(self->notice, self->notice_bytes, self->notice_version);
    }
    const Control& latest = bundle->latest_notice();
    memcpy(notice, latest.notice(), latest.notice_bytes());
    *bytes = latest.notice_bytes();
    return bundle->notice_arrived() ? WEIR_OK : WEIR_IN_PROGRESS;
  }
  Control& control = self->controls[peer];
  control.receive();
  if (self->notice_waits) send_notice(self);
  memcpy(notice, control.notice(), control.notice_bytes());
  *bytes = control.notice_bytes();
  return control.arrived() ? WEIR_OK : WEIR_IN_PROGRESS;
}

void describe_peer(weir_transport_t* instance, uint32_t peer, char* text, size_t text_bytes) {
  const Instance& self = *from(instance);
  std::string way;
  if (peer < self.ways.size()) way = self.ways[peer];
  if (!way.empty() && self.bundles[peer] != nullptr) {
    const Bundle& bundle = *self.bundles[peer];
    way += "; large sends copied: over several rails";
    if (bundle.resting_count() > 0) {
      way += "; " + text_of(bundle.rail_count() - bundle.resting_count()) + " of " +
             text_of(bundle.rail_count()) + " rails needed so far";
    }
  } else if (!way.empty()) {
    // Of the lane that has tried most; the way is the same for all.
    const Channel* lanes = &self.channels[size_t{peer} * kLaneCount];
    const Channel* known = lanes;
    for (const Channel* lane = lanes; lane < lanes + kLaneCount; ++lane) {
      if (lane->zero_copy().knows() && !known->zero_copy().knows()) known = lane;
    }
    way += "; large sends " + known->zero_copy().describe();
    const auto early = std::count_if(lanes, lanes + kLaneCount,
                                     [](const Channel& lane) { return lane.is_early(); });
    if (early > 0) {
      way += "; " + text_of(kLaneCount - static_cast<uint64_t>(early)) + " of " +
             text_of(kLaneCount) + " lanes needed a connection so far";
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
    .caps = {.bits = WEIR_CAP_SEND_RECV | WEIR_CAP_PEER_FAILURE | WEIR_CAP_SELF | WEIR_CAP_NOTICE |
                     WEIR_CAP_QUIESCE | WEIR_CAP_SEALED,
             .memory_kinds = WEIR_MEMORY_HOST,
             .lane_count = kLaneCount,
             .message_bytes_max = kMessageBytesMax,
             .rank_count_max = kRankCountMax,
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
    .segment = nullptr,
    .window_open = nullptr,
    .window_close = nullptr,
    .peer_alive = peer_alive,
    .notice_show = notice_show,
    .notice_read = notice_read,
    .quiesce = quiesce,
    .describe_peer = describe_peer,
    .peer_leave = peer_leave,
};
static_assert(kNoticeBytesMax == WEIR_TRANSPORT_NOTICE_BYTES_MAX);

}  // namespace

const weir_transport_functions_t* transport() { return &kFunctions; }

}  // namespace weir::plugins::tcp
