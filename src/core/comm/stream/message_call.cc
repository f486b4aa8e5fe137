// SPDX-License-Identifier: Apache-2.0
#include "core/comm/stream/message_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cuda/kernels/message_loop.h"

namespace weir::comm {

namespace {

constexpr size_t kAlign = 256;

size_t aligned(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

}  // namespace

MessageCall::MessageCall(const char* function, std::shared_ptr<StreamMemory> memory,
                         cuda::Stream stream, const StreamWords& words, uint32_t number)
    : memory_(std::move(memory)),
      calls_(memory_->driver(), function, stream),
      number_(number),
      started_(address(&words.calls().ready)),
      ended_(address(&words.calls().done)),
      staging_(std::make_shared<MessageStaging>()) {}

Status MessageCall::make(const char* function, const std::vector<StreamMessage>& messages,
                         const std::shared_ptr<StreamMemory>& memory, cuda::Stream stream,
                         const StreamWords& words, uint32_t number,
                         std::unique_ptr<MessageCall>* made) {
  std::unique_ptr<MessageCall> it(new MessageCall(function, memory, stream, words, number));
  std::string reason;
  const DeviceKernels* kernels = memory->kernels(&reason);
  if (kernels == nullptr) {
    return Status(Code::kSystem, fmt::format("{}: {}", function, reason));
  }
  it->kernel_ = kernels->messages;
  Status status = it->lay_out(messages);
  if (status.ok()) *made = std::move(it);
  return status;
}

std::vector<MessageCall::Order> MessageCall::orders_of(const std::vector<StreamMessage>& messages) {
  std::vector<Order> orders;
  for (size_t i = 0; i < messages.size(); ++i) {
    const Rank peer = messages[i].peer;
    const bool sends = messages[i].sends;
    auto known = std::find_if(orders.begin(), orders.end(), [&](const Order& it) {
      return it.peer == peer && it.sends == sends;
    });
    if (known == orders.end()) known = orders.insert(orders.end(), Order{peer, sends, {}});
    known->messages.push_back(i);
  }
  return orders;
}

// Where the kernel reads or writes each message.
Status MessageCall::find_places(const std::vector<StreamMessage>& messages,
                                std::vector<char*>* places) {
  size_t bytes = 0;
  for (size_t i = 0; i < messages.size(); ++i) {
    const StreamMessage& it = messages[i];
    places->push_back(it.buffer);
    if (it.bytes == 0) continue;
    const cuda::MemoryPlace place = cuda::place_of(calls_.driver(), it.buffer);
    const bool plain = place == cuda::MemoryPlace::kPlain;
    const bool elsewhere = place == cuda::MemoryPlace::kDevice &&
                           !cuda::is_on_current_device(calls_.driver(), it.buffer);
    if (!plain && !elsewhere) continue;
    bounces_.push_back({i, it.buffer, nullptr, it.bytes, it.sends, plain});
    bytes += aligned(it.bytes);
  }
  if (bounces_.empty()) return {};
  Status status = get_staging(calls_.driver(), calls_.function(), 1, bytes, &staging_->pinned);
  if (!status.ok()) return status;
  char* next = staging_->pinned->bytes;
  for (Bounce& it : bounces_) {
    it.pinned = (*places)[it.message] = next;
    next += aligned(it.bytes);
  }
  return {};
}

Status MessageCall::lay_out(const std::vector<StreamMessage>& messages) {
  std::vector<char*> places;
  Status status = find_places(messages, &places);
  if (!status.ok()) return status;
  const std::vector<Order> orders = orders_of(messages);
  const Rank me = memory_->rank();
  arguments_.slot_bytes = memory_->message_slot_bytes();
  arguments_.stop = memory_->stop_word();
  arguments_.order_count = static_cast<uint32_t>(orders.size());
  arguments_.message_count = static_cast<uint32_t>(messages.size());
  kernels::MessageOrder* all_orders = arguments_.orders_here;
  kernels::MessageData* all_messages = arguments_.messages_here;
  if (orders.size() > kernels::MessageArguments::kOrdersHere ||
      messages.size() > kernels::MessageArguments::kMessagesHere) {
    const size_t order_bytes = orders.size() * sizeof(kernels::MessageOrder);
    const size_t message_bytes = messages.size() * sizeof(kernels::MessageData);
    status = get_staging(calls_.driver(), calls_.function(), 1, order_bytes + message_bytes,
                         &staging_->list);
    if (!status.ok()) return status;
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
    order.count = static_cast<uint32_t>(it.messages.size());
    order.sends = it.sends ? 1 : 0;
    all_orders[i] = order;
    uint32_t lanes = 1;
    for (const size_t index : it.messages) {
      const uint64_t bytes = messages[index].bytes;
      lanes = std::max(lanes, kernels::lanes_of(bytes));
      all_messages[message++] = {places[index], bytes};
    }
    tracks = std::max(tracks, lanes * arguments_.order_count);
  }
  constexpr uint32_t kMost = kernels::kMessageTracksMax;
  const uint32_t least = (kernels::track_count(arguments_) + kMost - 1) / kMost;
  blocks_ = std::max(std::min(tracks, kernels::kMessageBlocks), least);
  return {};
}

Status MessageCall::tell_begin(const uint64_t** words) {
  const size_t count = size_t{kernels::kMessageLanes} * arguments_.order_count;
  WEIR_RETURN_IF_ERROR(get_staging(calls_.driver(), calls_.function(), 1, count * sizeof(uint64_t),
                                   &staging_->begun));
  auto* const begun = reinterpret_cast<uint64_t*>(staging_->begun->bytes);
  std::fill_n(begun, count, uint64_t{0});
  auto* const orders = arguments_.orders != nullptr
                           ? reinterpret_cast<kernels::MessageOrder*>(staging_->list->bytes)
                           : arguments_.orders_here;
  for (size_t i = 0; i < arguments_.order_count; ++i) {
    orders[i].begun = begun + i * kernels::kMessageLanes;
  }
  *words = begun;
  return {};
}

void MessageCall::enqueue_check() {
  if (staging_->check == nullptr) return;
  calls_.call_on_host([](void* argument) { static_cast<MessageStaging*>(argument)->check(); },
                      staging_.get());
}

void MessageCall::copy(const Bounce& it) {
  char* const to = it.sends ? it.pinned : it.buffer;
  char* const from = it.sends ? it.buffer : it.pinned;
  if (!it.by_host) return calls_.copy(to, from, it.bytes);
  staging_->copies.push_back({to, from, it.bytes});
  calls_.copy_on_host(&staging_->copies.back());
}

Status MessageCall::enqueue_kernel() {
  if (gate_ != nullptr) {
    calls_.wait(address(gate_), 1);
    calls_.write(address(gate_), 0);
  }
  enqueue_check();
  calls_.write(started_, number_);
  if (repeats_) calls_.write(ended_, 0);
  for (const Bounce& it : bounces_) {
    if (it.sends) copy(it);
  }
  calls_.launch(kernel_, blocks_, kernels::kMessageThreads, &arguments_);
  return calls_.status();
}

bool MessageCall::copies_after() const {
  return std::any_of(bounces_.begin(), bounces_.end(), [](const Bounce& it) { return !it.sends; });
}

Status MessageCall::enqueue_end() {
  for (const Bounce& it : bounces_) {
    if (!it.sends) copy(it);
  }
  calls_.write(ended_, number_);
  calls_.flush();
  done_ = calls_.ok();
  return calls_.status();
}

}  // namespace weir::comm
