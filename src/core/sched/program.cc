// SPDX-License-Identifier: Apache-2.0
#include "core/sched/program.h"

#include <array>

#include "core/base/check.h"

namespace weir::sched {

Op& Builder::add(OpCode code) {
  Op& op = ops_->emplace_back();
  op.code = code;
  op.lane = lane_;
  op.when = when_;
  return op;
}

void Builder::send(Rank peer, Ref src, uint32_t count) {
  Op& op = add(OpCode::kSend);
  op.peer = peer;
  op.src = src;
  op.count = count;
}

void Builder::recv(Rank peer, Ref dst, uint32_t count) {
  Op& op = add(OpCode::kRecv);
  op.peer = peer;
  op.dst = dst;
  op.count = count;
}

void Builder::copy(Ref dst, Ref src, uint32_t count) {
  Op& op = add(OpCode::kCopy);
  op.dst = dst;
  op.src = src;
  op.count = count;
}

void Builder::reduce(Ref dst, std::span<const Ref> operands, uint32_t count) {
  WEIR_CHECK(!operands.empty(), "a reduce needs an operand");
  Op& op = add(OpCode::kReduce);
  op.dst = dst;
  op.count = count;
  op.first_operand = static_cast<uint32_t>(operands_->size());
  op.operand_count = static_cast<uint32_t>(operands.size());
  operands_->insert(operands_->end(), operands.begin(), operands.end());
}

void Builder::reduce_partially(Ref dst, std::span<const Ref> operands, uint32_t count) {
  reduce(dst, operands, count);
  ops_->back().partial = true;
}

void Builder::reduce_tree(Ref dst, std::span<const Ref> operands, uint32_t count) {
  reduce(dst, operands, count);
  ops_->back().tree = true;
}

void Builder::reduce_into(Ref dst, Ref src, uint32_t count) {
  reduce(dst, std::array{dst, src}, count);
}

void Builder::signal(uint32_t peer, uint8_t index) {
  Op& op = add(OpCode::kSignal);
  op.peer = peer;
  op.signal = index;
}

void Builder::wait(uint32_t peer, uint8_t index, uint32_t value) {
  Op& op = add(OpCode::kWait);
  op.peer = peer;
  op.signal = index;
  op.value = value;
}

}  // namespace weir::sched
