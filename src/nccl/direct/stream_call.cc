// SPDX-License-Identifier: Apache-2.0
#include "nccl/direct/stream_call.h"

#include <fmt/format.h>

#include <cstring>

#include "core/engine/call.h"
#include "cuda/kernels/reduce_layout.h"
#include "nccl/api/translate.h"
#include "nccl/host/buffers.h"
#include "nccl/host/slices.h"

namespace weir::nccl {

namespace {

using comm::StreamBuffer;
using comm::StreamOp;

kernels::ReduceFold fold_of(weir_redop_t op) {
  switch (op) {
    case WEIR_PROD:
      return kernels::ReduceFold::kProd;
    case WEIR_MAX:
      return kernels::ReduceFold::kMax;
    case WEIR_MIN:
      return kernels::ReduceFold::kMin;
    default:  // also of an average
      return kernels::ReduceFold::kSum;
  }
}

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

comm::StreamCall program_call(const Operation& operation) {
  comm::StreamCall call;
  call.collective = collective_of(operation.kind);
  call.root = static_cast<Rank>(operation.peer);
  call.count = operation.count;
  call.element_bytes = static_cast<uint32_t>(element_bytes(operation.type));
  call.fingerprint = words_of(operation).fingerprint;
  return call;
}

// Whether kernels of the current context store into it.
bool is_of_this_context(const cuda::Driver& driver, const void* memory) {
  if (!cuda::only_on_device(driver, memory)) return false;
  cuda::Context here = nullptr;
  cuda::Context there = nullptr;
  int attribute = cuda::kAttributeContext;
  void* data = &there;
  return driver.cuCtxGetCurrent(&here) == cuda::kSuccess &&
         driver.cuPointerGetAttributes(1, &attribute, &data, address(memory)) == cuda::kSuccess &&
         there == here;
}

}  // namespace

CallWords words_of(const Operation& operation) {
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
  CallWords words;
  words.what = engine::pack_what(call);
  words.count = operation.count;
  words.fingerprint = engine::fingerprint(words.what, words.count);
  return words;
}

StreamCall::StreamCall(const Operation& operation, std::shared_ptr<StreamMemory> memory,
                       cuda::Stream stream, uint32_t number, uint32_t* started, uint32_t* ended)
    : memory_(std::move(memory)),
      calls_(memory_->driver(), operation.function, stream),
      number_(number),
      started_(address(started)),
      ended_(address(ended)),
      send_(static_cast<const char*>(operation.send)),
      recv_(static_cast<char*>(operation.recv)),
      element_bytes_(static_cast<uint32_t>(element_bytes(operation.type))),
      program_(program_call(operation), memory_->rank(), memory_->rank_count(),
               memory_->slot_bytes()) {}

Outcome StreamCall::make(const Operation& operation, const std::shared_ptr<StreamMemory>& memory,
                         cuda::Stream stream, uint32_t number, uint32_t* started, uint32_t* ended,
                         std::shared_ptr<Staging>* pinned, std::unique_ptr<StreamCall>* made) {
  std::unique_ptr<StreamCall> it(new StreamCall(operation, memory, stream, number, started, ended));
  Outcome outcome = it->prepare(operation);
  if (outcome.ok()) outcome = it->prepare_host_copies(operation, pinned);
  if (outcome.ok()) *made = std::move(it);
  return outcome;
}

Outcome StreamCall::prepare_host_copies(const Operation& operation,
                                        std::shared_ptr<Staging>* pinned) {
  const Cut whole = cut(operation, 0);
  sends_plain_ = whole.send_blocks > 0 && cuda::is_unknown(calls_.driver(), send_);
  receives_plain_ = whole.recv_blocks > 0 && cuda::is_unknown(calls_.driver(), recv_);
  if (!sends_plain_ && !receives_plain_ &&
      (factor_memory_ == nullptr || !cuda::is_unknown(calls_.driver(), factor_memory_))) {
    return {};
  }
  if (*pinned == nullptr) {
    Outcome outcome =
        get_staging(calls_.driver(), calls_.function(), 1, memory_->slot_bytes(), pinned);
    if (!outcome.ok()) return outcome;
  }
  host_copies_ = std::make_shared<HostCopies>();
  host_copies_->pinned = *pinned;
  return {};
}

Outcome StreamCall::prepare(const Operation& operation) {
  if (!is_reduction(operation.kind)) return {};
  std::string reason;
  const DeviceKernels* kernels = memory_->kernels(&reason);
  if (kernels == nullptr) {
    return {ncclUnhandledCudaError, fmt::format("{}: {}", calls_.function(), reason)};
  }
  kernel_ = kernels->of(operation.type);
  fold_ = fold_of(operation.op);
  if (operation.op == WEIR_AVG) divisor_ = memory_->rank_count();
  if (operation.factor.has_value()) {
    fold_ = kernels::ReduceFold::kSum;
    divisor_ = 1;
    is_scaled_ = true;
    std::memcpy(factor_, operation.factor->value, sizeof factor_);
    factor_memory_ = static_cast<const char*>(operation.factor->device_scalar);
  }
  writes_recv_ = reinterpret_cast<uintptr_t>(recv_) % element_bytes_ == 0 &&
                 is_of_this_context(calls_.driver(), recv_);
  return {};
}

void StreamCall::check_first(const Operation& operation) {
  if (host_copies_ == nullptr) host_copies_ = std::make_shared<HostCopies>();
  host_copies_->checked = operation;
}

void StreamCall::enqueue_check() {
  if (host_copies_ == nullptr || !host_copies_->checked.has_value()) return;
  calls_.call_on_host(
      [](void* argument) {
        const Operation& it = *static_cast<HostCopies*>(argument)->checked;
        Outcome outcome = check_buffers(it);
        if (outcome.ok()) return;
        outcome.text += " when the stream came to the call";
        it.comm->give_up(outcome);
      },
      host_copies_.get());
}

void StreamCall::wait_for(uint32_t* word) {
  calls_.wait(address(word), 1);
  calls_.write(address(word), 0);
}

Outcome StreamCall::enqueue_step() {
  if (!calls_.ok() || next_ == step_count()) return calls_.outcome();
  if (next_ == 0) {
    enqueue_check();
    calls_.write(started_, number_);
    // When the stream has come to the call.
    if (factor_memory_ != nullptr) {
      copy(memory_->factor_room(), false, factor_memory_,
           cuda::is_unknown(calls_.driver(), factor_memory_), element_bytes_);
    }
  }
  program_.step(next_, &ops_);
  for (const StreamOp& op : ops_) {
    if (op.kind == StreamOp::Kind::kWait) {
      calls_.wait(memory_->flag(op.flag), op.value);
    } else if (op.kind == StreamOp::Kind::kSet) {
      calls_.write(memory_->flag(op.flag), op.value);
    } else if (op.kind == StreamOp::Kind::kCopy) {
      copy(at(op.to), op.to.memory == StreamBuffer::kRecv && receives_plain_, at(op.from),
           op.from.memory == StreamBuffer::kSend && sends_plain_, op.bytes);
      if (op.contributes && is_scaled_) scale(at(op.to), op.count);
    } else {
      reduce(op);
    }
  }
  ++next_;
  if (next_ == step_count()) calls_.write(ended_, number_);
  calls_.flush();
  return calls_.outcome();
}

char* StreamCall::at(const comm::StreamPlace& place) const {
  switch (place.memory) {
    case StreamBuffer::kSend:
      return const_cast<char*>(send_) + place.offset;
    case StreamBuffer::kRecv:
      return recv_ + place.offset;
    default:
      return memory_->scratch(place.rank) + place.offset;
  }
}

void StreamCall::copy(char* to, bool to_plain, const char* from, bool from_plain, uint64_t bytes) {
  if (bytes == 0 || to == from) return;
  if (to_plain && from_plain) {
    copy_on_host(to, from, bytes);
    return;
  }
  char* const pinned = to_plain || from_plain ? host_copies_->pinned->bytes : nullptr;
  if (from_plain) {
    copy_on_host(pinned, from, bytes);
    from = pinned;
  }
  calls_.copy(to_plain ? pinned : to, from, bytes);
  if (to_plain) copy_on_host(to, pinned, bytes);
}

void StreamCall::copy_on_host(void* to, const void* from, uint64_t bytes) {
  host_copies_->all.push_back({to, from, bytes});
  calls_.copy_on_host(&host_copies_->all.back());
}

// In place: the product is rounded to the type before it is folded.
void StreamCall::scale(char* data, uint64_t count) {
  kernels::ReduceArguments arguments;
  arguments.count = count;
  arguments.source_count = arguments.destination_count = 1;
  arguments.sources[0] = arguments.destinations[0] = data;
  if (factor_memory_ != nullptr) {
    arguments.scaled = kernels::kScaledByMemory;
    arguments.scales[0] = reinterpret_cast<uintptr_t>(memory_->factor_room());
  } else {
    arguments.scaled = kernels::kScaled;
    std::memcpy(&arguments.scales[0], factor_, sizeof factor_);
  }
  launch(&arguments);
}

void StreamCall::reduce(const StreamOp& op) {
  kernels::ReduceArguments arguments;
  arguments.count = op.count;
  arguments.source_count = memory_->rank_count();
  arguments.fold = fold_;
  arguments.divisor = divisor_;
  for (Rank rank = 0; rank < memory_->rank_count(); ++rank) {
    arguments.sources[rank] = memory_->scratch(rank) + op.from.offset;
  }
  char* const kept = memory_->scratch(memory_->rank()) + op.from.offset;
  const bool stores_here = op.stores && writes_recv_;
  char* const other = op.keeps ? kept : memory_->own_room();
  uint32_t count = 0;
  if (stores_here) arguments.destinations[count++] = at(op.to);
  if (op.keeps || !stores_here) arguments.destinations[count++] = other;
  arguments.destination_count = count;
  launch(&arguments);
  if (op.stores && !writes_recv_) {
    copy(at(op.to), receives_plain_, other, false, op.count * element_bytes_);
  }
}

void StreamCall::launch(kernels::ReduceArguments* arguments) {
  calls_.launch(kernel_, kernels::lay_out(arguments, element_bytes_), kernels::kBlockThreads,
                arguments);
}

}  // namespace weir::nccl
