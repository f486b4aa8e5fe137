// SPDX-License-Identifier: Apache-2.0
#include "core/comm/device/device_streams.h"

#include <algorithm>
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

// CU_STREAM_PER_THREAD, by which each thread means another stream.
bool is_of_the_thread(cuda::Stream stream) { return reinterpret_cast<uintptr_t>(stream) == 2; }

}  // namespace

// So that the words may be used again; not where a stream may still write to them.
DeviceStreams::Chain::~Chain() {
  if (words == nullptr) return;
  Mailbox& it = words->mailboxes[0];
  if (it.rung() == load_word(it.done)) it = {};
}

bool DeviceStreams::can_take(const Request& request) {
  const engine::Call& call = request.call;
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

void DeviceStreams::become_ready(std::shared_ptr<StreamOwner> owner) {
  memory_ = setup_->end(true);
  setup_.reset();
  owner_ = std::move(owner);
  const uint64_t number = state_.secret.derive("streams").public_id();
  if (state_.recorder.on()) {
    record_ = StreamRecord::open(state_.name, state_.rank(), state_.rank_count(), number, opened_);
  }
  watches_ = std::make_shared<StreamWatches>(nullptr);
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

Request* DeviceStreams::next_pending() const {
  for (Request* it = first_; it != nullptr; it = it->next) {
    if (!it->device->enqueued) return it;
  }
  return nullptr;
}

void DeviceStreams::enqueue_pending() {
  if (!has_pending_.load(std::memory_order_acquire)) return;
  const std::unique_lock order(enqueue_lock_, std::try_to_lock);
  while (order.owns_lock()) {
    Request* request = nullptr;
    {
      const std::lock_guard lock(state_.lock);
      if (state_.failure.is_set()) return;
      request = next_pending();
      if (request == nullptr) return has_pending_.store(false, std::memory_order_release);
      DeviceCall& call = *request->device;
      // Its caller waits for that, and does it.
      if (call.on_stream && is_of_the_thread(call.stream) &&
          call.caller != std::this_thread::get_id()) {
        return;
      }
      call.is_being_enqueued = true;
    }
    const Status status = enqueue(*request);
    // It may have begun, and peers wait for the rest.
    if (status.code() == Code::kSystem) owner_->give_up(status, {});
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
  const cuda::Driver& driver = memory_->driver();
  const char* const function = function_of(request.call);
  cuda::Stream stream = request.device->stream;
  const bool names_stream = request.device->on_stream && !cuda::is_default_stream(stream);
  const cuda::ContextScope scope(driver, names_stream ? stream : nullptr, memory_->context());
  if (!request.device->on_stream) {
    WEIR_RETURN_IF_ERROR(
        memory_->own_stream(function, StreamMemory::OwnStream::kCollectives, &stream));
  }
  Capture capture;
  if (request.device->on_stream) {
    WEIR_RETURN_IF_ERROR(capture_of(driver, function, stream, &capture));
  }
  std::shared_ptr<Chain> chain;
  std::shared_ptr<GraphWatches> graph;
  WEIR_RETURN_IF_ERROR(find_chain(function, capture, &chain, &graph));
  std::shared_ptr<StreamWatch> watch;
  WEIR_RETURN_IF_ERROR(enqueue_in(request, function, stream, *chain, graph, &watch));
  if (graph == nullptr) request.device->watch = std::move(watch);
  return Status();
}

Status DeviceStreams::find_chain(const char* function, const Capture& capture,
                                 std::shared_ptr<Chain>* chain,
                                 std::shared_ptr<GraphWatches>* graph) {
  std::erase_if(graphs_, [](const GraphChain& it) { return it.watches.expired(); });
  if (!capture.active) {
    if (chain_ == nullptr) chain_ = std::make_shared<Chain>();
    *chain = chain_;
  } else {
    for (const GraphChain& it : graphs_) {
      if (it.capture != capture.number) continue;
      *chain = it.chain.lock();
      *graph = it.watches.lock();
    }
    if (*chain == nullptr) {
      *chain = std::make_shared<Chain>();
      *graph = std::make_shared<GraphWatches>();
      (*graph)->keep(*chain);
      WEIR_RETURN_IF_ERROR(when_graph_is_gone(
          memory_->driver(), function, capture,
          [released = (*graph)->released()] { released->store(true, std::memory_order_release); }));
      graphs_.push_back({capture.number, *graph, *chain});
    }
  }
  // Two of it.
  if ((*chain)->words != nullptr) return Status();
  return get_staging(memory_->driver(), function, 2, 0, &(*chain)->words);
}

Status DeviceStreams::enqueue_in(const Request& request, const char* function, cuda::Stream stream,
                                 Chain& chain, const std::shared_ptr<GraphWatches>& graph,
                                 std::shared_ptr<StreamWatch>* watch) {
  const cuda::Driver& driver = memory_->driver();
  if (++chain.number_latest == 0) ++chain.number_latest;
  WatchedCall watched;
  watched.function = function;
  watched.owner = owner_;
  watched.memory = memory_;
  if (graph == nullptr) watched.record = record_;
  watched.words = {chain.words, 0};
  watched.number = chain.number_latest;
  watched.in_graph = graph != nullptr;
  watched.timeout_ms = request.timeout_ms;
  std::unique_ptr<StreamCall> call;
  WEIR_RETURN_IF_ERROR(StreamCall::make(function, request.call, nullptr, memory_, stream,
                                        watched.words, watched.number, &chain.pinned, &call));
  if (graph != nullptr) call->repeats();
  auto made = std::make_shared<CollectiveWatch>(watched, words_of(request.call));
  made->keep(call->host_copies());
  if (chain.has_end) WEIR_RETURN_IF_ERROR(chain.end.wait(driver, function, stream));
  watches_->watch(driver, made, graph);
  Status status;
  while (status.ok() && !call->done()) {
    status = call->enqueue_step();
    if (call->begun() && graph == nullptr) made->note_begun();
  }
  if (status.ok()) {
    status = StreamEvent::record(driver, function, stream, &chain.end);
    chain.has_end = status.ok();
  } else if (!call->begun()) {
    watches_->drop(made, graph);
  } else if (!call->abandon()) {
    made->lose();
  }
  *watch = std::move(made);
  return status;
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
  if (memory_ != nullptr) memory_->spoil();
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
  kept->push_back(memory_);
  kept->push_back(chain_);
  (void)setup_.release();
}

}  // namespace weir::comm
