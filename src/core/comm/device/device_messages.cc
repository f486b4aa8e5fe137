// SPDX-License-Identifier: Apache-2.0
#include "core/comm/device/device_messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "core/base/per_process.h"

namespace weir::comm {

namespace {

bool sends(const Request& request) { return request.kind == RequestKind::kSend; }

StreamMessage message_of(const Request& request) {
  StreamMessage message;
  message.peer = request.peer;
  message.sends = sends(request);
  message.buffer = static_cast<char*>(request.call.output);
  message.bytes = request.bytes;
  return message;
}

}  // namespace

// ---- Which can be enqueued ----------------------------------------------------------------------

struct DeviceMessages::Holds {
  static constexpr uint8_t kByOwn = 1;      // a message without a stream has not ended
  static constexpr uint8_t kByCallers = 2;  // nor has one on a stream of the caller's
  static constexpr uint8_t kByEarlier = 4;  // an earlier one cannot be enqueued
  static constexpr uint8_t kHasOwn = 8;     // earlier ones that can be
  static constexpr uint8_t kHasCallers = 16;

  std::vector<uint8_t> pairs;
  bool all_on_streams = false;

  bool hold(uint8_t pair, bool on_stream) const {
    if (on_stream) return (pair & (kByOwn | kByEarlier | kHasOwn)) != 0 || all_on_streams;
    return (pair & (kByOwn | kByCallers | kByEarlier | kHasCallers)) != 0;
  }
};

size_t DeviceMessages::pair_of(const Request& request) const {
  return 2 * size_t{request.peer} + (sends(request) ? 1 : 0);
}

size_t DeviceMessages::count_unfinished() const {
  size_t count = 0;
  for (const auto& batch : batches_) {
    if (batch->is_being_enqueued || !batch->by_counters) {
      ++count;
      continue;
    }
    for (const size_t last : batch->lasts) {
      const MessageEnd& end = batch->watch->ends()[last];
      if (!end.has_come() || !end.is_left()) ++count;
    }
  }
  return count;
}

void DeviceMessages::add_pending(Request& request) {
  pending_.push_back(&request);
  single_pending_.resize(2 * size_t{state_.rank_count()});
  ++(is_single(request) ? single_pending_[pair_of(request)] : other_pending_);
}

void DeviceMessages::clear_pending() {
  pending_.clear();
  std::fill(single_pending_.begin(), single_pending_.end(), 0);
  other_pending_ = 0;
}

DeviceMessages::Holds DeviceMessages::look_at_batches() const {
  Holds holds;
  holds.pairs.resize(2 * size_t{state_.rank_count()});
  for (const auto& batch : batches_) {
    holds.all_on_streams = holds.all_on_streams || (batch->on_stream() && batch->is_open);
    for (size_t i = 0; i < batch->messages.size(); ++i) {
      if (batch->by_counters) {
        const MessageEnd& end = batch->watch->ends()[i];
        if (end.has_come() && end.is_left()) continue;
      }
      const StreamMessage& it = batch->messages[i];
      holds.pairs[2 * size_t{it.peer} + (it.sends ? 1 : 0)] |=
          batch->on_stream() ? Holds::kByCallers : Holds::kByOwn;
    }
  }
  return holds;
}

std::vector<bool> DeviceMessages::find_held() const {
  const Holds by_batches = look_at_batches();
  std::vector<bool> held(pending_.size());
  std::set<const CallGroup*> held_groups;
  // A group is enqueued as a whole.
  for (bool again = true; std::exchange(again, false);) {
    Holds holds = by_batches;
    for (size_t i = 0; i < pending_.size(); ++i) {
      const DeviceCall& call = *pending_[i]->device;
      uint8_t& pair = holds.pairs[pair_of(*pending_[i])];
      // The caller of one on its own stream waits for that, and does it.
      const bool is_elsewhere = call.on_stream && is_stream_of_thread(call.stream) &&
                                call.caller != std::this_thread::get_id();
      held[i] =
          held[i] || call.is_of_open_group() || is_elsewhere || holds.hold(pair, call.on_stream);
      if (held[i]) {
        pair |= Holds::kByEarlier;
        holds.all_on_streams = holds.all_on_streams || call.on_stream;
      } else {
        pair |= call.on_stream ? Holds::kHasCallers : Holds::kHasOwn;
      }
    }
    for (size_t i = 0; i < pending_.size(); ++i) {
      const DeviceCall& call = *pending_[i]->device;
      if (held[i] && call.on_stream && call.group != nullptr) held_groups.insert(call.group.get());
    }
    for (size_t i = 0; i < pending_.size(); ++i) {
      const DeviceCall& call = *pending_[i]->device;
      if (held[i] || !call.on_stream || held_groups.count(call.group.get()) == 0) continue;
      held[i] = again = true;
    }
  }
  return held;
}

// What orders the messages of a pair with those in graphs comes behind the kernel: those of other
// pairs, which may depend on the next message of this one, are not in it.
bool DeviceMessages::may_share_kernel(const Request& a, const Request& b) const {
  const auto ordered = [&](const Request& it) { return orders_.count({it.peer, sends(it)}) != 0; };
  return pair_of(a) == pair_of(b) || (!ordered(a) && !ordered(b));
}

DeviceMessages::Batch* DeviceMessages::take_batch(const IsPending& collectives) {
  seen_unfinished_ = count_unfinished();
  const std::vector<bool> held = find_held();
  const auto first = std::find(held.begin(), held.end(), false);
  if (first == held.end()) return nullptr;
  auto batch = std::make_unique<Batch>();
  const Request& leading = *pending_[static_cast<size_t>(first - held.begin())];
  const bool on_stream = leading.device->on_stream;
  if (on_stream) batch->group = leading.device->group;
  std::vector<Request*> rest;
  for (size_t i = 0; i < pending_.size(); ++i) {
    Request* const it = pending_[i];
    const DeviceCall& call = *it->device;
    const bool joins =
        it == &leading || (on_stream ? batch->group != nullptr && call.group == batch->group
                                     : may_share_kernel(leading, *it));
    if (held[i] || call.on_stream != on_stream || !joins) {
      rest.push_back(it);
      continue;
    }
    batch->requests.push_back(it);
    batch->messages.push_back(message_of(*it));
    auto& streams = batch->streams;
    if (on_stream && std::find(streams.begin(), streams.end(), call.stream) == streams.end()) {
      streams.push_back(call.stream);
    }
  }
  clear_pending();
  for (Request* it : rest) add_pending(*it);
  batch->function = sends(leading) ? "weir_send" : "weir_recv";
  batch->is_forked = batch->group != nullptr && collectives(*batch->group);
  if (!on_stream) {
    const auto unused = std::find(own_streams_.begin(), own_streams_.end(), false);
    batch->own_stream = static_cast<size_t>(unused - own_streams_.begin());
    if (unused == own_streams_.end()) own_streams_.push_back(false);
    own_streams_[batch->own_stream] = true;
  }
  for (const StreamWords& words : std::exchange(words_back_, {})) chain_->words.give_back(words);
  batches_.push_back(std::move(batch));
  return batches_.back().get();
}

// ---- From the start to the stream ---------------------------------------------------------------

void DeviceMessages::become_ready(const StreamParts& parts) {
  parts_ = parts;
  has_pending_.store(!pending_.empty(), std::memory_order_release);
}

void DeviceMessages::start(Request& request) {
  request.started = true;
  add_pending(request);
  ++count_;
  // One behind another, which cannot be enqueued yet, cannot either.
  const bool is_behind = is_single(request) && single_pending_[pair_of(request)] > 1;
  if (parts_.memory != nullptr && !is_behind) has_pending_.store(true, std::memory_order_release);
}

std::vector<Request*> DeviceMessages::take_pending() {
  count_ -= pending_.size();
  std::vector<Request*> taken = pending_;
  clear_pending();
  return taken;
}

bool DeviceMessages::has_pending_of(const CallGroup& group) const {
  return std::any_of(pending_.begin(), pending_.end(),
                     [&](const Request* it) { return it->device->group.get() == &group; });
}

void DeviceMessages::enqueue_pending(const IsPending& collectives) {
  while (has_pending()) {
    Batch* batch = nullptr;
    std::vector<Batch*> abandoned;
    {
      const std::lock_guard lock(state_.lock);
      has_pending_.store(false, std::memory_order_release);
      if (!state_.failure.is_set()) {
        batch = take_batch(collectives);
        if (batch == nullptr) return;
        has_pending_.store(true, std::memory_order_release);
      } else {
        for (const auto& it : batches_) {
          if (it->must_be_abandoned()) abandoned.push_back(it.get());
        }
        for (Batch* it : abandoned) it->is_being_enqueued = true;
      }
    }
    if (batch != nullptr) {
      const Status status = parts_.explain_loss(enqueue(*batch));
      // It may have begun, and the peer waits for the rest.
      if (status.code() == Code::kSystem) parts_.owner->give_up(status, {});
      const std::lock_guard lock(state_.lock);
      enqueued(*batch, status);
      continue;
    }
    for (Batch* it : abandoned) abandon(*it);
    const std::lock_guard lock(state_.lock);
    for (Batch* it : abandoned) it->is_being_enqueued = false;
  }
}

void DeviceMessages::enqueue_ends(const IsPending& collectives) {
  for (;;) {
    Batch* batch = nullptr;
    {
      const std::lock_guard lock(state_.lock);
      if (state_.failure.is_set()) return;
      const auto found = std::find_if(batches_.begin(), batches_.end(), [&](const auto& it) {
        return it->is_open && !it->is_being_enqueued && !collectives(*it->group);
      });
      if (found == batches_.end()) return;
      batch = found->get();
      batch->is_being_enqueued = true;
    }
    const cuda::Stream lead = batch->streams[0];
    const cuda::ContextScope scope(parts_.memory->driver(),
                                   cuda::is_default_stream(lead) ? nullptr : lead,
                                   parts_.memory->context());
    const Status status = parts_.explain_loss(enqueue_end(*batch));
    if (status.code() == Code::kSystem) parts_.owner->give_up(status, {});
    const std::lock_guard lock(state_.lock);
    enqueued(*batch, status);
  }
}

Status DeviceMessages::enqueue(Batch& batch) {
  const cuda::Stream lead = batch.on_stream() ? batch.streams[0] : nullptr;
  const cuda::ContextScope scope(parts_.memory->driver(),
                                 cuda::is_default_stream(lead) ? nullptr : lead,
                                 parts_.memory->context());
  WEIR_RETURN_IF_ERROR(find_chain(batch));
  WEIR_RETURN_IF_ERROR(choose_stream(batch));
  WEIR_RETURN_IF_ERROR(make_call(batch));
  batch.is_open = true;
  WEIR_RETURN_IF_ERROR(enqueue_kernel(batch));
  if (batch.is_forked) return Status();
  if (batch.by_counters) {
    batch.is_open = false;
    return Status();
  }
  return enqueue_end(batch);
}

// The streams of a group are captured into one graph, or none is.
Status DeviceMessages::find_chain(Batch& batch) {
  const cuda::Driver& driver = parts_.memory->driver();
  Capture& capture = batch.capture;
  for (size_t i = 0; i < batch.streams.size(); ++i) {
    Capture it;
    WEIR_RETURN_IF_ERROR(parts_.find_capture(batch.function, batch.streams[i], &it));
    if (i == 0) capture = it;
    if (it.active == capture.active && it.number == capture.number) continue;
    return Status(Code::kInvalidUsage,
                  fmt::format("{}: the messages of the group use {} streams together, of which "
                              "some are captured and others are not, or into another graph",
                              batch.function, batch.streams.size()));
  }
  batch.chain = chain_;
  if (!capture.active) return Status();
  batch.chain = nullptr;
  return graphs_.find(driver, batch.function, capture, &batch.chain, &batch.graph);
}

Status DeviceMessages::choose_stream(Batch& batch) {
  StreamMemory& memory = *parts_.memory;
  if (!batch.on_stream()) {
    return memory.own_stream(batch.function, StreamMemory::OwnStream::kMessages,
                             &batch.kernel_stream, batch.own_stream);
  }
  batch.kernel_stream = batch.streams[0];
  if (!batch.is_forked) return Status();
  WEIR_RETURN_IF_ERROR(memory.fork_stream(batch.function, batch.capture, &batch.forked_to));
  batch.kernel_stream = *batch.forked_to;
  return Status();
}

Status DeviceMessages::make_call(Batch& batch) {
  const cuda::Driver& driver = parts_.memory->driver();
  WEIR_RETURN_IF_ERROR(batch.chain->words.take(driver, batch.function, &batch.words));
  WEIR_RETURN_IF_ERROR(MessageCall::make(batch.function, batch.messages, parts_.memory,
                                         batch.kernel_stream, batch.words, WordsPool::kNumber,
                                         &batch.call));
  WatchedCall watched;
  watched.function = batch.function;
  watched.owner = parts_.owner;
  watched.memory = parts_.memory;
  watched.record = parts_.record;
  watched.words = batch.words;
  watched.number = WordsPool::kNumber;
  watched.in_graph = batch.graph != nullptr;
  watched.timeout_ms = batch.requests[0]->timeout_ms;
  batch.watch = std::make_shared<MessageWatch>(watched, batch.messages, true);
  batch.watch->keep(batch.call->staging());
  if (batch.graph != nullptr) batch.call->repeats();
  batch.by_counters = !batch.on_stream() && !batch.call->copies_after();
  if (batch.by_counters) {
    const uint64_t* begun = nullptr;
    WEIR_RETURN_IF_ERROR(batch.call->tell_begin(&begun));
    batch.watch->end_by_counters(batch.messages, begun);
  }
  for (const MessageCall::Order& order : MessageCall::orders_of(batch.messages)) {
    batch.lasts.push_back(order.messages.back());
  }
  return Status();
}

// What the leading stream has passed, the others have, and earlier calls with the same peers.
Status DeviceMessages::enqueue_kernel(Batch& batch) {
  const cuda::Driver& driver = parts_.memory->driver();
  const auto follow = [&](cuda::Stream later, cuda::Stream earlier) {
    return StreamEvent::follow(driver, batch.function, later, earlier);
  };
  for (size_t i = 1; i < batch.streams.size(); ++i) {
    WEIR_RETURN_IF_ERROR(follow(batch.streams[0], batch.streams[i]));
  }
  WEIR_RETURN_IF_ERROR(
      follow_pairs(batch, batch.on_stream() ? batch.streams[0] : batch.kernel_stream));
  if (batch.is_forked) WEIR_RETURN_IF_ERROR(follow(batch.kernel_stream, batch.streams[0]));
  parts_.watches->watch(driver, batch.watch, batch.graph);
  Status status = batch.call->enqueue_kernel();
  const bool begun = batch.call->begun();
  if (begun) batch.watch->note_begun();
  // Otherwise they stand behind its end.
  if (status.ok() && batch.by_counters) status = end_pairs(batch, batch.kernel_stream);
  if (status.ok()) return Status();
  if (!begun) {
    parts_.watches->drop(batch.watch, batch.graph);
  } else if (!batch.call->abandon()) {
    batch.watch->lose();
  }
  return status;
}

Status DeviceMessages::enqueue_end(Batch& batch) {
  const cuda::Driver& driver = parts_.memory->driver();
  batch.is_open = false;
  Status status = batch.call->enqueue_end();
  if (!status.ok()) {
    if (!batch.call->abandon()) batch.watch->lose();
    return status;
  }
  WEIR_RETURN_IF_ERROR(end_pairs(batch, batch.kernel_stream));
  if (!batch.on_stream()) return Status();
  auto end = std::make_shared<StreamEvent>();
  WEIR_RETURN_IF_ERROR(StreamEvent::record(driver, batch.function, batch.kernel_stream, end.get()));
  for (size_t i = batch.is_forked ? 0 : 1; i < batch.streams.size(); ++i) {
    WEIR_RETURN_IF_ERROR(end->wait(batch.function, batch.streams[i]));
  }
  batch.forked_to.reset();
  std::vector<PairEnd>& ends = batch.chain->ends;
  for (const MessageCall::Order& order : MessageCall::orders_of(batch.messages)) {
    std::erase_if(
        ends, [&](const PairEnd& it) { return it.peer == order.peer && it.sends == order.sends; });
    ends.push_back({order.peer, order.sends, end});
  }
  return Status();
}

Status DeviceMessages::follow_pairs(const Batch& batch, cuda::Stream stream) {
  const auto end_in = [](const Chain& chain, const MessageCall::Order& order) {
    for (const PairEnd& it : chain.ends) {
      if (it.peer == order.peer && it.sends == order.sends) return it.end;
    }
    return std::shared_ptr<StreamEvent>();
  };
  if (!batch.on_stream() && orders_.empty()) return Status();
  for (const MessageCall::Order& order : MessageCall::orders_of(batch.messages)) {
    const std::shared_ptr<StreamEvent> end = end_in(*batch.chain, order);
    if (batch.on_stream() && end != nullptr) {
      WEIR_RETURN_IF_ERROR(end->wait(batch.function, stream));
    }
    const std::pair pair(order.peer, order.sends);
    if (batch.graph == nullptr) {
      const auto found = orders_.find(pair);
      if (found == orders_.end()) continue;
      WEIR_RETURN_IF_ERROR(found->second.wait(batch.function, stream));
    } else if (end == nullptr) {
      WEIR_RETURN_IF_ERROR(orders_[pair].enter_graph(parts_.memory->driver(), batch.function,
                                                     stream, end_in(*chain_, order),
                                                     &batch.chain->kept));
    }
  }
  return Status();
}

Status DeviceMessages::end_pairs(const Batch& batch, cuda::Stream stream) {
  if (orders_.empty()) return Status();
  for (const MessageCall::Order& order : MessageCall::orders_of(batch.messages)) {
    const auto found = orders_.find({order.peer, order.sends});
    if (found == orders_.end()) continue;
    WEIR_RETURN_IF_ERROR(batch.graph == nullptr
                             ? found->second.record(batch.function, stream)
                             : found->second.leave_graph(batch.function, stream));
  }
  return Status();
}

// Its kernel ends, since the communicator has failed.
void DeviceMessages::abandon(Batch& batch) {
  const cuda::ContextScope scope(parts_.memory->driver(), nullptr, parts_.memory->context());
  batch.is_abandoned = true;
  if (!batch.call->abandon()) batch.watch->lose();
}

void DeviceMessages::enqueued(Batch& batch, const Status& status) {
  batch.is_being_enqueued = false;
  if (status.ok() && batch.is_open) return;
  // What is captured is complete when it is part of the graph.
  if (!status.ok() || batch.graph != nullptr) {
    const bool begun = batch.call != nullptr && batch.call->begun();
    if (!begun && batch.graph == nullptr && batch.words.staging != nullptr) {
      words_back_.push_back(batch.words);
    }
    complete(batch, status);
    return remove(batch);
  }
  for (Request* request : batch.requests) {
    request->device->watch = batch.watch;
    request->device->enqueued = true;
  }
}

// ---- The end ------------------------------------------------------------------------------------

void DeviceMessages::complete_one(Request*& request, const Status& status) {
  --count_;
  requests_.complete(*std::exchange(request, nullptr), status);
}

void DeviceMessages::complete(Batch& batch, const Status& status) {
  for (Request*& request : batch.requests) {
    if (request != nullptr) complete_one(request, status);
  }
}

void DeviceMessages::remove(const Batch& batch) {
  if (!batch.on_stream()) own_streams_[batch.own_stream] = false;
  std::erase_if(batches_, [&](const auto& it) { return it.get() == &batch; });
}

bool DeviceMessages::poll() {
  bool moved = false;
  for (size_t i = 0; i < batches_.size() && !state_.failure.is_set();) {
    Batch& batch = *batches_[i];
    if (batch.is_being_enqueued || batch.is_open) {
      ++i;
      continue;
    }
    for (size_t k = 0; k < batch.requests.size() && batch.by_counters; ++k) {
      if (batch.requests[k] == nullptr || !batch.watch->ends()[k].has_come()) continue;
      complete_one(batch.requests[k], Status());
      moved = true;
    }
    if (!batch.watch->ended()) {
      ++i;
      continue;
    }
    complete(batch, Status());
    words_back_.push_back(batch.words);
    remove(batch);
    moved = true;
  }
  const bool may_go = other_pending_ > 0 || count_unfinished() != seen_unfinished_;
  if (!pending_.empty() && parts_.memory != nullptr && may_go) {
    has_pending_.store(true, std::memory_order_release);
  }
  return moved;
}

bool DeviceMessages::fail_all(const Status& status, bool at_once) {
  if (parts_.memory != nullptr) parts_.memory->spoil();
  for (Request*& request : pending_) complete_one(request, status);
  clear_pending();
  for (size_t i = 0; i < batches_.size();) {
    Batch& batch = *batches_[i];
    const bool ended =
        batch.watch != nullptr && (batch.watch->ended() || batch.watch->lost() || at_once);
    if (batch.must_be_abandoned() && !ended) has_pending_.store(true, std::memory_order_release);
    if (batch.is_being_enqueued || !ended) {
      ++i;
      continue;
    }
    complete(batch, status);
    remove(batch);
  }
  return count_ == 0;
}

void DeviceMessages::tell_ends() {
  for (const auto& it : batches_) {
    if (it->must_be_abandoned() && !it->watch->ended()) abandon(*it);
  }
}

const Request* DeviceMessages::first() const {
  for (const auto& batch : batches_) {
    for (const Request* it : batch->requests) {
      if (it != nullptr) return it;
    }
  }
  return pending_.empty() ? nullptr : pending_[0];
}

Request* DeviceMessages::first_detached() const {
  for (const auto& batch : batches_) {
    for (Request* it : batch->requests) {
      if (it != nullptr && it->device->detached) return it;
    }
  }
  return nullptr;
}

void DeviceMessages::collect_peers(std::vector<Rank>* peers) const {
  for (const Request* it : pending_) peers->push_back(it->peer);
  for (const auto& batch : batches_) {
    for (const Request* it : batch->requests) {
      if (it != nullptr && (!it->device->enqueued || batch->watch->running())) {
        peers->push_back(it->peer);
      }
    }
  }
}

bool DeviceMessages::waits_on_device(Rank peer, bool sends) const {
  if (parts_.memory == nullptr) return false;
  const Rank me = state_.rank();
  const kernels::MessageLane* const lanes =
      parts_.memory->flags().lanes(sends ? me : peer, sends ? peer : me);
  for (uint32_t i = 0; i < kernels::kMessageLanes; ++i) {
    const bool has_some = load_word(lanes[i].put) != load_word(lanes[i].taken);
    const bool is_there = sends ? load_word(lanes[i].receives) != 0 : has_some;
    const bool is_here = load_word(sends ? lanes[i].sends : lanes[i].receives) != 0;
    if (is_there && !is_here && (!sends || !has_some)) return true;
  }
  return false;
}

// CUDA's objects do not work there, not even to be destroyed.
void DeviceMessages::leave_to_child() {
  static constinit PerProcess<std::vector<std::shared_ptr<void>>> kept;
  kept->push_back(parts_.memory);
  kept->push_back(std::move(chain_));
  kept->push_back(std::make_shared<GraphChains<Chain>>(std::move(graphs_)));
  kept->push_back(std::make_shared<decltype(orders_)>(std::move(orders_)));
  for (auto& batch : batches_) kept->push_back(std::shared_ptr<Batch>(std::move(batch)));
  batches_.clear();
}

}  // namespace weir::comm
