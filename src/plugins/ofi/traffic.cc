// SPDX-License-Identifier: Apache-2.0
// The messages of an instance, and what becomes of them when a peer ends.
#include <rdma/fi_errno.h>

#include "plugins/ofi/instance.h"

namespace weir::plugins::ofi {
namespace {

// Operations of a direction of a channel that the provider may have, so that no channel takes all
// of its room. Far below the 2^16 numbers of a tag.
constexpr uint32_t kUnderWayMax = 16;
// Polls that find nothing between two checks of the peers' state.
constexpr uint32_t kIdlePumps = 1024;
// How long a message behind the end of a peer that has said goodbye may be waited for.
constexpr uint64_t kLateNs = 2'000'000'000;

}  // namespace

// The channel to a peer, or null with the error reported.
Channel* Instance::channel_of(uint32_t peer, uint32_t lane) {
  const bool is_there = check_lane(peer, lane, kLaneCount) == WEIR_OK;
  return is_there ? &channels_[peer * kLaneCount + lane] : nullptr;
}

weir_result_t Instance::send(uint32_t peer, uint32_t lane, const void* data, uint64_t bytes,
                             Op* op) {
  Channel* channel = channel_of(peer, lane);
  if (channel == nullptr) return joined ? WEIR_ERROR_INVALID_ARGUMENT : WEIR_ERROR_INVALID_USAGE;
  op->data = static_cast<unsigned char*>(const_cast<void*>(data));
  op->bytes = bytes;
  op->is_send = 1;
  op->region = nullptr;
  return post(channel, op);
}

weir_result_t Instance::recv(uint32_t peer, uint32_t lane, void* data, uint64_t bytes, Op* op) {
  Channel* channel = channel_of(peer, lane);
  if (channel == nullptr) return joined ? WEIR_ERROR_INVALID_ARGUMENT : WEIR_ERROR_INVALID_USAGE;
  op->data = static_cast<unsigned char*>(data);
  op->bytes = bytes;
  op->is_send = 0;
  op->region = nullptr;
  return post(channel, op);
}

std::string Instance::device_gap() const {
  if (!joined || endpoint_ == nullptr) return "not connected";
  if (!uses_cuda_) {
    return "the process had not loaded CUDA's driver (libcuda.so.1) when the communicator was made";
  }
  return endpoint_->takes_devices() ? ""
                                    : "provider " + endpoint_->provider() +
                                          " does not support device memory here (FI_HMEM)";
}

weir_result_t Instance::device_message(bool sending, uint32_t peer, uint32_t lane, void* data,
                                       uint64_t bytes, int device, Op* op) {
  Channel* channel = channel_of(peer, lane);
  if (channel == nullptr) return joined ? WEIR_ERROR_INVALID_ARGUMENT : WEIR_ERROR_INVALID_USAGE;
  const std::string gap = device_gap();
  if (!gap.empty()) return report.fail(WEIR_ERROR_UNSUPPORTED, gap);
  op->data = static_cast<unsigned char*>(data);
  op->bytes = bytes;
  op->is_send = sending ? 1 : 0;
  if (!endpoint_->place(op, device)) {
    *op = {};
    return report.fail(WEIR_ERROR_UNSUPPORTED, endpoint_->reason());
  }
  const weir_result_t result = post(channel, op);
  if (result != WEIR_OK && result != WEIR_IN_PROGRESS) endpoint_->displace(op);
  return result;
}

weir_result_t Instance::post(Channel* channel, Op* op) {
  Direction& direction = channel->direction(*op);
  if (broken_) [[unlikely]]
    return broken();
  if (op->bytes > kMessageBytesMax || op->bytes > endpoint_->message_bytes_max()) [[unlikely]] {
    return report.fail(WEIR_ERROR_INVALID_ARGUMENT, "a message of " + text_of(op->bytes) +
                                                        " bytes; provider " +
                                                        endpoint_->provider() + " moves at most " +
                                                        text_of(endpoint_->message_bytes_max()));
  }
  op->channel = channel;
  op->state = kOpPending;
  op->posted = 0;
  if (direction.failure().result == WEIR_OK && op->is_send == 0 &&
      direction.numbered() >= channel->recv_limit) [[unlikely]] {
    direction.set_failure({.result = WEIR_ERROR_PEER_LOST, .closed = true, .reason = ""});
  }
  if (direction.failure().result != WEIR_OK) [[unlikely]] {
    op->state = kOpFailed + static_cast<uint64_t>(direction.failure().result);
    return tell(*channel, *op);
  }
  const bool in_turn = direction.unposted() == nullptr;
  direction.append(op);
  if (in_turn && direction.under_way < kUnderWayMax) {
    post_waiting(&direction, channel);
    if (op->state == kOpDone) return WEIR_OK;
    if (op->state >= kOpFailed) return tell(*channel, *op);
  }
  if (direction.unposted() != nullptr) wait_with(channel);
  return WEIR_IN_PROGRESS;
}

// Gives the provider what it takes, in order.
void Instance::post_waiting(Direction* direction, Channel* channel) {
  while (Op* op = direction->unposted()) {
    if (direction->under_way >= kUnderWayMax) return;
    if (!post_to_provider(channel, direction, op)) return;
  }
}

// False: nothing more can be posted on this direction now.
bool Instance::post_to_provider(Channel* channel, Direction* direction, Op* op) {
  const bool is_send = op->is_send != 0;
  const uint32_t peer = channel->peer;
  const uint64_t tag =
      is_send
          ? make_tag(endpoint_->token_mask(), peers_[peer].token, channel->lane, rank, op->number)
          : make_tag(endpoint_->token_mask(), own_token_, channel->lane, peer, op->number);
  const Posted posted = is_send ? endpoint_->send(peer, tag, op) : endpoint_->recv(tag, op);
  switch (posted) {
    case Posted::kUnderWay:
      direction->took_unposted();
      ++direction->under_way;
      return true;
    case Posted::kComplete:
      direction->took_unposted();
      direction->moved(op);
      return true;
    case Posted::kFull:
      return false;
    case Posted::kFailed:
      break;
  }
  fail_from(channel, op, {.result = WEIR_ERROR_PEER_LOST, .reason = endpoint_->reason()});
  return false;
}

void Instance::wait_with(Channel* channel) {
  if (channel->waiting) return;
  channel->waiting = true;
  channel->next_waiting = waiting_;
  waiting_ = channel;
}

void Instance::drive_waiting() {
  Channel** link = &waiting_;
  while (*link != nullptr) {
    Channel* channel = *link;
    post_waiting(&channel->recv, channel);
    post_waiting(&channel->send, channel);
    if (channel->send.unposted() == nullptr && channel->recv.unposted() == nullptr) {
      channel->waiting = false;
      *link = channel->next_waiting;
    } else {
      link = &channel->next_waiting;
    }
  }
}

int Instance::pump() {
  if (broken_) return 0;
  Completion completions[Endpoint::kPollMax];
  const int count = endpoint_->poll(completions);
  if (count < 0) {
    broken_ = true;
    return 0;
  }
  for (int i = 0; i < count; ++i) settle(completions[i]);
  one_sided_.drive();
  if (waiting_ != nullptr) drive_waiting();
  if (count == 0 && ++idle_pumps_ >= kIdlePumps) look_at_controls();
  return count;
}

void Instance::settle(const Completion& completion) {
  if (completion.remote != nullptr) return one_sided_.settle(completion);
  Op* op = completion.op;
  // One that completed together with it has failed both.
  if (op->state != kOpPending) return;
  Channel* channel = op->channel;
  Direction& direction = channel->direction(*op);
  --direction.under_way;
  if (completion.error == 0 && (op->is_send != 0 || completion.bytes == op->bytes)) {
    direction.moved(op);
    return;
  }
  Failure failure;
  if (completion.error == 0 || completion.error == FI_ETRUNC) {
    failure.result = WEIR_ERROR_MISMATCH;
    failure.sent_bytes = completion.bytes;
    failure.sent_bytes_known = completion.bytes_known;
    failure.expected_bytes = op->bytes;
  } else {
    failure.result = WEIR_ERROR_PEER_LOST;
    failure.reason = endpoint_->reason();
  }
  op->posted = 0;  // the provider has it no more
  fail_from(channel, op, failure);
}

void Instance::fail_from(Channel* channel, Op* op, Failure failure) {
  Direction& direction = channel->direction(*op);
  if (failure.result == WEIR_ERROR_PEER_LOST && !failure.closed && channel->peer != rank) {
    // A goodbye leaves before the endpoint closes. A peer that has closed it without one may have
    // died, which the control network reports, or may have failed and still live.
    Control& its_control = controls_[channel->peer];
    its_control.drive();
    failure.closed = its_control.left();
  }
  for (Op* at = op; at != nullptr; at = at->next) endpoint_->displace(at);
  direction.fail_from(op, failure, [&](Op* abandoned) {
    endpoint_->forget(abandoned);
    --direction.under_way;
  });
}

weir_result_t Instance::test(Op* op) {
  if (op->state == kOpPending || op->state == kOpMoved) pump();
  if (op->state == kOpDone) return WEIR_OK;
  if (op->state == kOpPending || op->state == kOpMoved) {
    return broken_ ? broken() : WEIR_IN_PROGRESS;
  }
  if ((op->state & kRemoteWaits) != 0) {
    const auto* remote = reinterpret_cast<const RemoteOp*>(op);
    if (is_under_way(*remote)) pump();
    if (op->state == kOpDone) return WEIR_OK;
    if (is_under_way(*remote)) return broken_ ? broken() : WEIR_IN_PROGRESS;
    return one_sided_.outcome(*remote);
  }
  if (op->state > kOpFailed) return tell(*op->channel, *op);
  return report.fail(WEIR_ERROR_INVALID_USAGE, "test of an operation never posted");
}

weir_result_t Instance::progress() {
  constexpr int kBurst = 4;
  for (int i = 0; i < kBurst; ++i) {
    if (pump() < static_cast<int>(Endpoint::kPollMax)) break;
  }
  return broken_ ? broken() : WEIR_OK;
}

weir_result_t Instance::broken() const {
  return report.fail(WEIR_ERROR_SYSTEM,
                     endpoint_ != nullptr ? endpoint_->reason() : "the instance was quiesced");
}

// Names the parties of a failed operation.
weir_result_t Instance::tell(const Channel& channel, const Op& op) {
  const bool is_send = op.is_send != 0;
  const Failure& failure = is_send ? channel.send.failure() : channel.recv.failure();
  const std::string peer = text_of(channel.peer);
  const std::string me = text_of(rank);
  const std::string lane = " (lane " + text_of(channel.lane) + ")";
  if (failure.result == WEIR_ERROR_MISMATCH) {
    return report.fail(
        failure.result,
        "rank " + peer + " sent a message of " +
            (failure.sent_bytes_known ? text_of(failure.sent_bytes)
                                      : "more than " + text_of(failure.expected_bytes)) +
            " bytes where rank " + me + " expected " + text_of(failure.expected_bytes) + lane);
  }
  std::string how = failure.closed           ? "has closed the communicator"
                    : failure.reason.empty() ? "was lost: it ended without a goodbye"
                                             : "was lost: " + failure.reason;
  return report.fail(failure.result,
                     "rank " + peer + " " + how +
                         (is_send ? ", while rank " + me + " sent to it"
                                  : ", while rank " + me + " waited for a message") +
                         lane);
}

void Instance::look_at_controls() {
  idle_pumps_ = 0;
  for (uint32_t peer = 0; peer < rank_count; ++peer) look_at(peer);
}

void Instance::look_at(uint32_t peer) {
  if (peer == rank) return;
  Control& its_control = controls_[peer];
  PeerState& state = peers_[peer];
  its_control.drive();
  if (its_control.left()) {
    if (!state.handled_goodbye) take_goodbye(peer);
    if (!state.said_taken && has_taken_all(peer)) {
      state.said_taken = true;
      its_control.say(Kind::kTaken);
    }
    // The last messages that it sent stay with the provider until they are received, however late.
    if (!its_control.ended() || !awaits(peer)) {
      state.awaited_ns = 0;
    } else if (state.awaited_ns == 0) {
      state.awaited_ns = now_ns();
    }
    const bool late = state.awaited_ns != 0 && now_ns() - state.awaited_ns > kLateNs;
    if (late && !state.handled_loss) lose(peer);
  } else if (its_control.lost() && !state.handled_loss) {
    lose(peer);
  }
}

bool Instance::has_left(uint32_t peer) const {
  return peer != rank && (controls_[peer].left() || controls_[peer].ended());
}

bool Instance::ends_behind_error(uint32_t peer, bool is_end) {
  if (peer == rank) return is_end;
  Control& its_control = controls_[peer];
  its_control.drive();
  return its_control.left() || its_control.ended() || is_end;
}

void Instance::lose(uint32_t peer) {
  peers_[peer].handled_loss = true;
  if (endpoint_ == nullptr) return;
  one_sided_.abandon(peer);
  const bool closed = controls_[peer].left();
  for (uint32_t lane = 0; lane < kLaneCount; ++lane) {
    Channel& channel = channels_[peer * kLaneCount + lane];
    for (Direction* direction : {&channel.send, &channel.recv}) {
      const Failure failure = {.result = WEIR_ERROR_PEER_LOST, .closed = closed, .reason = ""};
      if (direction->failure().result == WEIR_OK) direction->set_failure(failure);
      if (!direction->empty()) fail_from(&channel, direction->head(), failure);
    }
  }
}

// Messages that the peer has received count as sent, whatever the provider still waits for; the
// others are never received; messages that the peer has sent still arrive.
void Instance::take_goodbye(uint32_t peer) {
  peers_[peer].handled_goodbye = true;
  if (endpoint_ == nullptr) return;
  one_sided_.abandon(peer);  // its memory has gone with it
  const Goodbye& goodbye = controls_[peer].goodbye();
  for (uint32_t lane = 0; lane < kLaneCount; ++lane) {
    Channel& channel = channels_[peer * kLaneCount + lane];
    Direction& send = channel.send;
    while (Op* op = send.head()) {
      if (op->number >= goodbye.received[lane] || op->posted == 0) break;
      if (op->state == kOpPending) {
        endpoint_->forget(op);
        --send.under_way;
      }
      send.moved(op);
    }
    const Failure closed = {.result = WEIR_ERROR_PEER_LOST, .closed = true, .reason = ""};
    if (send.failure().result == WEIR_OK) send.set_failure(closed);
    if (!send.empty()) fail_from(&channel, send.head(), closed);
    channel.recv_limit = goodbye.sent[lane];
    for (Op* op = channel.recv.head(); op != nullptr; op = op->next) {
      if (op->number < channel.recv_limit) continue;
      fail_from(&channel, op, closed);
      break;
    }
  }
}

bool Instance::awaits(uint32_t peer) const {
  for (uint32_t lane = 0; lane < kLaneCount; ++lane) {
    if (!channels_[peer * kLaneCount + lane].recv.empty()) return true;
  }
  return false;
}

bool Instance::has_taken_all(uint32_t peer) const {
  const Goodbye& goodbye = controls_[peer].goodbye();
  for (uint32_t lane = 0; lane < kLaneCount; ++lane) {
    if (channels_[peer * kLaneCount + lane].recv.done() < goodbye.sent[lane]) return false;
  }
  return true;
}

weir_result_t Instance::peer_alive(uint32_t peer) {
  const weir_result_t checked = check_peer("peer_alive", peer, true);
  if (checked != WEIR_OK || peer == rank) return checked;
  look_at(peer);
  return controls_[peer].lost() ? is_dead(peer) : WEIR_OK;
}

}  // namespace weir::plugins::ofi
