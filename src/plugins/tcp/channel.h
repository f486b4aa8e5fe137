// SPDX-License-Identifier: Apache-2.0
// Channel: the messages of one (peer, lane), both directions, over a stream socket of its own.
//
// A lane has its own connection, so the kernel keeps data without a posted receive in its socket
// buffers, and stops the sender of that lane only. Nothing is buffered here: a message is sent from
// the caller's memory with its header in one call, and received into the posted buffer with its
// header in one call. That also bounds what a peer can make this process hold: nothing is ever
// allocated because of what arrives.
//
// Small messages often come in pairs (a description, then its data). So a very small one is held
// back until the next post or drive of its channel, which sends both in one call. Small messages
// are gathered into one piece for a call, and are read, with what follows them, into kAheadBytes of
// room here, where the next receive finds it: calls of several pieces cost the kernel more than the
// copy.
//
// A large message may leave from the caller's memory itself (zero_copy.h). Its send is then
// complete when the kernel has given the memory back, and so are those behind it.
//
// A channel begins without a connection, for which its operations wait (instance.h).
//
// Operations are queued in order of posting; a queued operation's words link the queue. One thread
// at a time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "plugins/tcp/stream.h"
#include "plugins/tcp/transfer.h"
#include "plugins/tcp/wire.h"
#include "plugins/tcp/zero_copy.h"
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
  uint64_t is_send;     // and more about it
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
  // The connections stay the owner's; both are the same, except for a rank's channel to itself.
  void attach(Stream send, Stream recv, uint8_t on_lane,
              ZeroCopy::Mode mode = ZeroCopy::Mode::kOff);
  bool is_connected() const { return out_.is_open() || in_.is_open(); }
  // Operations wait for a connection.
  bool is_waiting() const { return !is_connected() && !idle(); }
  // There will be no connection.
  void give_up(weir_result_t result);
  // Each queues the operation, or completes it at once. WEIR_OK, WEIR_IN_PROGRESS or the error that
  // this direction is in.
  weir_result_t post_send(const void* data, uint64_t bytes, Op* op);
  weir_result_t post_recv(void* data, uint64_t bytes, Op* op);

  // Move what can be moved without waiting, within a bound that keeps other channels served.
  void drive_send();
  void drive_recv();

  // The same in steps, for a caller that makes the calls of many channels at once: what the next
  // call is to do (false: nothing), and its result: the bytes that it moved, or -errno.
  bool prepare_send(Transfer* transfer);
  ssize_t send(const Transfer& transfer);
  void settle_send(const Transfer& transfer, ssize_t result) { (void)take_sent(transfer, result); }
  bool prepare_recv(Transfer* transfer);
  ssize_t receive(const Transfer& transfer) const;
  void settle_recv(const Transfer& transfer, ssize_t result) {
    (void)take_received(transfer, result);
  }

  bool sending() const { return unsent_ != nullptr; }
  bool receiving() const { return recv_.head != nullptr; }
  // Some send has left and awaits that the kernel gives its memory back; `release` asks for it.
  bool awaits_kernel() const { return send_.head != unsent_; }
  void release();
  bool idle() const { return send_.head == nullptr && !receiving(); }
  const ZeroCopy& zero_copy() const { return zero_copy_; }
  // Ends all operations without reporting to them, and gets their memory back (ZeroCopy::recall).
  bool recall(uint64_t patience_ns);
  // The peer is given up: the connection is closed, and all operations are forgotten. False: a
  // network interface holds memory of one.
  bool leave();
  // The last frame, unless the end of a message is missing.
  void say_goodbye();
  // The peer has said goodbye; reads what has arrived if no receive does.
  bool hear_goodbye();
  Stream& send_stream() { return out_; }
  Stream& recv_stream() { return in_; }
  Failure& send_failure() { return send_.failure; }
  Failure& recv_failure() { return recv_.failure; }

  // The instance's: to which peer it leads on which lane, and its list of channels with queued
  // operations.
  uint32_t peer = 0;
  uint8_t lane = 0;
  Channel* next_active = nullptr;
  bool active = false;

 private:
  static constexpr uint32_t kBatch = Transfer::kMessagesMax;
  // Longest message that is held back.
  static constexpr uint64_t kHeldBytesMax = 64;
  // Small messages of a call, with what follows them, are read in one piece.
  static constexpr uint64_t kSmallBytesMax = 4096 + 256;
  static constexpr size_t kAheadBytes = kSmallBytesMax;

  // An operation's `is_send`: what it is (2 is Bundle's), and from kCallShift up the number of the
  // last zero-copy call that took bytes of it, plus one.
  static constexpr uint64_t kSend = 1;
  static constexpr uint64_t kShared = 4;  // leaves from the caller's memory itself
  static constexpr uint64_t kChosen = 8;  // whether it does has been decided
  static constexpr uint64_t kKindMask = 255;
  static constexpr uint32_t kCallShift = 8;

  struct Queue {
    Op* head = nullptr;
    Op* tail = nullptr;
    uint64_t posted = 0;  // numbers the messages
    Failure failure;
  };

  static Op* next_of(const Op* op) { return reinterpret_cast<Op*>(op->next); }
  weir_result_t post(Queue* queue, uint64_t data, uint64_t bytes, bool is_send, Op* op);
  static void finish_head(Queue* queue);
  void fail(Queue* queue, weir_result_t result, int error_number);
  void lose(Queue* queue, const Stream& stream, int error_number);
  bool check_header(const Op& op);
  bool is_goodbye(const wire::MessageHeader& header) const;
  void retire();
  // Each takes what a call did; true: it did all that was asked, and another one may do more.
  bool take_sent(const Transfer& transfer, ssize_t result);
  bool take_received(const Transfer& transfer, ssize_t result);
  // Fills the operations at the head with what was read ahead; false after a failure.
  bool take_ahead();
  // Spreads bytes that were received over the operations at the head; false after a failure.
  bool take(uint64_t bytes);

  Stream out_;
  Stream in_;
  Queue send_;
  Queue recv_;
  Op* unsent_ = nullptr;     // the first send with bytes left; those before await the kernel
  bool holds_back_ = false;  // the one message that is not sent
  bool left_ = false;        // the peer has said goodbye
  bool cut_ = false;         // a message that was sent in part was given up
  ZeroCopy zero_copy_;
  uint64_t spent_ns_ = 0;   // in calls for the large message that is being sent, on trial
  size_t ahead_begin_ = 0;  // what was read ahead; empty while a receive is pending
  size_t ahead_end_ = 0;
  unsigned char ahead_[kAheadBytes];
  unsigned char headers_[kBatch][wire::kHeaderBytes] = {};  // of message k in [k % kBatch]
  // Of sends that leave from the caller's memory, in the same way; the kernel holds them, too.
  unsigned char shared_headers_[kBatch][wire::kHeaderBytes] = {};
};

}  // namespace weir::plugins::tcp
