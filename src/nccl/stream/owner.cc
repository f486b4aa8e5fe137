// SPDX-License-Identifier: Apache-2.0
#include "nccl/stream/owner.h"

#include <cstring>
#include <utility>

#include "api/handles.h"
#include "cuda/driver.h"
#include "nccl/api/translate.h"
#include "nccl/stream/neighbors.h"

namespace weir::nccl {

namespace {

Collective collective_of(OperationKind kind) {
  switch (kind) {
    case OperationKind::kReduce:
      return Collective::kReduce;
    case OperationKind::kBroadcast:
      return Collective::kBroadcast;
    case OperationKind::kReduceScatter:
      return Collective::kReduceScatter;
    case OperationKind::kAllGather:
      return Collective::kAllGather;
    case OperationKind::kAllToAll:
      return Collective::kAllToAll;
    case OperationKind::kGather:
      return Collective::kGather;
    case OperationKind::kScatter:
      return Collective::kScatter;
    default:
      return Collective::kAllReduce;
  }
}

class CommAsOwner final : public comm::StreamOwner {
 public:
  explicit CommAsOwner(std::shared_ptr<Comm> comm) : comm_(std::move(comm)) {}

  bool is_broken() override { return comm_->broken(); }
  std::string last_error() override { return comm_->last_error(); }
  bool hears_of_error(const char* function) override {
    const ncclResult_t error = comm_->reported_error(function);
    if (error == ncclSuccess) return false;
    comm_->stream_failed({error, comm_->last_error()});
    return true;
  }
  std::vector<Rank> gone_ranks() override { return comm_->weir()->comm->gone_ranks(); }
  std::string describe_lost(const std::vector<Rank>& ranks) override {
    return comm_->weir()->comm->describe_lost(ranks);
  }
  void note_stuck(const void* call, const std::vector<Rank>& awaited) override {
    comm_->weir()->comm->note_stuck(call, awaited);
  }
  bool find_culprits(const std::vector<Rank>& awaited, const comm::WaitTime& time,
                     uint64_t timeout_ns, std::vector<Rank>* culprits) override {
    return comm_->weir()->comm->find_culprits(awaited, time, timeout_ns, culprits);
  }
  void give_up(const Status& why, const std::vector<Rank>&) override {
    comm_->give_up(outcome_of(why));
  }
  std::string message_hint(const std::vector<Rank>&) override { return ""; }
  std::string collective_hint(const std::vector<Rank>& ranks) override {
    return comm_->weir()->comm->calls_elsewhere(ranks);
  }
  std::string queue_hint() override {
    const Neighbors* neighbors = comm_->devices().neighbors().get();
    const cuda::Driver* driver = cuda::known_driver();
    if (neighbors == nullptr || driver == nullptr) return "";
    return neighbors->hint(*driver, comm_->rank());
  }

 private:
  const std::shared_ptr<Comm> comm_;
};

}  // namespace

engine::Call core_call(const Operation& operation) {
  engine::Call call;
  call.collective = collective_of(operation.kind);
  call.type = static_cast<DataType>(operation.type);
  call.scaled = operation.factor.has_value();
  call.average = !call.scaled && operation.op == WEIR_AVG;
  if (is_reduction(operation.kind) && !call.scaled && !call.average) {
    call.fold = static_cast<Fold>(operation.op);
  }
  call.root = static_cast<Rank>(operation.peer);
  call.count = operation.count;
  call.input = operation.send;
  call.output = operation.recv;
  if (call.scaled) std::memcpy(call.scale, operation.factor->value, sizeof call.scale);
  return call;
}

comm::StreamMessage core_message(const Operation& operation) {
  comm::StreamMessage message;
  message.peer = static_cast<Rank>(operation.peer);
  message.sends = operation.kind == OperationKind::kSend;
  message.buffer = message.sends ? static_cast<char*>(const_cast<void*>(operation.send))
                                 : static_cast<char*>(operation.recv);
  message.bytes = operation.count * element_bytes(operation.type);
  return message;
}

std::shared_ptr<comm::StreamOwner> owner_of(std::shared_ptr<Comm> comm) {
  return std::make_shared<CommAsOwner>(std::move(comm));
}

}  // namespace weir::nccl
