// SPDX-License-Identifier: Apache-2.0
// Flow: the messages of one direction of one (peer, lane), over tagged messages of UCX.
//
//   tag    bits    meaning
//        63..40    token: known to the pair of ranks only (a stranger's messages match nothing)
//        39..24    rank of the sender
//        23..20    lane; kHelloLane for the message with which endpoints meet
//         19..0    number of the message in its flow, modulo 2^20
//
// So the k-th send matches the k-th receive whatever way UCX takes for each of them, and a message
// of another length is detected where it arrives. UCX may finish a later message first; a flow
// reports its operations complete in the order in which they were posted.
//
// A send is complete when UCX's own request is: then UCX holds none of it back (network.h says by
// what means), so that it arrives even if this rank makes no further call.
//
// Operations are queued through their own words, and a request of UCX points back to its operation,
// so that it can be made to forget it. One thread at a time.
#pragma once

#include <ucp/api/ucp.h>

#include <cstdint>

#include "weir/plugin.h"

namespace weir::plugins::ucx {

inline constexpr uint32_t kLaneCount = 9;
inline constexpr uint32_t kHelloLane = 15;
inline constexpr uint32_t kNumberBits = 20;
inline constexpr uint64_t kNumberMask = (uint64_t{1} << kNumberBits) - 1;

// Without the number.
constexpr ucp_tag_t tag_base(uint32_t token, uint32_t sender, uint32_t lane) {
  return uint64_t{token & 0xffffffu} << 40 | uint64_t{sender & 0xffffu} << 24 |
         uint64_t{lane & 0xfu} << kNumberBits;
}

class Flow;

// Meaning of weir_transport_op_t::word while an operation is in this transport.
struct Op {
  uint64_t state;  // kOp…; kOpFailed + result
  uint64_t next;   // Op*, in the queue
  uint64_t flow;
  uint64_t request;     // of UCX, while it works on it
  uint64_t bytes;       // as posted
  uint64_t sent_bytes;  // of a receive: as the sender named them
  uint64_t status;      // of UCX, when state is kOpBroken
  uint64_t unused;
};
static_assert(sizeof(Op) == sizeof(weir_transport_op_t::word));
inline constexpr uint64_t kOpPending = 1;
inline constexpr uint64_t kOpDone = 2;
inline constexpr uint64_t kOpArrived = 3;  // done, but not yet its predecessors
inline constexpr uint64_t kOpBroken = 4;   // UCX gave it up
inline constexpr uint64_t kOpPosting = 5;
inline constexpr uint64_t kOpFailed = 16;

// Why a flow carries no more messages.
struct Failure {
  weir_result_t result = WEIR_OK;
  ucs_status_t status = UCS_OK;  // of UCX, if it was UCX that gave up
  uint64_t sent_bytes = 0;       // of a mismatch
  uint64_t expected_bytes = 0;
};

class Flow {
 public:
  // `endpoint`: null for a flow of receives.
  void attach(ucp_worker_h worker, ucp_ep_h endpoint, ucp_tag_t tag);

  // WEIR_OK: complete. WEIR_IN_PROGRESS: queued. Else the flow's failure. `memory`: where the
  // buffer lies; unknown: where the host reaches it, or UCX finds out.
  weir_result_t send(const void* data, uint64_t bytes, Op* op,
                     ucs_memory_type_t memory = UCS_MEMORY_TYPE_UNKNOWN);
  weir_result_t recv(void* data, uint64_t bytes, Op* op,
                     ucs_memory_type_t memory = UCS_MEMORY_TYPE_UNKNOWN);

  // Ends the flow: all operations fail as soon as UCX has done with their buffers. The first reason
  // stays.
  void fail(weir_result_t result, ucs_status_t status = UCS_OK);
  // After fail, once nothing can reach or leave the buffers any more: the operations that UCX still
  // keeps fail, too.
  void abandon();
  // The instance ends: operations, which may be gone, are not looked at any more.
  void close() {
    closed_ = true;
    head_ = tail_ = nullptr;
  }
  // No message from `count` on will ever come.
  void end_at(uint64_t count);
  // Whether all messages before the end that end_at has set are complete.
  bool at_end() const { return popped_ >= end_; }

  const Failure& failure() const { return failure_; }
  bool idle() const { return head_ == nullptr; }
  // Messages that are complete at this end, all before them, too.
  uint64_t completed() const { return popped_; }
  // After abandon: UCX will read and write none of the buffers that the flow was ever given. UCX
  // gives back a receive that it has begun when the endpoint ends, but data that the peer has been
  // told to write may still arrive.
  bool has_let_go() const { return !holds_; }
  bool reported = false;  // the failure has been reported to the host

 private:
  static void on_sent(void* request, ucs_status_t status, void* flow);
  static void on_received(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info,
                          void* flow);
  Op* release(void* request);
  void prepare(uint64_t bytes, Op* op);
  weir_result_t settle(ucs_status_ptr_t request, Op* op);
  weir_result_t refuse(ucs_status_t status);
  void finish(Op* op, ucs_status_t status);
  void advance();
  void sweep();

  ucp_worker_h worker_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;  // null: a flow of receives
  ucp_tag_t tag_ = 0;
  Op* head_ = nullptr;
  Op* tail_ = nullptr;
  uint64_t posted_ = 0;  // numbers the messages
  uint64_t popped_ = 0;  // of them complete and reported
  uint64_t end_ = UINT64_MAX;
  Op* posting_ = nullptr;
  bool closed_ = false;
  bool failing_ = false;  // callbacks only mark
  bool holds_ = false;    // see has_let_go
  Failure failure_;
};

}  // namespace weir::plugins::ucx
