// SPDX-License-Identifier: Apache-2.0
#include "nccl/direct/message_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "cuda/kernels/message_loop.h"
#include "nccl/api/translate.h"
#include "nccl/host/buffers.h"

namespace weir::nccl {

namespace {

uint64_t bytes_of(const Operation& operation) {
  return operation.count * element_bytes(operation.type);
}

char* buffer_of(const Operation& operation) {
  return operation.kind == OperationKind::kSend
             ? static_cast<char*>(const_cast<void*>(operation.send))
             : static_cast<char*>(operation.recv);
}

// Memory of another device than the current context's. (Memory made by mapping, and that of pools,
// has no context.)
bool is_of_another_device(const cuda::Driver& driver, const void* memory) {
  if (!cuda::only_on_device(driver, memory)) return false;
  cuda::Context here = nullptr;
  cuda::Context there = nullptr;
  int attribute = cuda::kAttributeContext;
  void* data = &there;
  if (driver.cuCtxGetCurrent(&here) == cuda::kSuccess &&
      driver.cuPointerGetAttributes(1, &attribute, &data, address(memory)) == cuda::kSuccess &&
      there != nullptr) {
    return there != here;
  }
  int device = -1;
  attribute = cuda::kAttributeDeviceOrdinal;
  data = &device;
  return driver.cuPointerGetAttributes(1, &attribute, &data, address(memory)) != cuda::kSuccess ||
         device != cuda::current_device();
}

constexpr size_t kAlign = 256;

size_t aligned(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

}  // namespace

MessageCall::MessageCall(const char* function, std::shared_ptr<StreamMemory> memory,
                         cuda::Stream stream, uint32_t number, uint32_t* started, uint32_t* ended)
    : memory_(std::move(memory)),
      calls_(memory_->driver(), function, stream),
      number_(number),
      started_(address(started)),
      ended_(address(ended)),
      staging_(std::make_shared<MessageStaging>()) {
  staging_->memory = memory_;
}

Outcome MessageCall::make(const std::vector<Operation>& operations,
                          const std::shared_ptr<StreamMemory>& memory, cuda::Stream stream,
                          uint32_t number, uint32_t* started, uint32_t* ended,
                          std::unique_ptr<MessageCall>* made) {
  std::unique_ptr<MessageCall> it(
      new MessageCall(operations[0].function, memory, stream, number, started, ended));
  std::string reason;
  const DeviceKernels* kernels = memory->kernels(&reason);
  if (kernels == nullptr) {
    return {ncclUnhandledCudaError, fmt::format("{}: {}", it->calls_.function(), reason)};
  }
  it->kernel_ = kernels->messages;
  Outcome outcome = it->lay_out(operations);
  if (outcome.ok()) *made = std::move(it);
  return outcome;
}

std::vector<MessageCall::Order> MessageCall::orders_of(const std::vector<Operation>& operations) {
  std::vector<Order> orders;
  for (size_t i = 0; i < operations.size(); ++i) {
    const auto peer = static_cast<Rank>(operations[i].peer);
    const bool sends = operations[i].kind == OperationKind::kSend;
    auto known = std::find_if(orders.begin(), orders.end(), [&](const Order& it) {
      return it.peer == peer && it.sends == sends;
    });
    if (known == orders.end()) known = orders.insert(orders.end(), Order{peer, sends, {}});
    known->operations.push_back(i);
  }
  return orders;
}

// Where the kernel reads or writes each message.
Outcome MessageCall::find_places(const std::vector<Operation>& operations,
                                 std::vector<char*>* places) {
  size_t bytes = 0;
  for (size_t i = 0; i < operations.size(); ++i) {
    const Operation& it = operations[i];
    char* const buffer = buffer_of(it);
    places->push_back(buffer);
    if (bytes_of(it) == 0) continue;
    const bool plain = cuda::is_unknown(calls_.driver(), buffer);
    if (!plain && !is_of_another_device(calls_.driver(), buffer)) continue;
    bounces_.push_back({i, buffer, nullptr, bytes_of(it), it.kind == OperationKind::kSend, plain});
    bytes += aligned(bytes_of(it));
  }
  if (bounces_.empty()) return {};
  Outcome outcome = get_staging(calls_.driver(), calls_.function(), 1, bytes, &staging_->pinned);
  if (!outcome.ok()) return outcome;
  char* next = staging_->pinned->bytes;
  for (Bounce& it : bounces_) {
    it.pinned = (*places)[it.operation] = next;
    next += aligned(it.bytes);
  }
  return {};
}

Outcome MessageCall::lay_out(const std::vector<Operation>& operations) {
  std::vector<char*> places;
  Outcome outcome = find_places(operations, &places);
  if (!outcome.ok()) return outcome;
  const std::vector<Order> orders = orders_of(operations);
  const Rank me = memory_->rank();
  arguments_.slot_bytes = memory_->message_slot_bytes();
  arguments_.stop = memory_->stop_word();
  arguments_.order_count = static_cast<uint32_t>(orders.size());
  arguments_.message_count = static_cast<uint32_t>(operations.size());
  kernels::MessageOrder* all_orders = arguments_.orders_here;
  kernels::MessageData* all_messages = arguments_.messages_here;
  if (orders.size() > kernels::MessageArguments::kOrdersHere ||
      operations.size() > kernels::MessageArguments::kMessagesHere) {
    const size_t order_bytes = orders.size() * sizeof(kernels::MessageOrder);
    const size_t message_bytes = operations.size() * sizeof(kernels::MessageData);
    outcome = get_staging(calls_.driver(), calls_.function(), 1, order_bytes + message_bytes,
                          &staging_->list);
    if (!outcome.ok()) return outcome;
    all_orders = reinterpret_cast<kernels::MessageOrder*>(staging_->list->bytes);
    all_messages = reinterpret_cast<kernels::MessageData*>(staging_->list->bytes + order_bytes);
    arguments_.orders = all_orders;
    arguments_.messages = all_messages;
  }
  uint32_t message = 0;
  uint32_t tracks = 0;
  for (size_t i = 0; i < orders.size(); ++i) {
    const Order& it = orders[i];
    const Rank writer = it.sends ? me : it.peer;
    const Rank reader = it.sends ? it.peer : me;
    kernels::MessageOrder order;
    order.fifo = memory_->message_slots(writer, reader);
    order.lanes = memory_->lanes(writer, reader);
    order.first = message;
    order.count = static_cast<uint32_t>(it.operations.size());
    order.sends = it.sends ? 1 : 0;
    all_orders[i] = order;
    uint32_t lanes = 1;
    for (const size_t operation : it.operations) {
      const uint64_t bytes = bytes_of(operations[operation]);
      lanes = std::max(lanes, kernels::lanes_of(bytes));
      all_messages[message++] = {places[operation], bytes};
    }
    tracks = std::max(tracks, lanes * arguments_.order_count);
  }
  constexpr uint32_t kMost = kernels::kMessageTracksMax;
  const uint32_t least = (kernels::track_count(arguments_) + kMost - 1) / kMost;
  blocks_ = std::max(std::min(tracks, kernels::kMessageBlocks), least);
  return {};
}

void MessageCall::enqueue_check() {
  if (staging_->checked.empty()) return;
  calls_.call_on_host(
      [](void* argument) {
        const auto& it = *static_cast<MessageStaging*>(argument);
        for (const Operation& operation : it.checked) {
          Outcome outcome = check_buffers(operation);
          if (outcome.ok()) continue;
          outcome.text += " when the stream came to the call";
          it.memory->spoil();
          it.memory->stop_messages();
          operation.comm->give_up(outcome);
          return;
        }
      },
      staging_.get());
}

void MessageCall::copy(const Bounce& it) {
  char* const to = it.sends ? it.pinned : it.buffer;
  char* const from = it.sends ? it.buffer : it.pinned;
  if (!it.by_host) return calls_.copy(to, from, it.bytes);
  staging_->copies.push_back({to, from, it.bytes});
  calls_.copy_on_host(&staging_->copies.back());
}

Outcome MessageCall::enqueue_kernel() {
  if (gate_ != nullptr) {
    calls_.wait(address(gate_), 1);
    calls_.write(address(gate_), 0);
  }
  enqueue_check();
  calls_.write(started_, number_);
  for (const Bounce& it : bounces_) {
    if (it.sends) copy(it);
  }
  calls_.launch(kernel_, blocks_, kernels::kMessageThreads, &arguments_);
  return calls_.outcome();
}

Outcome MessageCall::enqueue_end() {
  for (const Bounce& it : bounces_) {
    if (!it.sends) copy(it);
  }
  calls_.write(ended_, number_);
  calls_.flush();
  done_ = calls_.ok();
  return calls_.outcome();
}

}  // namespace weir::nccl
