// SPDX-License-Identifier: Apache-2.0
// How an instance ends in order. A send that has completed may still lie in the provider's own
// queues, which end with the endpoint; so a rank that leaves tells each peer with which it has
// exchanged messages how much it has sent, and stays, making progress, until each of them has
// received it, has left too, or has ended; for a bounded time, since a peer may be busy elsewhere.
// Other peers learn from the control network that it has left.
//
// A rank that leaves with operations in flight does not stay.
#include <time.h>

#include "plugins/ofi/instance.h"

namespace weir::plugins::ofi {
namespace {

constexpr uint64_t kStayNs = 500'000'000;
constexpr uint64_t kFlushNs = 300'000'000;
constexpr int kGiveBackPolls = 1000;
// Of operations that were given up: a peer that makes no progress any more cannot end them.
constexpr uint64_t kGivenUpNs = 200'000'000;

}  // namespace

Instance::~Instance() {
  // Only its parent may end what a forked child has copies of: the provider's objects are left as
  // they are, since closing them would send to the peers.
  if (owner != getpid()) {
    (void)endpoint_.release();
    return;
  }
  if (joined) leave();
  const bool had_endpoint = endpoint_ != nullptr;
  end_endpoint();
  if (controls_ == nullptr) return;
  if (!joined) {
    control.give_up(had_endpoint);
    return;
  }
  const uint64_t deadline_ns = now_ns() + kFlushNs;
  for (uint32_t peer = 0; peer < rank_count; ++peer) {
    if (!controls_[peer].said_goodbye()) continue;
    controls_[peer].say(Kind::kEnded);
    control.flush(peer, deadline_ns);
  }
}

// Beyond the first message of a start.
bool Instance::has_exchanged_with(uint32_t peer) const {
  for (uint32_t lane = 0; lane < kLaneCount; ++lane) {
    const Channel& channel = channels_[peer * kLaneCount + lane];
    const uint64_t first = lane == 0 ? 1 : 0;
    if (channel.send.numbered() > first || channel.recv.numbered() > first) return true;
  }
  return false;
}

void Instance::quiesce() {
  if (endpoint_ == nullptr) return;
  broken_ = true;  // nothing is moved or posted any more
  waiting_ = nullptr;
  for (Channel& channel : channels_) {
    channel.send.drop();
    channel.recv.drop();
  }
  end_endpoint();
  one_sided_ = OneSided();
}

// The objects of an endpoint that cannot be closed are left as they are: without calls of this
// rank, a provider whose progress is manual does nothing.
void Instance::end_endpoint() {
  if (endpoint_ == nullptr) return;
  const bool is_free = endpoint_->end_operations(now_ns() + kGivenUpNs);
  if (!is_free && !endpoint_->progresses_alone()) (void)endpoint_.release();
  endpoint_.reset();
}

// The provider gives back at once the operations that it has not begun.
weir_result_t Instance::peer_leave(uint32_t peer) {
  const weir_result_t checked = check_peer("peer_leave", peer, false);
  if (checked != WEIR_OK) return checked;
  if (endpoint_ == nullptr) return WEIR_OK;
  // fi_cancel gives back receives only.
  const auto sends = [&] {
    uint32_t count = 0;
    for (uint32_t lane = 0; lane < kLaneCount; ++lane) {
      count += channels_[peer * kLaneCount + lane].send.under_way;
    }
    return count;
  };
  for (int i = 0; i < kGiveBackPolls && sends() != 0; ++i) pump();
  if (sends() == 0) {
    if (!peers_[peer].handled_loss) lose(peer);
    for (int i = 0; i < kGiveBackPolls && endpoint_->forgotten_count() != 0; ++i) pump();
    if (endpoint_->forgotten_count() == 0 && !broken_) return WEIR_OK;
  }
  return report.fail(WEIR_ERROR_UNSUPPORTED,
                     "provider " + endpoint_->provider() +
                         " still uses buffers of messages with rank " + text_of(peer) +
                         ", and releases them only when its endpoint is closed");
}

void Instance::leave() {
  const uint32_t n = rank_count;
  // Signals may still be on their way, and the goodbye does not count them.
  const uint64_t signals_end_ns = now_ns() + kStayNs;
  while (!broken_ && one_sided_.idle() && endpoint_->signals_under_way() != 0 &&
         now_ns() < signals_end_ns) {
    if (pump() == 0) look_at_controls();
  }
  for (uint32_t peer = 0; peer < n; ++peer) {
    if (peer == rank || !has_exchanged_with(peer)) continue;
    Goodbye goodbye;
    for (uint32_t lane = 0; lane < kLaneCount; ++lane) {
      const Channel& channel = channels_[peer * kLaneCount + lane];
      goodbye.sent[lane] = channel.send.done();
      goodbye.received[lane] = channel.recv.done();
    }
    controls_[peer].say_goodbye(goodbye);
  }
  for (const Channel& channel : channels_) {
    if (!channel.send.empty() || !channel.recv.empty()) return;
  }
  if (!one_sided_.idle()) return;
  const uint64_t end_ns = now_ns() + kStayNs;
  for (;;) {
    pump();
    bool all = true;
    for (uint32_t peer = 0; peer < n; ++peer) {
      const Control& its_control = controls_[peer];
      if (!its_control.said_goodbye()) continue;
      look_at(peer);
      all = all && (its_control.left() || its_control.ended() || its_control.taken() ||
                    peers_[peer].handled_loss);
    }
    if (all || broken_ || now_ns() >= end_ns) return;
    const timespec pause = {0, 20'000};
    nanosleep(&pause, nullptr);
  }
}

}  // namespace weir::plugins::ofi
