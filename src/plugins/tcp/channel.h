// SPDX-License-Identifier: Apache-2.0
// Channel: the messages of one (peer, lane), both directions, over a stream socket of its own.
//
// A lane has its own connection, so the kernel keeps what nobody has asked for yet, within its
// socket buffers, and stops the sender of that lane and no other. Nothing is buffered here: a
// message is sent from the caller's memory with its header in one call, and received into the
// posted buffer with its header in one call. That also bounds what a peer can make this process
// hold: nothing is ever allocated for what the wire says.
//
// Small messages often come in pairs (what is called, then its data). So a very small one is held
// back until the next post or drive of its channel, which sends both in one call; and a small
// receive also asks for kAheadBytes of what follows, which the next receive then finds here.
//
// Operations are queued in order of posting; a queued operation's words link the queue. One thread
// at a time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "plugins/tcp/stream.h"
#include "plugins/tcp/wire.h"
#include "weir/plugin.h"

namespace weir::plugins::tcp {

// Meaning of weir_transport_op_t::word while an operation is in this transport.
struct Op {
  uint64_t state;  // 0: never posted; then kOpPending, kOpDone or kOpFailed + result
  uint64_t next;   // Op*, in the queue
  uint64_t channel;
  uint64_t data;
  uint64_t bytes;
  uint64_t done_bytes;  // of header and message
  uint64_t number;      // of the message
  uint64_t is_send;
};
static_assert(sizeof(Op) == sizeof(weir_transport_op_t::word));
inline constexpr uint64_t kOpPending = 1;
inline constexpr uint64_t kOpDone = 2;
inline constexpr uint64_t kOpFailed = 16;

// Why a direction of a channel carries no more messages.
struct Failure {
  weir_result_t result = WEIR_OK;
  int error_number = 0;     // of the system call; 0: the peer has closed its end
  uint64_t sent_bytes = 0;  // of a mismatch
  uint64_t expected_bytes = 0;
  bool reported = false;  // the text has been given to the host
};

class Channel {
 public:
  // The connections stay the owner's; both are the same but for a rank's channel to itself.
  void attach(Stream send, Stream recv, uint8_t lane);

  // Each queues the operation, or completes it at once. WEIR_OK, WEIR_IN_PROGRESS or the error that
  // this direction is in.
  weir_result_t post_send(const void* data, uint64_t bytes, Op* op);
  weir_result_t post_recv(void* data, uint64_t bytes, Op* op);

  // Move what can be moved without waiting, within a bound that keeps other channels served.
  void drive_send();
  void drive_recv();

  bool sending() const { return send_.head != nullptr; }
  bool receiving() const { return recv_.head != nullptr; }
  bool idle() const { return !sending() && !receiving(); }
  Stream& send_stream() { return out_; }
  Stream& recv_stream() { return in_; }
  Failure& send_failure() { return send_.failure; }
  Failure& recv_failure() { return recv_.failure; }

  // The instance's list of channels with queued operations.
  Channel* next_active = nullptr;
  bool active = false;

 private:
  // Messages that one system call may carry.
  static constexpr uint32_t kBatch = 8;
  // Longest message that is held back.
  static constexpr uint64_t kHeldBytesMax = 64;
  static constexpr size_t kAheadBytes = 512;

  struct Queue {
    Op* head = nullptr;
    Op* tail = nullptr;
    uint64_t posted = 0;  // numbers the messages
    Failure failure;
  };

  weir_result_t post(Queue* queue, uint64_t data, uint64_t bytes, bool is_send, Op* op);
  static void finish_head(Queue* queue);
  static void fail(Queue* queue, weir_result_t result, int error_number);
  static void lose(Queue* queue, const Stream& stream, int error_number);
  bool check_header(const Op& op);
  // Fills the operations at the head with what was read ahead; false after a failure.
  bool take_ahead();
  // Spreads bytes that were received over the operations at the head; false after a failure.
  bool take(uint64_t bytes);

  Stream out_;
  Stream in_;
  uint8_t lane_ = 0;
  Queue send_;
  Queue recv_;
  bool holds_back_ = false;  // the one message in the queue of sends
  size_t ahead_begin_ = 0;   // what was read ahead; empty while a receive is pending
  size_t ahead_end_ = 0;
  unsigned char ahead_[kAheadBytes];
  unsigned char headers_[kBatch][wire::kHeaderBytes] = {};  // of message k in [k % kBatch]
};

}  // namespace weir::plugins::tcp
