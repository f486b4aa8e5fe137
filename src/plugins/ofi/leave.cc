// SPDX-License-Identifier: Apache-2.0
// How an instance ends in order. A send that has completed may still lie in the provider's own
// queues, which end with the endpoint; so a rank that leaves says how much it has sent, and stays,
// making progress, until each peer has received it, has left too, or has ended; for a bounded time,
// since a peer may be busy elsewhere.
//
// A rank that leaves with operations in flight does not stay.
#include <time.h>

#include "plugins/ofi/instance.h"

namespace weir::plugins::ofi {
namespace {

constexpr uint64_t kStayNs = 500'000'000;
constexpr int kGiveBackPolls = 1000;

}  // namespace

Instance::~Instance() {
  // A forked child has copies of what is its parent's to end: the provider's objects are left as
  // they are, since closing them would speak to the peers.
  if (owner_ != getpid()) {
    (void)endpoint_.release();
    return;
  }
  if (joined_) leave();
  endpoint_.reset();
  for (uint32_t peer = 0; controls_ != nullptr && peer < identity_.rank_count; ++peer) {
    if (peer != identity_.rank) mesh_->leave(peer, {});
  }
}

void Instance::quiesce() {
  if (endpoint_ == nullptr) return;
  broken_ = true;  // nothing is moved or posted any more
  waiting_ = nullptr;
  for (Channel& channel : channels_) {
    channel.send.drop();
    channel.recv.drop();
  }
  endpoint_.reset();
  one_sided_ = OneSided();
}

// The provider gives back at once what it has not begun with.
weir_result_t Instance::peer_leave(uint32_t peer) {
  if (!joined_ || peer >= identity_.rank_count || peer == identity_.rank) {
    return report_.fail(joined_ ? WEIR_ERROR_INVALID_ARGUMENT : WEIR_ERROR_INVALID_USAGE,
                        "peer_leave of rank " + text_of(peer) + " of " +
                            text_of(identity_.rank_count) + " by rank " + text_of(identity_.rank));
  }
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
  return report_.fail(WEIR_ERROR_UNSUPPORTED,
                      "provider " + endpoint_->provider() + " has begun with messages of rank " +
                          text_of(peer) + " and lets go of their buffers only when it ends");
}

void Instance::leave() {
  const uint32_t n = identity_.rank_count;
  // What has been signalled is still to arrive, and is not counted by the goodbye.
  const uint64_t signals_end_ns = now_ns() + kStayNs;
  while (!broken_ && one_sided_.idle() && endpoint_->signals_under_way() != 0 &&
         now_ns() < signals_end_ns) {
    if (pump() == 0) look_at_controls();
  }
  for (uint32_t peer = 0; peer < n; ++peer) {
    if (peer == identity_.rank) continue;
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
      if (peer == identity_.rank) continue;
      look_at(peer);
      const Control& control = controls_[peer];
      const bool done =
          control.left() || control.ended() || control.taken() || peers_[peer].handled_loss;
      all = all && done && !(control.sending() && !control.ended());
    }
    if (all || broken_ || now_ns() >= end_ns) return;
    const timespec pause = {0, 20'000};
    nanosleep(&pause, nullptr);
  }
}

}  // namespace weir::plugins::ofi
