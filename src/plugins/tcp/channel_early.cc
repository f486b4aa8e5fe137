// SPDX-License-Identifier: Apache-2.0
// What a channel does while it has no connection, and how it comes to use the one that it gets.
#include <utility>

#include "plugins/tcp/channel.h"

namespace weir::plugins::tcp {

void Channel::connect(Stream stream) {
  data_ = stream;
  prelude_->begin(lane_);
  send_early();
  // What came early is taken by receives first.
  if (receives_early()) receive_early();
}

void Channel::give_up(weir_result_t result, int error_number) {
  given_up_.result = result;
  given_up_.error_number = error_number;
  if (sends_early()) send_early();
  if (receives_early()) receive_early();
}

// Sends complete here in the order of posting, since nothing of them is the kernel's. The number of its
// frame, plus one, stands in the words of one that has begun.
void Channel::send_early() {
  if (send_.failure.result != WEIR_OK) return;
  control_->flush();
  while (unsent_ != nullptr) {
    Op* op = unsent_;
    if (op->done_bytes == 0) {
      uint32_t number = 0;
      if (!prelude_->may_send(lane_, op->bytes) ||
          !control_->send_early(lane_, reinterpret_cast<const void*>(op->data), op->bytes,
                                &number)) {
        break;
      }
      op->done_bytes = uint64_t{number} + 1;
    }
    if (!control_->has_left(static_cast<uint32_t>(op->done_bytes - 1))) break;
    unsent_ = next_of(op);
    finish_head(&send_);
  }
  if (unsent_ != nullptr || prelude_->sent_count(lane_) >= Prelude::kFewCount) {
    want();
  }
  const bool in_frame = unsent_ != nullptr && unsent_->done_bytes != 0;
  if (data_.is_open() && !in_frame && prelude_->began(lane_) && !control_->waits()) {
    out_ = data_;
    if (out_.is_secured()) {
      zero_copy_.turn_off("inside TLS");
    } else {
      zero_copy_.attach(out_.fd(), wish_);
    }
    return settle_early();
  }
  if (unsent_ == nullptr) return;
  control_->receive();
  if (given_up_.result != WEIR_OK) return fail(&send_, given_up_.result, given_up_.error_number);
  if (control_->left() || control_->lost()) fail(&send_, WEIR_ERROR_PEER_LOST, 0);
}

void Channel::take_early() {
  while (recv_.head != nullptr && prelude_->has_message(lane_)) {
    Op* op = recv_.head;
    const uint64_t bytes = prelude_->message_bytes(lane_);
    if (bytes != op->bytes) {
      recv_.failure.sent_bytes = bytes;
      recv_.failure.expected_bytes = op->bytes;
      return fail(&recv_, WEIR_ERROR_MISMATCH, 0);
    }
    prelude_->take(lane_, reinterpret_cast<void*>(op->data));
    finish_head(&recv_);
  }
}

void Channel::receive_early() {
  if (recv_.failure.result != WEIR_OK) return;
  take_early();
  control_->receive();
  take_early();
  control_->flush();
  if (recv_.failure.result != WEIR_OK) return;
  const bool goes_on = prelude_->peer_began(lane_);
  if (goes_on && data_.is_open() && !prelude_->has_message(lane_)) {
    in_ = data_;
    return settle_early();
  }
  if (recv_.head == nullptr) return;
  if (given_up_.result != WEIR_OK) return fail(&recv_, given_up_.result, given_up_.error_number);
  if (recv_.head->bytes > kEarlyBytesMax) want();
  // What the peer has sent on the connection before it left arrives when that is proven here, too.
  if (!goes_on && (control_->left() || control_->lost())) fail(&recv_, WEIR_ERROR_PEER_LOST, 0);
}

void Channel::want() {
  if (prelude_->want(lane_)) control_->flush();
}

void Channel::settle_early() {
  if (!out_.is_open() || !in_.is_open()) return;
  data_ = Stream();
  prelude_ = nullptr;
}

}  // namespace weir::plugins::tcp
