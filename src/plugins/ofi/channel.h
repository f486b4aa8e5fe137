// SPDX-License-Identifier: Apache-2.0
// Channel: the order of the messages of one (peer, lane), both directions. A provider completes
// operations in any order; here they complete in order of posting. It knows nothing of libfabric.
// Operations are queued through their own words, so that any number may be posted. One thread at a
// time.
#pragma once

#include <cstdint>
#include <string>

#include "weir/plugin.h"

struct fid_mr;  // of libfabric

namespace weir::plugins::ofi {

struct Channel;

// Meaning of weir_transport_op_t::word while an operation is in this transport.
struct Op {
  uint64_t state;  // 0: never posted; then one of kOp…
  Op* next;
  Channel* channel;
  unsigned char* data;  // only read for a send
  uint64_t bytes;
  uint64_t number;  // of the message on its lane and direction
  uint32_t is_send;
  uint32_t posted;  // the provider has it
  fid_mr* region;   // of a buffer on a device, until the provider has it
};
static_assert(sizeof(Op) == sizeof(weir_transport_op_t::word));
inline constexpr uint64_t kOpPending = 1;
inline constexpr uint64_t kOpMoved = 2;  // done, but an earlier one is not
inline constexpr uint64_t kOpDone = 3;
inline constexpr uint64_t kOpFailed = 16;  // + weir_result_t

// Why a direction of a channel carries no more messages.
struct Failure {
  weir_result_t result = WEIR_OK;
  bool closed = false;      // the peer ended in order
  uint64_t sent_bytes = 0;  // of a mismatch
  bool sent_bytes_known = true;
  uint64_t expected_bytes = 0;
  std::string reason;  // of a provider's error; "" for others
};

class Direction {
 public:
  // Appends an operation; it gets its number.
  void append(Op* op);
  // The first one that the provider does not have; null when there is none.
  Op* unposted() const { return unposted_; }
  void took_unposted() {
    unposted_->posted = 1;
    unposted_ = unposted_->next;
  }

  // The provider is done with `op`: completes it once all before it are.
  void moved(Op* op);
  // `op` and all behind it end with `failure`; so do later ones. `forget` is called for each that
  // the provider has.
  template <typename Forget>
  void fail_from(Op* op, Failure failure, const Forget& forget);

  Op* head() const { return head_; }
  bool empty() const { return head_ == nullptr; }
  uint64_t numbered() const { return numbered_; }
  // Operations that have completed, all of them in order.
  uint64_t done() const { return done_; }
  // Counts an operation that completes when it is posted, with none before it.
  void skip() {
    ++numbered_;
    ++done_;
  }
  const Failure& failure() const { return failure_; }
  // Forgets the operations that are posted, without accessing them.
  void drop() {
    head_ = tail_ = unposted_ = nullptr;
    under_way = 0;
  }
  void set_failure(Failure failure) { failure_ = static_cast<Failure&&>(failure); }

  uint32_t under_way = 0;  // in the provider

 private:
  Op* head_ = nullptr;
  Op* tail_ = nullptr;
  Op* unposted_ = nullptr;
  uint64_t numbered_ = 0;
  uint64_t done_ = 0;
  Failure failure_;
};

struct Channel {
  Direction send;
  Direction recv;
  uint32_t peer = 0;
  uint32_t lane = 0;
  // Messages that the peer has sent in all, once it has said so.
  uint64_t recv_limit = ~uint64_t{0};
  // The instance's list of channels with operations that the provider does not have.
  Channel* next_waiting = nullptr;
  bool waiting = false;

  Direction& direction(const Op& op) { return op.is_send != 0 ? send : recv; }
};

inline void Direction::append(Op* op) {
  op->number = numbered_++;
  op->next = nullptr;
  if (tail_ != nullptr) {
    tail_->next = op;
  } else {
    head_ = op;
  }
  tail_ = op;
  if (unposted_ == nullptr) unposted_ = op;
}

inline void Direction::moved(Op* op) {
  op->state = kOpMoved;
  while (head_ != nullptr && head_->state == kOpMoved) {
    Op* first = head_;
    head_ = first->next;
    if (head_ == nullptr) tail_ = nullptr;
    first->state = kOpDone;
    ++done_;
  }
}

template <typename Forget>
void Direction::fail_from(Op* op, Failure failure, const Forget& forget) {
  const uint64_t state = kOpFailed + static_cast<uint64_t>(failure.result);
  if (failure_.result == WEIR_OK) failure_ = static_cast<Failure&&>(failure);
  Op* before = nullptr;
  // An earlier one that the provider has not stays in the queue, and is posted in its turn.
  unposted_ = nullptr;
  for (Op* at = head_; at != op; at = at->next) {
    if (at->posted == 0 && unposted_ == nullptr) unposted_ = at;
    before = at;
  }
  tail_ = before;
  if (before != nullptr) {
    before->next = nullptr;
  } else {
    head_ = nullptr;
  }
  while (op != nullptr) {
    Op* next = op->next;
    if (op->posted != 0 && op->state == kOpPending) forget(op);
    op->state = state;
    op = next;
  }
}

}  // namespace weir::plugins::ofi
