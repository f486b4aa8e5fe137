// SPDX-License-Identifier: Apache-2.0
#include "plugins/tcp/channel.h"

#include <errno.h>
#include <string.h>

#include <algorithm>

namespace weir::plugins::tcp {
namespace {

using wire::kHeaderBytes;

// System calls that one drive may make while each moves all that it was given.
constexpr uint32_t kBurst = 4;
// Messages behind one of this size wait for the next call: a large one fills the socket anyway.
constexpr uint64_t kBatchBytesMax = 65536;
// Not more than the kernel takes at once; also what keeps an overflow of its counts away.
constexpr uint64_t kCallBytesMax = uint64_t{1} << 30;

Op* next_of(const Op* op) { return reinterpret_cast<Op*>(op->next); }

// What is still to be moved of header and message.
struct Pieces {
  iovec entries[17];
  size_t count = 0;
  uint64_t bytes = 0;

  void add(void* at, uint64_t length) {
    if (length == 0) return;
    length = std::min(length, kCallBytesMax);
    entries[count++] = {at, static_cast<size_t>(length)};
    bytes += length;
  }
  void add(const Op& op, unsigned char* header) {
    if (op.done_bytes < kHeaderBytes) add(header + op.done_bytes, kHeaderBytes - op.done_bytes);
    const uint64_t done = op.done_bytes > kHeaderBytes ? op.done_bytes - kHeaderBytes : 0;
    add(reinterpret_cast<unsigned char*>(op.data) + done, op.bytes - done);
  }
};

}  // namespace

void Channel::attach(Stream send, Stream recv, uint8_t lane) {
  out_ = send;
  in_ = recv;
  lane_ = lane;
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
  while (queue->head != nullptr) {
    Op* op = queue->head;
    finish_head(queue);
    op->state = kOpFailed + static_cast<uint64_t>(result);
  }
}

void Channel::lose(Queue* queue, const Stream& stream, int error_number) {
  if (stream.was_damaged()) return fail(queue, WEIR_ERROR_INTERNAL, 0);
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
  op->is_send = is_send ? 1 : 0;
  if (queue->tail != nullptr) {
    queue->tail->next = reinterpret_cast<uint64_t>(op);
    queue->tail = op;
    if (!is_send || !holds_back_) return WEIR_IN_PROGRESS;
    drive_send();
  } else {
    queue->head = queue->tail = op;
    if (!is_send) {
      drive_recv();
    } else if (bytes <= kHeldBytesMax) {
      holds_back_ = true;
    } else {
      drive_send();
    }
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

void Channel::drive_send() {
  holds_back_ = false;
  for (uint32_t call = 0; call < kBurst && send_.head != nullptr;) {
    unsigned char headers[kBatch][kHeaderBytes];
    Pieces pieces;
    uint32_t count = 0;
    for (Op* op = send_.head; op != nullptr && count < kBatch && pieces.bytes < kBatchBytesMax;
         op = next_of(op), ++count) {
      wire::MessageHeader header;
      header.lane = lane_;
      header.number = static_cast<uint32_t>(op->number);
      header.bytes = op->bytes;
      wire::encode(header, headers[count]);
      pieces.add(*op, headers[count]);
    }
    const ssize_t sent = out_.send(pieces.entries, pieces.count);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (!Stream::is_temporary(errno)) lose(&send_, out_, errno);
      return;
    }
    ++call;
    auto left = static_cast<uint64_t>(sent);
    while (left > 0) {
      Op* op = send_.head;
      const uint64_t part = std::min(left, kHeaderBytes + op->bytes - op->done_bytes);
      op->done_bytes += part;
      left -= part;
      if (op->done_bytes == kHeaderBytes + op->bytes) finish_head(&send_);
    }
    if (static_cast<uint64_t>(sent) < pieces.bytes) return;
  }
}

bool Channel::check_header(const Op& op) {
  wire::MessageHeader header;
  const bool good = wire::decode(headers_[op.number % kBatch], &header) &&
                    header.kind == wire::MessageKind::kMessage && header.lane == lane_ &&
                    header.number == static_cast<uint32_t>(op.number);
  if (good && header.bytes == op.bytes) return true;
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

void Channel::drive_recv() {
  if (ahead_begin_ < ahead_end_ && !take_ahead()) return;
  for (uint32_t call = 0; call < kBurst && recv_.head != nullptr;) {
    Pieces pieces;
    uint32_t count = 0;
    for (Op* op = recv_.head; op != nullptr && count < kBatch && pieces.bytes < kBatchBytesMax;
         op = next_of(op), ++count) {
      pieces.add(*op, headers_[op->number % kBatch]);
    }
    const uint64_t posted_bytes = pieces.bytes;
    // Only behind the last of the posted messages, so that what is read ahead belongs to none.
    if (count < kBatch && posted_bytes <= kAheadBytes) pieces.add(ahead_, kAheadBytes);
    const ssize_t got = in_.receive(pieces.entries, pieces.count);
    if (got < 0) {
      if (errno == EINTR) continue;
      if (!Stream::is_temporary(errno)) lose(&recv_, in_, errno);
      return;
    }
    if (got == 0) {
      fail(&recv_, WEIR_ERROR_PEER_LOST, 0);
      return;
    }
    ++call;
    // What a later message's bytes did to a posted buffer does not matter after a mismatch: it is
    // the receive that fails.
    const auto bytes = static_cast<uint64_t>(got);
    ahead_begin_ = 0;
    ahead_end_ = bytes > posted_bytes ? static_cast<size_t>(bytes - posted_bytes) : 0;
    if (!take(std::min(bytes, posted_bytes)) || bytes < posted_bytes) return;
  }
}

}  // namespace weir::plugins::tcp
