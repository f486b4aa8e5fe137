// SPDX-License-Identifier: Apache-2.0
#include "core/comm/device/device_streams.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <thread>
#include <utility>

#include "core/base/per_process.h"
#include "core/comm/stream/collective_watch.h"
#include "core/comm/stream/direct_choice.h"
#include "core/comm/stream/stream_call.h"
#include "cuda/driver.h"

namespace weir::comm {

namespace {

// As the caller knows it.
const char* function_of(const engine::Call& call) {
  switch (call.collective) {
    case Collective::kAllReduce:
      return "weir_all_reduce";
    case Collective::kReduce:
      return "weir_reduce";
    case Collective::kBroadcast:
      return "weir_broadcast";
    case Collective::kReduceScatter:
      return "weir_reduce_scatter";
    case Collective::kAllGather:
      return "weir_all_gather";
    case Collective::kAllToAll:
      return "weir_all_to_all";
    case Collective::kGather:
      return "weir_gather";
    case Collective::kScatter:
      return "weir_scatter";
    case Collective::kBarrier:
    case Collective::kSendRecv:
      break;
  }
  return "weir";
}

Status unsupported(const std::string& text) { return Status(Code::kUnsupported, text); }

}  // namespace

// So that the words may be used again; not where a stream may still write to them.
DeviceStreams::Chain::~Chain() {
  if (words == nullptr) return;
  Mailbox& it = words->mailboxes[0];
  if (it.rung() == load_word(it.done)) it = {};
}

bool DeviceStreams::can_take(const engine::Call& call) {
  return call.recv_counts == nullptr && call.block_counts == nullptr && call.leaf_count == 0 &&
         call.collective != Collective::kBarrier && call.collective != Collective::kSendRecv;
}

// ---- Getting ready ------------------------------------------------------------------------------

Status DeviceStreams::open(int device, control::Network* network) {
  device_ = device;
  opened_ = ClockReading::now();
  if (state_.leaves_host) return unsupported("the ranks are on several hosts");
  const DirectChoice choice = direct_choice_here();
  if (!is_allowed(choice)) return unsupported(reason_of(choice));
  StreamSetup::Config config;
  config.function = "the first collective on device memory";
  config.rank = state_.rank();
  config.rank_count = state_.rank_count();
  config.device = device;
  config.choice = choice;
  config.network = network;
  config.links = state_.device_ways;
  config.deterministic = state_.deterministic;
  setup_ = std::make_unique<StreamSetup>(config);
  entry_ = &setup_->begin();
  return entry_->ok == 1 && entry_->kernels == 1 ? Status() : unsupported(setup_->reason());
}

Status DeviceStreams::connect(const std::vector<StreamSetup::Entry>& all) {
  const Result<bool> connected = setup_->connect(all);
  if (!connected.ok()) return unsupported(connected.status().text());
  if (connected.value()) return Status();
  const std::string& reason = setup_->reason();
  return unsupported(reason.empty() ? "another rank of its process says why" : reason);
}

void DeviceStreams::become_ready(std::shared_ptr<StreamOwner> owner, bool explains) {
  explains_ = explains;
  parts_.memory = setup_->end(true);
  setup_.reset();
  parts_.owner = std::move(owner);
  const uint64_t number = state_.secret.derive("streams").public_id();
  if (state_.recorder.on()) {
    parts_.record =
        StreamRecord::open(state_.name, state_.rank(), state_.rank_count(), number, opened_);
  }
  parts_.watches = std::make_shared<StreamWatches>(nullptr);
  has_pending_.store(first_ != nullptr, std::memory_order_release);
}

void DeviceStreams::give_back() {
  if (setup_ != nullptr) (void)setup_->end(false);
  setup_.reset();
}

// ---- Operations ---------------------------------------------------------------------------------

void DeviceStreams::start(Request& request) {
  request.device->by_stream = true;
  request.started = true;
  request.next = nullptr;
  (first_ == nullptr ? first_ : last_->next) = &request;
  last_ = &request;
  if (is_ready()) has_pending_.store(true, std::memory_order_release);
}

std::vector<Request*> DeviceStreams::take_pending() {
  std::vector<Request*> taken;
  Request* before = nullptr;
  for (Request* it = first_; it != nullptr;) {
    Request* const next = it->next;
    if (it->device->enqueued || it->device->is_being_enqueued) {
      before = it;
    } else {
      take_out(before, *it);
      it->device->by_stream = false;
      taken.push_back(it);
    }
    it = next;
  }
  has_pending_.store(false, std::memory_order_release);
  return taken;
}

void DeviceStreams::take_out(Request* before, Request& request) {
  (before == nullptr ? first_ : before->next) = request.next;
  if (last_ == &request) last_ = before;
}

Request* DeviceStreams::next_pending(
    const std::function<bool(const CallGroup&)>& comes_after) const {
  for (Request* it = first_; it != nullptr; it = it->next) {
    const DeviceCall& call = *it->device;
    if (call.enqueued) continue;
    const bool stays =
        call.is_of_open_group() || (call.group != nullptr && comes_after(*call.group));
    return stays ? nullptr : it;
  }
  return nullptr;
}

bool DeviceStreams::has_pending_of(const CallGroup& group) const {
  for (Request* it = first_; it != nullptr; it = it->next) {
    if (!it->device->enqueued && it->device->group.get() == &group) return true;
  }
  return false;
}

void DeviceStreams::enqueue_pending(const std::function<bool(const CallGroup&)>& comes_after) {
  while (has_pending()) {
    Request* request = nullptr;
    {
      const std::lock_guard lock(state_.lock);
      if (state_.failure.is_set()) return;
      request = next_pending(comes_after);
      if (request == nullptr) {
        // A call of a group that is still being started stays.
        if (last_ == nullptr || last_->device->enqueued) has_pending_.store(false);
        return;
      }
      DeviceCall& call = *request->device;
      // Its caller waits for that, and does it.
      if (call.on_stream && is_stream_of_thread(call.stream) &&
          call.caller != std::this_thread::get_id()) {
        return;
      }
      call.is_being_enqueued = true;
    }
    const Status status = parts_.explain_loss(enqueue(*request));
    // It may have begun, and peers wait for the rest.
    if (status.code() == Code::kSystem) parts_.owner->give_up(status, {});
    const std::lock_guard lock(state_.lock);
    DeviceCall& call = *request->device;
    call.is_being_enqueued = false;
    call.enqueued = status.ok();
    // What is captured is complete when it is part of the graph.
    if (status.ok() && call.watch != nullptr) continue;
    Request* before = nullptr;
    for (Request* it = first_; it != request; it = it->next) before = it;
    take_out(before, *request);
    requests_.complete(*request, status);
  }
}

Status DeviceStreams::enqueue(Request& request) {
  const char* const function = function_of(request.call);
  cuda::Stream stream = request.device->stream;
  const bool names_stream = request.device->on_stream && !cuda::is_default_stream(stream);
  const cuda::ContextScope scope(parts_.memory->driver(), names_stream ? stream : nullptr,
                                 parts_.memory->context());
  if (!request.device->on_stream && request.call.count > 0) {
    WEIR_RETURN_IF_ERROR(
        parts_.memory->own_stream(function, StreamMemory::OwnStream::kCollectives, &stream));
  }
  Capture capture;
  if (request.device->on_stream) {
    WEIR_RETURN_IF_ERROR(parts_.find_capture(function, stream, &capture));
  }
  if (request.call.count == 0) {
    count_empty(request.call, capture.active);
    return Status();
  }
  std::shared_ptr<Chain> chain;
  std::shared_ptr<GraphWatches> graph;
  WEIR_RETURN_IF_ERROR(find_chain(function, capture, &chain, &graph));
  std::shared_ptr<StreamWatch> watch;
  WEIR_RETURN_IF_ERROR(enqueue_in(request, function, stream, *chain, graph, &watch));
  if (graph == nullptr) request.device->watch = std::move(watch);
  return Status();
}

void DeviceStreams::count_empty(const engine::Call& call, bool is_captured) {
  StreamMemory& memory = *parts_.memory;
  if (explains_) explain(call, "directly, without data");
  if (is_captured) {
    memory.flags().captured(memory.rank()).fetch_add(1);
    if (parts_.record != nullptr) parts_.record->captured(0);
    return;
  }
  const CallWords words = words_of(call);
  const uint64_t number = memory.next_call();
  if (is_rooted(call)) memory.next_rooted_call();
  memory.flags().note_call(memory.rank(), number, words.what, words.count, words.fingerprint);
  if (parts_.record == nullptr) return;
  parts_.record->begun(number, words);
  parts_.record->ended(number);
}

// Once for each call of its kind that goes so.
void DeviceStreams::explain(const engine::Call& call, const std::string& way) {
  constexpr size_t kLinesMax = 256;
  const std::string line =
      fmt::format("{} on devices of '{}': {}", engine::describe(call), state_.name, way);
  if (explained_.size() < kLinesMax && explained_.insert(line).second) {
    std::fprintf(stderr, "%s\n", line.c_str());
  }
}

Status DeviceStreams::find_chain(const char* function, const Capture& capture,
                                 std::shared_ptr<Chain>* chain,
                                 std::shared_ptr<GraphWatches>* graph) {
  const cuda::Driver& driver = parts_.memory->driver();
  if (capture.active) {
    WEIR_RETURN_IF_ERROR(graphs_.find(driver, function, capture, chain, graph));
  } else {
    if (chain_ == nullptr) chain_ = std::make_shared<Chain>();
    *chain = chain_;
  }
  // Two of it.
  if ((*chain)->words != nullptr) return Status();
  return get_staging(driver, function, 2, 0, &(*chain)->words);
}

Status DeviceStreams::enqueue_in(const Request& request, const char* function, cuda::Stream stream,
                                 Chain& chain, const std::shared_ptr<GraphWatches>& graph,
                                 std::shared_ptr<StreamWatch>* watch) {
  const cuda::Driver& driver = parts_.memory->driver();
  if (++chain.number_latest == 0) ++chain.number_latest;
  WatchedCall watched;
  watched.function = function;
  watched.owner = parts_.owner;
  watched.memory = parts_.memory;
  watched.record = parts_.record;
  watched.words = {chain.words, 0};
  watched.number = chain.number_latest;
  watched.in_graph = graph != nullptr;
  watched.timeout_ms = request.timeout_ms;
  const bool counts = graph == nullptr && is_rooted(request.call);
  const uint64_t rooted_number = counts ? parts_.memory->rooted_call_count() + 1 : 0;
  std::unique_ptr<StreamCall> call;
  WEIR_RETURN_IF_ERROR(StreamCall::make(function, request.call, nullptr, parts_.memory, stream,
                                        watched.words, watched.number, rooted_number, &chain.pinned,
                                        &call));
  if (graph != nullptr) call->repeats();
  if (explains_) {
    explain(request.call, call->way().text() + (graph == nullptr ? "" : ", captured into a graph"));
  }
  auto made = std::make_shared<CollectiveWatch>(watched, *call);
  made->keep(call->host_copies());
  WEIR_RETURN_IF_ERROR(follow_chain(function, stream, chain, graph != nullptr));
  parts_.watches->watch(driver, made, graph);
  Status status;
  while (status.ok() && !call->done()) {
    status = call->enqueue_step();
    if (call->begun()) made->note_begun();
  }
  if (status.ok()) {
    status = end_chain(function, stream, chain, graph != nullptr);
  } else if (!call->begun()) {
    parts_.watches->drop(made, graph);
  } else if (!call->abandon()) {
    made->lose();
  }
  *watch = std::move(made);
  return status;
}

Status DeviceStreams::follow_chain(const char* function, cuda::Stream stream, Chain& chain,
                                   bool in_graph) {
  if (chain.end != nullptr) WEIR_RETURN_IF_ERROR(chain.end->wait(function, stream));
  if (!in_graph) return order_.wait(function, stream);
  if (chain.end != nullptr) return Status();
  return order_.enter_graph(parts_.memory->driver(), function, stream,
                            chain_ == nullptr ? nullptr : chain_->end, &chain.kept);
}

Status DeviceStreams::end_chain(const char* function, cuda::Stream stream, Chain& chain,
                                bool in_graph) {
  WEIR_RETURN_IF_ERROR(in_graph ? order_.leave_graph(function, stream)
                                : order_.record(function, stream));
  chain.end = std::make_shared<StreamEvent>();
  return StreamEvent::record(parts_.memory->driver(), function, stream, chain.end.get());
}

bool DeviceStreams::poll() {
  bool moved = false;
  // They end in their order.
  while (first_ != nullptr && first_->device->enqueued && first_->device->watch->ended() &&
         !state_.failure.is_set()) {
    Request* const request = first_;
    take_out(nullptr, *request);
    requests_.complete(*request, Status());
    moved = true;
  }
  return moved;
}

bool DeviceStreams::fail_all(const Status& status, bool at_once) {
  if (is_ready()) parts_.memory->spoil();
  Request* before = nullptr;
  for (Request* it = first_; it != nullptr;) {
    Request* const next = it->next;
    const DeviceCall& call = *it->device;
    const bool is_on_stream = call.enqueued && !call.watch->ended() && !call.watch->lost();
    if (call.is_being_enqueued || (is_on_stream && !at_once)) {
      before = it;
    } else {
      take_out(before, *it);
      requests_.complete(*it, status);
    }
    it = next;
  }
  return first_ == nullptr;
}

Request* DeviceStreams::first_detached() const {
  for (Request* it = first_; it != nullptr; it = it->next) {
    if (it->device->detached) return it;
  }
  return nullptr;
}

// CUDA's objects do not work there, not even to be destroyed.
void DeviceStreams::leave_to_child() {
  static constinit PerProcess<std::vector<std::shared_ptr<void>>> kept;
  kept->push_back(parts_.memory);
  kept->push_back(chain_);
  kept->push_back(std::make_shared<GraphChains<Chain>>(std::move(graphs_)));
  kept->push_back(std::make_shared<GraphOrder>(std::move(order_)));
  (void)setup_.release();
}

}  // namespace weir::comm
