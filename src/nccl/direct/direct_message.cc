// SPDX-License-Identifier: Apache-2.0
#include "nccl/direct/direct_message.h"

#include <fmt/format.h>

#include "api/handles.h"
#include "nccl/api/translate.h"
#include "nccl/direct/direct_policy.h"
#include "nccl/direct/exports.h"

namespace weir::nccl {

DirectMessage::DirectMessage(const Operation& operation, std::shared_ptr<DeviceQueue> queue)
    : operation_(operation),
      comm_(*operation.comm),
      queue_(std::move(queue)),
      message_bytes_(operation.count * element_bytes(operation.type)),
      call_(operation, operation.comm->weir()),
      answer_call_(operation, operation.comm->devices().answers()) {}

Outcome DirectMessage::advance(State* state, bool* moved) {
  Outcome outcome = step(state, moved);
  // Peers that wait in the communicator itself must learn of a failure of the other one.
  if (!outcome.ok()) comm_.couple_failures();
  return outcome;
}

Outcome DirectMessage::step(State* state, bool* moved) {
  *state = State::kGoing;
  *moved = true;
  Outcome outcome;
  switch (phase_) {
    case Phase::kBegin:
      phase_ = Phase::kTelling;
      return begin();
    case Phase::kTelling:
      if (*moved = call_.ended(&outcome); !*moved || !outcome.ok()) return outcome;
      return told(state);
    case Phase::kCopying:
      if (*moved = queue_->passed(mark_); !*moved) return {};
      if (failure_.ok()) failure_ = queue_->failure(operation_.function);
      return answer(failure_.ok() ? Answer::kCopied : Answer::kFailed);
    case Phase::kAnswering:
      if (*moved = answer_call_.ended(&outcome); !*moved || !outcome.ok()) return outcome;
      return answered(state);
  }
  return {};
}

Outcome DirectMessage::begin() {
  shown_.bytes = message_bytes_;
  const auto bytes = sizeof shown_;
  if (!sends()) {
    return call_.start([&](weir_comm_t comm, weir_request_t* request) {
      return message_for_direct(false, comm, &shown_, bytes, operation_.peer, message_bytes_,
                                request);
    });
  }
  shown_.usable = queue_ != nullptr && comm_.devices().tries_messages_to(operation_.peer) ? 1 : 0;
  if (shown_.usable == 1) {
    const cuda::ContextScope scope(queue_->driver(), nullptr, queue_->context());
    shown_.process = this_process();
    shown_.range = range_of(queue_->driver(), operation_.send, !comm_.devices().in_one_process(),
                            shown_.bytes);
    if (!comm_.devices().in_one_process() && shown_.range.shared == kSharedNot) {
      shown_.usable = 0;
      if (comm_.devices().note(DeviceState::Event::kNotShared)) {
        explain(comm_,
                fmt::format("some messages that rank {} sends go through host memory: {}",
                            comm_.rank(), text_of(static_cast<Refusal>(shown_.range.refusal))));
      }
    }
  }
  return call_.start([&](weir_comm_t comm, weir_request_t* request) {
    return message_for_direct(true, comm, &shown_, bytes, operation_.peer, message_bytes_, request);
  });
}

Outcome DirectMessage::told(State* state) {
  if (shown_.usable != 1) {
    *state = State::kRefused;
    return {};
  }
  if (sends()) {
    phase_ = Phase::kAnswering;
    return answer_call_.start([&](weir_comm_t comm, weir_request_t* request) {
      return message_for_direct(false, comm, &reply_, sizeof reply_, operation_.peer,
                                message_bytes_, request);
    });
  }
  // A sender that has given up may use its buffer again.
  weir_result_t gone = WEIR_OK;
  if (weir_comm_async_error(comm_.devices().answers(), &gone) == WEIR_OK && gone != WEIR_OK) {
    return {to_nccl(gone, comm_.stopped_here()),
            fmt::format("{}: {}", operation_.function, weir_last_error(comm_.devices().answers()))};
  }
  const size_t bytes = operation_.count * element_bytes(operation_.type);
  if (shown_.bytes != bytes) return answer(Answer::kOtherLength);
  if (queue_ == nullptr) return answer(Answer::kNotThisTime);
  const cuda::ContextScope scope(queue_->driver(), nullptr, queue_->context());
  const Reached from = reach(queue_->driver(), shown_.process, shown_.range, bytes);
  if (from.address == nullptr) {
    explain(comm_, fmt::format("from now on, messages from rank {} to rank {} go through host "
                               "memory: rank {} cannot reach the sender's memory: {}",
                               operation_.peer, comm_.rank(), comm_.rank(), from.reason));
    return answer(Answer::kUnreachable);
  }
  failure_ =
      queue_->copy(operation_.function, operation_.recv, bytes, from.address, bytes, 1, bytes);
  Outcome marked = queue_->mark(operation_.function);
  if (failure_.ok()) failure_ = std::move(marked);
  mark_ = queue_->latest();
  phase_ = Phase::kCopying;
  return {};
}

Outcome DirectMessage::answer(Answer it) {
  reply_ = {it, 0, message_bytes_};
  phase_ = Phase::kAnswering;
  return answer_call_.start([&](weir_comm_t comm, weir_request_t* request) {
    return message_for_direct(true, comm, &reply_, sizeof reply_, operation_.peer, message_bytes_,
                              request);
  });
}

// The same text at both ends.
Outcome DirectMessage::other_length() const {
  const int here = comm_.rank();
  return invalid_usage(
      fmt::format("{}, rank {} of {}: rank {} sends {} bytes, rank {} receives {}: a send and its "
                  "receive must have the same count and type",
                  operation_.function, here, comm_.rank_count(), sends() ? here : operation_.peer,
                  shown_.bytes, sends() ? operation_.peer : here, reply_.bytes));
}

Outcome DirectMessage::answered(State* state) {
  switch (reply_.answer) {
    case Answer::kCopied:
      if (comm_.devices().note(DeviceState::Event::kSent)) {
        explain(comm_, fmt::format("messages of rank {} on device memory are copied directly",
                                   comm_.rank()));
      }
      *state = State::kDone;
      return {};
    case Answer::kNotThisTime:
      *state = State::kRefused;
      return {};
    case Answer::kUnreachable:
      if (sends()) comm_.devices().give_up_messages_to(operation_.peer);
      *state = State::kRefused;
      return {};
    case Answer::kOtherLength:
      return other_length();
    case Answer::kFailed:
      break;
  }
  if (!failure_.ok()) return failure_;
  return {ncclRemoteError,
          fmt::format("{}, rank {} of {}: rank {} could not copy the {} bytes of rank {}",
                      operation_.function, comm_.rank(), comm_.rank_count(), operation_.peer,
                      shown_.bytes, comm_.rank())};
}

}  // namespace weir::nccl
