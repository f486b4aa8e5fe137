// SPDX-License-Identifier: Apache-2.0
#include "plugins/ucx/flow.h"

namespace weir::plugins::ucx {
namespace {

// Where a request keeps its operation. Null: it is being posted, for UCX may finish it before the
// call that posts it returns.
Op*& op_of(void* request) { return *static_cast<Op**>(request); }

// In place of an operation that was abandoned.
Op abandoned{};

Op* next_of(const Op* op) { return reinterpret_cast<Op*>(op->next); }

// A flow of sends fails because of its peer or because memory is short; nothing else is left.
weir_result_t result_of(ucs_status_t status) {
  return status == UCS_ERR_NO_MEMORY ? WEIR_ERROR_NO_MEMORY : WEIR_ERROR_PEER_LOST;
}

}  // namespace

void Flow::attach(ucp_worker_h worker, ucp_ep_h endpoint, ucp_tag_t tag) {
  worker_ = worker;
  endpoint_ = endpoint;
  tag_ = tag;
}

void Flow::prepare(uint64_t bytes, Op* op) {
  posting_ = op;
  op->state = kOpPosting;
  op->next = 0;
  op->flow = reinterpret_cast<uint64_t>(this);
  op->request = 0;
  op->bytes = bytes;
}

// `request`: what UCX gave for the operation; null: it is complete.
weir_result_t Flow::settle(ucs_status_ptr_t request, Op* op) {
  if (UCS_PTR_IS_ERR(request)) [[unlikely]]
    return refuse(UCS_PTR_STATUS(request));
  ++posted_;
  if (op->state == kOpPosting) {
    op->state = request != nullptr ? kOpPending : kOpArrived;
    if (request != nullptr) {
      op->request = reinterpret_cast<uint64_t>(request);
      op_of(request) = op;
    }
  }
  if (op->state == kOpArrived && head_ == nullptr) {
    ++popped_;
    op->state = kOpDone;
    return WEIR_OK;
  }
  if (tail_ != nullptr) {
    tail_->next = reinterpret_cast<uint64_t>(op);
  } else {
    head_ = op;
  }
  tail_ = op;
  if (op->state == kOpBroken) [[unlikely]]
    advance();
  // UCX may have noticed a failure during the post.
  if (failure_.result != WEIR_OK) [[unlikely]]
    fail(failure_.result);
  return op->state > kOpFailed ? failure_.result : WEIR_IN_PROGRESS;
}

weir_result_t Flow::refuse(ucs_status_t status) {
  fail(result_of(status), status);
  return failure_.result;
}

weir_result_t Flow::send(const void* data, uint64_t bytes, Op* op, ucs_memory_type_t memory) {
  if (failure_.result != WEIR_OK) [[unlikely]]
    return failure_.result;
  const ucp_tag_t tag = tag_ | (posted_ & kNumberMask);
  ucp_request_param_t param;
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = on_sent;
  param.user_data = this;
  if (memory != UCS_MEMORY_TYPE_UNKNOWN) [[unlikely]] {
    // UCX may send inline what completes at once, and then reads it with the processor.
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
    param.memory_type = memory;
  }
  prepare(bytes, op);
  return settle(ucp_tag_send_nbx(endpoint_, data, bytes, tag, &param), op);
}

weir_result_t Flow::recv(void* data, uint64_t bytes, Op* op, ucs_memory_type_t memory) {
  if (failure_.result != WEIR_OK) [[unlikely]]
    return failure_.result;
  if (posted_ >= end_) [[unlikely]] {
    fail(WEIR_ERROR_PEER_LOST);
    return failure_.result;
  }
  const ucp_tag_t tag = tag_ | (posted_ & kNumberMask);
  ucp_request_param_t param;
  // UCX 1.13 does not tell how long a message was whose receive completes at once; so no receive
  // does, and the callback tells the length, if need be before the call returns.
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  param.cb.recv = on_received;
  param.user_data = this;
  if (memory != UCS_MEMORY_TYPE_UNKNOWN) [[unlikely]] {
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    param.memory_type = memory;
  }
  prepare(bytes, op);
  return settle(ucp_tag_recv_nbx(worker_, data, bytes, tag, ~ucp_tag_t{0}, &param), op);
}

void Flow::finish(Op* op, ucs_status_t status) {
  const bool posted = op->state != kOpPosting;
  op->request = 0;
  op->status = static_cast<uint64_t>(status);
  op->state = status == UCS_OK ? kOpArrived : kOpBroken;
  // A receive that UCX gave up by itself.
  if (status != UCS_OK && !failing_ && endpoint_ == nullptr) [[unlikely]]
    holds_ = true;
  if (posted && !failing_) advance();
}

// The operation of a request that has ended, null when nobody waits for it.
Op* Flow::release(void* request) {
  Op* op = op_of(request);
  op_of(request) = nullptr;  // for its next use
  ucp_request_free(request);
  if (closed_ || op == &abandoned) return nullptr;
  return op != nullptr ? op : posting_;
}

void Flow::on_sent(void* request, ucs_status_t status, void* data) {
  auto* flow = static_cast<Flow*>(data);
  Op* op = flow->release(request);
  if (op != nullptr) flow->finish(op, status);
}

void Flow::on_received(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info,
                       void* data) {
  auto* flow = static_cast<Flow*>(data);
  const uint64_t length = info->length;
  Op* op = flow->release(request);
  if (op == nullptr) return;
  op->sent_bytes = length;
  // A shorter message is no error to UCX.
  const bool shorter = status == UCS_OK && length != op->bytes;
  flow->finish(op, shorter ? UCS_ERR_MESSAGE_TRUNCATED : status);
}

// Reports the complete operations at the head of the queue.
void Flow::advance() {
  if (failure_.result != WEIR_OK) return sweep();
  while (head_ != nullptr && head_->state == kOpArrived) {
    Op* op = head_;
    head_ = next_of(op);
    if (head_ == nullptr) tail_ = nullptr;
    ++popped_;
    op->state = kOpDone;
  }
  if (head_ == nullptr) return;
  if (head_->state == kOpBroken) {
    const auto status = static_cast<ucs_status_t>(static_cast<int64_t>(head_->status));
    failure_.sent_bytes = head_->sent_bytes;
    failure_.expected_bytes = head_->bytes;
    const bool mismatch = endpoint_ == nullptr && status == UCS_ERR_MESSAGE_TRUNCATED;
    return fail(mismatch ? WEIR_ERROR_MISMATCH : result_of(status), status);
  }
  if (popped_ >= end_) fail(WEIR_ERROR_PEER_LOST);
}

void Flow::fail(weir_result_t result, ucs_status_t status) {
  if (failure_.result == WEIR_OK) {
    failure_.result = result;
    failure_.status = status;
  }
  if (failing_) return;
  failing_ = true;
  // UCX gives back at once what it has not begun; the rest when its endpoint ends.
  for (Op* op = head_; op != nullptr; op = next_of(op)) {
    if (op->request != 0) ucp_request_cancel(worker_, reinterpret_cast<void*>(op->request));
  }
  failing_ = false;
  sweep();
}

// Takes out the operations that UCX has finished.
void Flow::sweep() {
  Op* last = nullptr;
  for (Op* op = head_; op != nullptr;) {
    Op* next = next_of(op);
    if (op->request == 0) {
      if (last != nullptr) {
        last->next = reinterpret_cast<uint64_t>(next);
      } else {
        head_ = next;
      }
      op->state = kOpFailed + static_cast<uint64_t>(failure_.result);
    } else {
      last = op;
    }
    op = next;
  }
  tail_ = last;
}

void Flow::abandon() {
  for (Op* op = head_; op != nullptr; op = next_of(op)) {
    if (op->request != 0) {
      op_of(reinterpret_cast<void*>(op->request)) = &abandoned;
      holds_ = true;
    }
    op->request = 0;
  }
  sweep();
}

void Flow::end_at(uint64_t count) {
  end_ = count;
  if (failure_.result == WEIR_OK && popped_ >= end_ && head_ != nullptr) {
    fail(WEIR_ERROR_PEER_LOST);
  }
}

}  // namespace weir::plugins::ucx
