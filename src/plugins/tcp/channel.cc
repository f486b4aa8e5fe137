// SPDX-License-Identifier: Apache-2.0
#include "plugins/tcp/channel.h"

#include <errno.h>
#include <string.h>

#include <algorithm>

#include "plugins/tcp/clock.h"

namespace weir::plugins::tcp {
namespace {

using wire::kHeaderBytes;

// System calls that one drive may make while each moves all that it was given.
constexpr uint32_t kBurst = 4;
// Messages behind one of this size wait for the next call: a large one fills the socket anyway.
constexpr uint64_t kBatchBytesMax = 65536;

// What is still to be moved of header and message.
void add(const Op& op, unsigned char* header, Transfer* transfer) {
  if (op.done_bytes < kHeaderBytes) {
    transfer->add(header + op.done_bytes, kHeaderBytes - op.done_bytes);
  }
  const uint64_t done = op.done_bytes > kHeaderBytes ? op.done_bytes - kHeaderBytes : 0;
  transfer->add(reinterpret_cast<unsigned char*>(op.data) + done, op.bytes - done);
}

void gather(Transfer* transfer) {
  unsigned char* at = transfer->gathered;
  for (size_t i = 0; i < transfer->count; ++i) {
    memcpy(at, transfer->pieces[i].iov_base, transfer->pieces[i].iov_len);
    at += transfer->pieces[i].iov_len;
  }
  transfer->pieces[0] = {transfer->gathered, static_cast<size_t>(transfer->bytes)};
  transfer->count = 1;
}

}  // namespace

void Channel::attach(Stream send, Stream recv, uint8_t on_lane, ZeroCopy::Mode mode) {
  out_ = send;
  in_ = recv;
  lane = on_lane;
  if (send.is_secured()) {
    zero_copy_.turn_off("inside TLS");
  } else {
    zero_copy_.attach(send.fd(), mode);
  }
}

void Channel::give_up(weir_result_t result) {
  for (Queue* queue : {&send_, &recv_}) {
    if (queue->failure.result == WEIR_OK) fail(queue, result, 0);
  }
}

void Channel::finish_head(Queue* queue) {
  Op* op = queue->head;
  queue->head = next_of(op);
  if (queue->head == nullptr) queue->tail = nullptr;
  op->state = kOpDone;
}

void Channel::fail(Queue* queue, weir_result_t result, int error_number) {
  queue->failure.result = result;
  queue->failure.error_number = error_number;
  if (queue == &send_) unsent_ = nullptr;
  while (queue->head != nullptr) {
    Op* op = queue->head;
    finish_head(queue);
    op->state = kOpFailed + static_cast<uint64_t>(result);
  }
}

void Channel::lose(Queue* queue, const Stream& stream, int error_number) {
  if (stream.is_damage(error_number)) return fail(queue, WEIR_ERROR_INTERNAL, 0);
  fail(queue, WEIR_ERROR_PEER_LOST, error_number);
}

weir_result_t Channel::post(Queue* queue, uint64_t data, uint64_t bytes, bool is_send, Op* op) {
  if (queue->failure.result != WEIR_OK) return queue->failure.result;
  op->state = kOpPending;
  op->next = 0;
  op->channel = reinterpret_cast<uint64_t>(this);
  op->data = data;
  op->bytes = bytes;
  op->done_bytes = 0;
  op->number = queue->posted++;
  op->is_send = is_send ? kSend : 0;
  const bool first = is_send ? unsent_ == nullptr : queue->head == nullptr;
  if (queue->tail != nullptr) {
    queue->tail->next = reinterpret_cast<uint64_t>(op);
  } else {
    queue->head = op;
  }
  queue->tail = op;
  if (is_send && first) unsent_ = op;
  if (!is_connected()) [[unlikely]]
    return WEIR_IN_PROGRESS;
  if (!is_send) {
    if (!first) return WEIR_IN_PROGRESS;
    drive_recv();
  } else if (first && bytes <= kHeldBytesMax) {
    holds_back_ = true;
  } else {
    if (!first && !holds_back_) return WEIR_IN_PROGRESS;
    drive_send();
  }
  if (op->state == kOpDone) return WEIR_OK;
  return queue->failure.result != WEIR_OK ? queue->failure.result : WEIR_IN_PROGRESS;
}

weir_result_t Channel::post_send(const void* data, uint64_t bytes, Op* op) {
  return post(&send_, reinterpret_cast<uint64_t>(data), bytes, true, op);
}

weir_result_t Channel::post_recv(void* data, uint64_t bytes, Op* op) {
  return post(&recv_, reinterpret_cast<uint64_t>(data), bytes, false, op);
}

// Sends complete in order, those whose memory the kernel holds when it has given it back.
void Channel::retire() {
  while (send_.head != unsent_) {
    const uint64_t call = send_.head->is_send >> kCallShift;
    if (call != 0 && !zero_copy_.is_back(call - 1)) return;
    finish_head(&send_);
  }
}

void Channel::release() {
  zero_copy_.collect();
  retire();
}

bool Channel::recall(uint64_t patience_ns) {
  cut_ = cut_ || (unsent_ != nullptr && unsent_->done_bytes != 0);
  send_.head = send_.tail = recv_.head = recv_.tail = unsent_ = nullptr;
  holds_back_ = false;
  return !zero_copy_.holds() || zero_copy_.recall(patience_ns);
}

bool Channel::leave() {
  const bool is_free = recall(0);
  // The same one: the peer is another rank.
  out_.close();
  out_ = in_ = Stream();
  for (Queue* queue : {&send_, &recv_}) {
    queue->failure = Failure();
    queue->failure.result = WEIR_ERROR_PEER_LOST;
    queue->failure.reported = true;
  }
  ahead_begin_ = ahead_end_ = 0;
  return is_free;
}

bool Channel::prepare_send(Transfer* transfer) {
  holds_back_ = false;
  uint32_t count = 0;
  for (Op* op = unsent_; op != nullptr && count < kBatch && transfer->bytes < kBatchBytesMax;
       op = next_of(op), ++count) {
    unsigned char* header = transfer->headers[count];
    if (op->bytes >= ZeroCopy::kBytesMin && !zero_copy_.is_off()) {
      if (count > 0) break;  // a call of its own
      if ((op->is_send & kChosen) == 0) {
        // The headers that the kernel holds must not share a place, either.
        const bool fits = op->number - send_.head->number < kBatch;
        op->is_send |= kChosen | (fits && zero_copy_.choose(op->bytes) ? kShared : 0);
        spent_ns_ = 0;
      }
      transfer->timed = zero_copy_.on_trial();
      transfer->shared = (op->is_send & kShared) != 0 && zero_copy_.has_room();
      if (transfer->shared) header = shared_headers_[op->number % kBatch];
    }
    if (op->done_bytes < kHeaderBytes) {
      wire::MessageHeader fields;
      fields.lane = lane;
      fields.number = static_cast<uint32_t>(op->number);
      fields.bytes = op->bytes;
      wire::encode(fields, header);
    }
    add(*op, header, transfer);
    if (transfer->shared) break;
  }
  const bool small = transfer->bytes <= Transfer::kGatheredBytesMax && !transfer->shared;
  if (small && transfer->count > 1) gather(transfer);
  return transfer->count > 0;
}

ssize_t Channel::send(const Transfer& transfer) {
  const uint64_t begin_ns = transfer.timed ? monotonic_ns() : 0;
  ssize_t sent;
  if (transfer.shared) {
    sent = out_.send_shared(transfer.pieces, transfer.count);
  } else if (transfer.count == 1) {
    sent = out_.send(transfer.pieces[0].iov_base, transfer.pieces[0].iov_len);
  } else {
    sent = out_.send(transfer.pieces, transfer.count);
  }
  if (sent < 0) sent = -errno;
  if (transfer.timed) spent_ns_ += monotonic_ns() - begin_ns;
  return sent;
}

bool Channel::take_sent(const Transfer& transfer, ssize_t result) {
  if (result < 0) {
    const auto error_number = static_cast<int>(-result);
    if (error_number == EINTR) return true;
    if (error_number == ENOBUFS && transfer.shared) {
      zero_copy_.refused();
      unsent_->is_send &= ~kShared;
      return true;
    }
    if (!Stream::is_temporary(error_number)) lose(&send_, out_, error_number);
    return false;
  }
  const uint64_t call = transfer.shared && result > 0 ? zero_copy_.begin() + 1 : 0;
  for (auto left = static_cast<uint64_t>(result); left > 0;) {
    Op* op = unsent_;
    const uint64_t part = std::min(left, kHeaderBytes + op->bytes - op->done_bytes);
    op->done_bytes += part;
    left -= part;
    if (call != 0) op->is_send = (op->is_send & kKindMask) | call << kCallShift;
    if (op->done_bytes < kHeaderBytes + op->bytes) break;
    if (transfer.timed) {
      zero_copy_.measured((op->is_send & kShared) != 0, op->bytes, spent_ns_);
    }
    unsent_ = next_of(op);
  }
  retire();
  return static_cast<uint64_t>(result) == transfer.bytes;
}

void Channel::drive_send() {
  if (!is_connected()) [[unlikely]]
    return;
  if (awaits_kernel()) release();
  for (uint32_t call = 0; call < kBurst; ++call) {
    Transfer transfer;
    if (!prepare_send(&transfer) || !take_sent(transfer, send(transfer))) return;
    if (transfer.ends_turn()) return;
  }
}

bool Channel::is_goodbye(const wire::MessageHeader& header) const {
  return header.kind == wire::MessageKind::kGoodbye && header.lane == lane && header.bytes == 0;
}

void Channel::say_goodbye() {
  if (!out_.is_open() || cut_ || send_.failure.result != WEIR_OK) return;
  unsigned char frame[kHeaderBytes];
  wire::encode({wire::MessageKind::kGoodbye, lane, static_cast<uint32_t>(send_.posted), 0}, frame);
  (void)out_.send(frame, sizeof frame);
}

bool Channel::hear_goodbye() {
  if (left_ || !in_.is_open() || recv_.head != nullptr) return left_;
  if (ahead_begin_ == ahead_end_) ahead_begin_ = ahead_end_ = 0;
  while (ahead_end_ < kAheadBytes && ahead_end_ - ahead_begin_ < kHeaderBytes) {
    const ssize_t got = in_.receive(ahead_ + ahead_end_, kAheadBytes - ahead_end_);
    if (got <= 0) return false;
    ahead_end_ += static_cast<size_t>(got);
  }
  wire::MessageHeader header;
  left_ = ahead_end_ - ahead_begin_ >= kHeaderBytes &&
          wire::decode(ahead_ + ahead_begin_, &header) && is_goodbye(header);
  return left_;
}

bool Channel::check_header(const Op& op) {
  wire::MessageHeader header;
  const bool decoded = wire::decode(headers_[op.number % kBatch], &header);
  const bool good = decoded && header.kind == wire::MessageKind::kMessage && header.lane == lane &&
                    header.number == static_cast<uint32_t>(op.number);
  if (good && header.bytes == op.bytes) return true;
  if (decoded && is_goodbye(header)) {
    left_ = true;
    fail(&recv_, WEIR_ERROR_PEER_LOST, 0);
    return false;
  }
  recv_.failure.sent_bytes = header.bytes;
  recv_.failure.expected_bytes = op.bytes;
  fail(&recv_, good ? WEIR_ERROR_MISMATCH : WEIR_ERROR_INTERNAL, 0);
  return false;
}

bool Channel::take(uint64_t bytes) {
  while (bytes > 0) {
    Op* op = recv_.head;
    if (op->done_bytes < kHeaderBytes) {
      const uint64_t part = std::min<uint64_t>(bytes, kHeaderBytes - op->done_bytes);
      op->done_bytes += part;
      bytes -= part;
      if (op->done_bytes < kHeaderBytes) return true;
      if (!check_header(*op)) return false;
    }
    const uint64_t part = std::min(bytes, kHeaderBytes + op->bytes - op->done_bytes);
    op->done_bytes += part;
    bytes -= part;
    if (op->done_bytes < kHeaderBytes + op->bytes) return true;
    finish_head(&recv_);
  }
  return true;
}

bool Channel::take_ahead() {
  while (ahead_begin_ < ahead_end_ && recv_.head != nullptr) {
    Op* op = recv_.head;
    const size_t have = ahead_end_ - ahead_begin_;
    const bool in_header = op->done_bytes < kHeaderBytes;
    const uint64_t wanted =
        in_header ? kHeaderBytes - op->done_bytes : kHeaderBytes + op->bytes - op->done_bytes;
    const size_t part = static_cast<size_t>(std::min<uint64_t>(have, wanted));
    unsigned char* to =
        in_header ? headers_[op->number % kBatch] + op->done_bytes
                  : reinterpret_cast<unsigned char*>(op->data) + op->done_bytes - kHeaderBytes;
    memcpy(to, ahead_ + ahead_begin_, part);
    ahead_begin_ += part;
    if (!take(part)) return false;
  }
  return true;
}

bool Channel::prepare_recv(Transfer* transfer) {
  if (ahead_begin_ < ahead_end_ && !take_ahead()) return false;
  if (recv_.head == nullptr) return false;
  uint64_t posted_bytes = 0;
  for (const Op* op = recv_.head; op != nullptr && posted_bytes <= kSmallBytesMax;
       op = next_of(op)) {
    posted_bytes += kHeaderBytes + op->bytes - op->done_bytes;
  }
  transfer->ahead = posted_bytes <= kSmallBytesMax;
  if (transfer->ahead) {
    transfer->add(ahead_, kAheadBytes);
    return true;
  }
  uint32_t count = 0;
  for (Op* op = recv_.head; op != nullptr && count < kBatch && transfer->bytes < kBatchBytesMax;
       op = next_of(op), ++count) {
    add(*op, headers_[op->number % kBatch], transfer);
  }
  return true;
}

ssize_t Channel::receive(const Transfer& transfer) const {
  const ssize_t got = transfer.count == 1
                          ? in_.receive(transfer.pieces[0].iov_base, transfer.pieces[0].iov_len)
                          : in_.receive(transfer.pieces, transfer.count);
  return got < 0 ? -errno : got;
}

bool Channel::take_received(const Transfer& transfer, ssize_t result) {
  if (result < 0) {
    const auto error_number = static_cast<int>(-result);
    if (error_number == EINTR) return true;
    if (!Stream::is_temporary(error_number)) lose(&recv_, in_, error_number);
    return false;
  }
  if (result == 0) {
    fail(&recv_, WEIR_ERROR_PEER_LOST, 0);
    return false;
  }
  // What a later message's bytes did to a posted buffer does not matter after a mismatch: it is the
  // receive that fails.
  const auto bytes = static_cast<uint64_t>(result);
  if (transfer.ahead) {
    ahead_begin_ = 0;
    ahead_end_ = static_cast<size_t>(bytes);
    if (!take_ahead()) return false;
  } else if (!take(bytes)) {
    return false;
  }
  return bytes == transfer.bytes;
}

void Channel::drive_recv() {
  if (!is_connected()) [[unlikely]]
    return;
  for (uint32_t call = 0; call < kBurst; ++call) {
    Transfer transfer;
    if (!prepare_recv(&transfer) || !take_received(transfer, receive(transfer))) return;
    if (transfer.ends_turn()) return;
  }
}

}  // namespace weir::plugins::tcp
