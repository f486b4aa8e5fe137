// SPDX-License-Identifier: Apache-2.0
#include "nccl/stream/enqueue.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>

#include "api/handles.h"
#include "core/base/settings.h"
#include "core/comm/stream/capture.h"
#include "core/comm/stream/collective_watch.h"
#include "core/comm/stream/leaving.h"
#include "core/comm/stream/message_call.h"
#include "core/comm/stream/message_watch.h"
#include "core/comm/stream/stream_call.h"
#include "cuda/driver.h"
#include "nccl/cuda/cuda_error.h"
#include "nccl/host/buffers.h"
#include "nccl/host/one_sided.h"
#include "nccl/stream/calls_in_flight.h"
#include "nccl/stream/direct_policy.h"
#include "nccl/stream/neighbors.h"
#include "nccl/stream/owner.h"
#include "nccl/stream/proxy.h"
#include "nccl/stream/proxy_task.h"
#include "nccl/stream/runner.h"
#include "nccl/stream/stream_commands.h"

namespace weir::nccl {

namespace {

using cuda::Driver;

bool on_device(const void* driver, const void* pointer) {
  return cuda::only_on_device(*static_cast<const Driver*>(driver), pointer);
}

Outcome start_graph_tasks(const Driver& driver, const char* function,
                          const std::shared_ptr<Proxy>& proxy, const comm::Capture& capture,
                          std::shared_ptr<GraphTasks>* graph_tasks) {
  *graph_tasks = std::make_shared<GraphTasks>(capture.number);
  return outcome_of(comm::when_graph_is_gone(
      driver, function, capture, [proxy, made = *graph_tasks] { proxy->release(*made); }));
}

// Gives the task staging and a number.
Outcome give_staging(const Driver& driver, const char* function, TaskChain& chain,
                     ProxyTask& task) {
  if (chain.staging == nullptr || !chain.staging->holds(task.mailbox_count, task.byte_count)) {
    // More than is needed now, so that a series of growing tasks does not leave many pieces behind.
    const size_t known = chain.staging == nullptr ? 0 : chain.staging->byte_count;
    const size_t bytes = std::max(task.byte_count, std::min(2 * known, kStagingMax));
    Outcome outcome =
        outcome_of(comm::get_staging(driver, function, task.mailbox_count, bytes, &chain.staging));
    if (!outcome.ok()) return outcome;
    chain.last_number = 0;
  }
  task.staging = chain.staging;
  task.number = ++chain.last_number;
  if (task.number == 0) task.number = ++chain.last_number;
  return {};
}

// Either all streams of a task are captured, into one graph, or none is.
Outcome common_capture(const Driver& driver, const char* function,
                       const std::vector<cuda::Stream>& streams, comm::Capture* capture) {
  for (size_t i = 0; i < streams.size(); ++i) {
    comm::Capture it;
    Outcome outcome = outcome_of(comm::capture_of(driver, function, streams[i], &it));
    if (!outcome.ok()) return outcome;
    if (i == 0) *capture = it;
    if (it.active != capture->active || it.number != capture->number) {
      return invalid_usage(
          fmt::format("{}: the group uses {} streams together, of which some are captured and "
                      "others are not, or are captured into another graph",
                      function, streams.size()));
    }
  }
  return {};
}

// A collective that is work of the stream alone.
struct StreamedCall {
  std::unique_ptr<comm::StreamCall> call;
  std::shared_ptr<comm::CollectiveWatch> watch;
  size_t position = 0;  // among the operations of the group
};

// Messages that are work of the stream alone; empty: there are none.
struct StreamedMessages {
  std::unique_ptr<comm::MessageCall> call;
  std::shared_ptr<comm::MessageWatch> watch;
  cuda::Stream stream = nullptr;  // the leading one, or one that is forked from it
  comm::StreamLease forked;       // empty: it is not
};

// The operations of one communicator.
struct Part {
  std::shared_ptr<Comm> comm;
  std::vector<Operation> operations;
  std::vector<size_t> positions;  // of those in the group
  std::shared_ptr<Proxy> proxy;
  std::shared_ptr<GraphTasks> graph_tasks;
  std::shared_ptr<ProxyTask> task;  // of those that the proxy runs; empty: there are none
  size_t task_index = 0;            // in the commands
  std::vector<StreamedCall> streamed;
  size_t next_streamed = 0;
  cuda::Stream stream = nullptr;  // of those; the leading one, or one that is forked from it
  comm::StreamLease forked;       // empty: it is not
  StreamedMessages messages;
  bool begun = false;

  // Something is work of a stream alone.
  bool is_streamed() const { return !streamed.empty() || messages.call != nullptr; }
  TaskChain& chain() const { return graph_tasks != nullptr ? graph_tasks->chain : proxy->chain(); }
  std::shared_ptr<comm::GraphWatches> graph_watches() const {
    return graph_tasks != nullptr ? graph_tasks->watches : nullptr;
  }
};

// Communicators that share a stream. The stream must ring for all of them before it waits for one,
// since one may be the peer of another.
struct Batch {
  std::vector<cuda::Stream> streams;  // the first one is the leading one
  std::vector<cuda::Event> launch_events;
  std::vector<Part> parts;
  const char* function = nullptr;
  cuda::Context context = nullptr;                   // of default streams
  std::shared_ptr<const std::atomic<bool>> may_run;  // of its tasks
  bool joined = false;   // the thread enqueues other batches, step by step
  size_t calls_max = 0;  // of staged operations in flight; 0: no bound
  comm::Capture capture;
  std::unique_ptr<StreamCommands> commands;
  Outcome outcome;

  bool takes_turns() const {
    return outcome.ok() && commands != nullptr && commands->takes_turns();
  }
  bool has(cuda::Stream stream) const {
    return std::find(streams.begin(), streams.end(), stream) != streams.end();
  }
  void add(cuda::Stream stream) {
    if (!has(stream)) streams.push_back(stream);
  }
  bool shares_stream_with(const Batch& other) const {
    return std::any_of(other.streams.begin(), other.streams.end(), [&](cuda::Stream it) {
      return has(it) && (!cuda::is_default_stream(it) || context == other.context);
    });
  }
};

std::vector<Batch> batches_of(std::vector<Operation> operations) {
  std::vector<Batch> all;
  size_t position = 0;
  for (Operation& operation : operations) {
    auto mine = std::find_if(all.begin(), all.end(),
                             [&](const Batch& it) { return it.parts[0].comm == operation.comm; });
    if (mine == all.end()) {
      mine = all.insert(all.end(), Batch());
      mine->parts.emplace_back().comm = operation.comm;
    }
    mine->add(operation.stream);
    if (operation.context != nullptr) mine->context = operation.context;
    if (operation.launch_event != nullptr) mine->launch_events.push_back(operation.launch_event);
    mine->parts[0].operations.push_back(std::move(operation));
    mine->parts[0].positions.push_back(position++);
  }
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t k = i + 1; k < all.size();) {
      if (!all[i].shares_stream_with(all[k])) {
        ++k;
        continue;
      }
      for (const cuda::Stream it : all[k].streams) all[i].add(it);
      for (Part& it : all[k].parts) all[i].parts.push_back(std::move(it));
      if (all[i].context == nullptr) all[i].context = all[k].context;
      for (const cuda::Event it : all[k].launch_events) all[i].launch_events.push_back(it);
      all.erase(all.begin() + static_cast<std::ptrdiff_t>(k));
      k = i + 1;  // the merged batch may share streams with batches before k
    }
  }
  return all;
}

Outcome check_one_sided(const Driver& driver, const std::vector<Operation>& operations) {
  if (driver.is_stand_in) return {};  // its devices are host memory
  for (const Operation& it : operations) {
    if (it.kind == OperationKind::kOneSided && cuda::only_on_device(driver, it.one_sided->data)) {
      return invalid_usage(
          fmt::format("{}: localbuff lies on a device; one-sided operations need host memory, and "
                      "only ncclSend and ncclRecv support device memory",
                      it.function));
    }
  }
  return {};
}

// A peer may have the calls of different communicators in another order, and messages and
// collectives of one, too: what is work of a stream alone has the leading stream if nothing else
// has it.
bool leads(const Batch& batch, const Part& part) {
  return std::none_of(batch.parts.begin(), batch.parts.end(),
                      [&](const Part& other) { return &other != &part && other.is_streamed(); });
}

// Of a part, but for what `name_call` says.
comm::WatchedCall watched_call(const Part& part, const Batch& batch, comm::StreamWords words) {
  comm::WatchedCall call;
  call.owner = owner_of(part.comm);
  call.memory = part.comm->devices().stream_memory();
  call.record = part.comm->devices().stream_record();
  call.words = std::move(words);
  call.in_graph = batch.capture.active;
  return call;
}
void name_call(const Operation& operation, uint32_t number, comm::WatchedCall* call) {
  call->function = operation.function;
  call->number = number;
  call->timeout_ms = operation.options.timeout_ms > 0 ? operation.options.timeout_ms
                                                      : operation.comm->weir()->comm->timeout_ms();
}

// When the stream comes to the call: a buffer that has been freed since fails the communicator.
bool fails_check(const Operation& operation) {
  Outcome outcome = check_buffers(operation);
  if (outcome.ok()) return false;
  outcome.text += " when the stream came to the call";
  operation.comm->give_up(outcome);
  return true;
}

// Nothing is enqueued yet.
Outcome prepare_collectives(const Driver& driver, const Batch& batch,
                            const std::vector<Operation>& operations,
                            const std::vector<size_t>& positions, Part& part) {
  if (operations.empty()) return {};
  TaskChain& chain = part.chain();
  const std::shared_ptr<comm::StreamMemory>& memory = part.comm->devices().stream_memory();
  part.stream = batch.streams[0];
  if (!leads(batch, part)) {
    Outcome outcome =
        outcome_of(memory->fork_stream(operations[0].function, batch.capture, &part.forked));
    if (!outcome.ok()) return outcome;
    part.stream = *part.forked;
  }
  comm::WatchedCall watched = watched_call(part, batch, {chain.words, TaskChain::kCollectives});
  uint64_t rooted_number = memory->rooted_call_count();
  for (const Operation& it : operations) {
    if (++chain.last_call == 0) ++chain.last_call;
    StreamedCall made;
    const engine::Call call = core_call(it);
    const void* const factor = it.factor.has_value() ? it.factor->device_scalar : nullptr;
    // They begin in this order.
    const bool counts = !batch.capture.active && comm::is_rooted(call);
    if (counts) ++rooted_number;
    Outcome outcome = outcome_of(comm::StreamCall::make(
        it.function, call, factor, memory, part.stream, watched.words, chain.last_call,
        counts ? rooted_number : 0, &chain.pinned, &made.call));
    if (!outcome.ok()) return outcome;
    made.position = positions[part.streamed.size()];
    name_call(it, chain.last_call, &watched);
    made.watch = std::make_shared<comm::CollectiveWatch>(watched, *made.call);
    if (batch.capture.active) made.call->repeats();
    if (batch.capture.active && driver.is_stand_in) {
      made.call->check_first([it] { (void)fails_check(it); });
    }
    made.watch->keep(made.call->host_copies());
    if (batch.may_run != nullptr && part.streamed.empty() && !batch.capture.active) {
      made.watch->hold(batch.may_run);
      made.call->wait_for(&watched.words.gate().done);
    }
    explain_first(*part.comm, it.kind, made.call->in_windows());
    explain_way(*part.comm, call, made.call->way());
    part.streamed.push_back(std::move(made));
  }
  return {};
}

// The same.
Outcome prepare_messages(const Driver& driver, const Batch& batch,
                         const std::vector<Operation>& operations, Part& part) {
  if (operations.empty()) return {};
  TaskChain& chain = part.chain();
  const std::shared_ptr<comm::StreamMemory>& memory = part.comm->devices().stream_memory();
  StreamedMessages made;
  made.stream = batch.streams[0];
  if (!part.streamed.empty() || !leads(batch, part)) {
    Outcome outcome =
        outcome_of(memory->fork_stream(operations[0].function, batch.capture, &made.forked));
    if (!outcome.ok()) return outcome;
    made.stream = *made.forked;
  }
  comm::WatchedCall watched = watched_call(part, batch, {chain.words, TaskChain::kMessages});
  if (++chain.last_message == 0) ++chain.last_message;
  std::vector<comm::StreamMessage> messages;
  for (const Operation& it : operations) messages.push_back(core_message(it));
  Outcome outcome =
      outcome_of(comm::MessageCall::make(operations[0].function, messages, memory, made.stream,
                                         watched.words, chain.last_message, &made.call));
  if (!outcome.ok()) return outcome;
  name_call(operations[0], chain.last_message, &watched);
  made.watch = std::make_shared<comm::MessageWatch>(watched, messages);
  if (batch.capture.active) made.call->repeats();
  if (driver.is_stand_in) {
    made.call->check_first([operations, memory] {
      if (std::none_of(operations.begin(), operations.end(), fails_check)) return;
      memory->spoil();
      memory->stop_messages();
    });
  }
  made.watch->keep(made.call->staging());
  if (batch.may_run != nullptr && !batch.capture.active) {
    made.watch->hold(batch.may_run);
    made.call->wait_for(&watched.words.gate().done);
  }
  part.messages = std::move(made);
  explain_first(*part.comm, operations[0].kind, false);
  return {};
}

Outcome prepare(const Driver& driver, const Batch& batch, Part& part) {
  const comm::Capture& capture = batch.capture;
  const char* function = part.operations[0].function;
  Outcome outcome = check_one_sided(driver, part.operations);
  if (!outcome.ok()) return outcome;
  for (Operation& it : part.operations) {
    if (capture.active) note_buffers(&it);
  }
  std::vector<Operation> collectives;
  std::vector<Operation> messages;
  std::vector<Operation> others;
  std::vector<size_t> positions;
  for (size_t i = 0; i < part.operations.size(); ++i) {
    Operation& it = part.operations[i];
    if (!goes_by_stream(it)) {
      others.push_back(std::move(it));
    } else if (is_message(it.kind)) {
      messages.push_back(std::move(it));
    } else {
      positions.push_back(part.positions[i]);
      collectives.push_back(std::move(it));
    }
  }
  if (!others.empty()) {
    // Alone: nothing else waits for the stream.
    const bool alone = batch.parts.size() == 1 && collectives.empty() && messages.empty();
    part.task = plan_task(std::move(others), alone, on_device, &driver);
  }
  if (part.task != nullptr || capture.active) {
    part.proxy->enqueue_begins(driver);
    part.begun = true;
  }
  if (capture.active) {
    part.graph_tasks = part.proxy->find_graph_tasks(capture.number);
    if (part.graph_tasks == nullptr) {
      outcome = start_graph_tasks(driver, function, part.proxy, capture, &part.graph_tasks);
      if (!outcome.ok()) return outcome;
    }
  }
  if (part.task != nullptr) outcome = give_staging(driver, function, part.chain(), *part.task);
  if (outcome.ok() && part.chain().words == nullptr && !(collectives.empty() && messages.empty())) {
    outcome =
        outcome_of(comm::get_staging(driver, function, TaskChain::kWords, 0, &part.chain().words));
  }
  if (outcome.ok()) outcome = prepare_collectives(driver, batch, collectives, positions, part);
  return outcome.ok() ? prepare_messages(driver, batch, messages, part) : outcome;
}

// What is enqueued on `later` from now on comes after what `earlier` holds.
Outcome follow(const Driver& driver, const Batch& batch, cuda::Stream later, cuda::Stream earlier) {
  return outcome_of(comm::StreamEvent::follow(driver, batch.function, later, earlier));
}

// The leading stream comes after earlier tasks, also those in graphs.
Outcome follow_chain(const Driver& driver, const Batch& batch, const Part& part) {
  const cuda::Stream lead = batch.streams[0];
  TaskChain& chain = part.chain();
  if (chain.last != nullptr) {
    Outcome outcome = outcome_of(chain.last->wait(batch.function, lead));
    if (!outcome.ok()) return outcome;
  }
  comm::GraphOrder& order = part.proxy->order();
  if (part.graph_tasks == nullptr) return outcome_of(order.wait(batch.function, lead));
  if (chain.last != nullptr) return {};
  return outcome_of(order.enter_graph(driver, batch.function, lead, part.proxy->chain().last,
                                      &part.graph_tasks->kept));
}

// The leading stream waits for the others, and for earlier tasks. The first call to CUDA that
// changes a stream is made here.
Outcome join(const Driver& driver, const Batch& batch) {
  const cuda::Stream lead = batch.streams[0];
  for (size_t i = 1; i < batch.streams.size(); ++i) {
    Outcome outcome = follow(driver, batch, lead, batch.streams[i]);
    if (!outcome.ok()) return outcome;
  }
  for (const Part& part : batch.parts) {
    Outcome outcome = follow_chain(driver, batch, part);
    if (!outcome.ok()) return outcome;
  }
  return {};
}

Outcome begin(const Driver& driver, Batch& batch) {
  for (const Part& part : batch.parts) {
    // In a group that was open meanwhile.
    Outcome outcome = part.comm->not_stopped(batch.function);
    if (!outcome.ok()) return outcome;
  }
  Outcome outcome = common_capture(driver, batch.function, batch.streams, &batch.capture);
  for (Part& part : batch.parts) {
    if (!outcome.ok()) return outcome;
    outcome = prepare(driver, batch, part);
  }
  if (outcome.ok()) outcome = join(driver, batch);
  if (!outcome.ok()) return outcome;
  std::vector<ProxyTask*> tasks;
  for (Part& part : batch.parts) {
    comm::StreamWatches& watches = part.proxy->watches();
    for (const StreamedCall& it : part.streamed) {
      watches.watch(driver, it.watch, part.graph_watches());
    }
    if (part.messages.call != nullptr) {
      watches.watch(driver, part.messages.watch, part.graph_watches());
    }
    if (part.task == nullptr) continue;
    part.task->may_run = batch.may_run;
    part.task_index = tasks.size();
    tasks.push_back(part.task.get());
    if (part.graph_tasks == nullptr) part.proxy->add(part.task);
  }
  if (tasks.empty()) return {};
  CallsInFlight* calls = nullptr;
  if (batch.calls_max > 0 && !batch.capture.active && batch.may_run == nullptr) {
    std::shared_ptr<CallsInFlight>& known = batch.parts[0].chain().calls;
    if (known == nullptr) outcome = CallsInFlight::make(driver, batch.function, &known);
    if (!outcome.ok()) return outcome;
    calls = known.get();
    calls->limit_to(batch.calls_max);
  }
  batch.commands = std::make_unique<StreamCommands>(driver, batch.streams[0], batch.joined, calls,
                                                    std::move(tasks));
  return {};
}

Outcome enqueue_step(Part& part) {
  StreamedCall& it = part.streamed[part.next_streamed];
  Outcome outcome = outcome_of(it.call->enqueue_step());
  if (it.call->begun()) it.watch->note_begun();
  if (it.call->done()) ++part.next_streamed;
  return outcome;
}

bool are_neighbors(const Part& a, const Part& b) {
  const auto& neighbors = a.comm->devices().neighbors();
  return neighbors != nullptr && neighbors == b.comm->devices().neighbors();
}

// One step of the next collective, in the order of the calls: where streams share a queue, that is
// the order in which peers may have them in separate calls. With it go the steps of its neighbors
// that are not ahead of it, for which it waits in the next one. `any`: there was one.
Outcome enqueue_streamed(Batch& batch, bool* any) {
  Part* next = nullptr;
  for (Part& part : batch.parts) {
    if (part.next_streamed == part.streamed.size()) continue;
    if (next == nullptr ||
        part.streamed[part.next_streamed].position < next->streamed[next->next_streamed].position) {
      next = &part;
    }
  }
  if (next == nullptr) return {};
  *any = true;
  std::vector<Part*> parts{next};
  for (Part& part : batch.parts) {
    if (&part != next && part.next_streamed < part.streamed.size() && are_neighbors(part, *next)) {
      parts.push_back(&part);
    }
  }
  const size_t least = (*std::min_element(parts.begin(), parts.end(), [](Part* a, Part* b) {
                         return a->next_streamed < b->next_streamed;
                       }))->next_streamed;
  for (Part* part : parts) {
    if (part->next_streamed != least) continue;
    Outcome outcome = enqueue_step(*part);
    if (!outcome.ok()) return outcome;
  }
  return {};
}

// Before the first of what is work of a stream alone, or after the last.
Outcome fork_or_join(const Driver& driver, const Batch& batch, bool forks) {
  const cuda::Stream lead = batch.streams[0];
  const auto one = [&](const comm::StreamLease& forked) {
    if (forked == nullptr) return Outcome();
    return forks ? follow(driver, batch, *forked, lead) : follow(driver, batch, lead, *forked);
  };
  for (const Part& part : batch.parts) {
    Outcome outcome = one(part.forked);
    if (outcome.ok()) outcome = one(part.messages.forked);
    if (!outcome.ok()) return outcome;
  }
  return {};
}

// The kernels that move messages stand before the collectives of the group, and what waits for
// their end stands behind: a kernel that runs holds up nobody in its hardware queue.
Outcome enqueue_messages(const Batch& batch, bool end) {
  for (const Part& part : batch.parts) {
    const StreamedMessages& it = part.messages;
    if (it.call == nullptr) continue;
    Outcome outcome = outcome_of(end ? it.call->enqueue_end() : it.call->enqueue_kernel());
    if (it.call->begun()) it.watch->note_begun();
    if (!outcome.ok()) return outcome;
  }
  return {};
}

// The callers' events, after the step with which the operations begin: no peer is waited for.
Outcome record_launch(const Driver& driver, const Batch& batch) {
  for (const cuda::Event event : batch.launch_events) {
    const cuda::Result result = driver.cuEventRecord(event, batch.streams[0]);
    if (result != cuda::kSuccess) {
      return cuda_failed(driver, batch.function, "cuEventRecord of launchCompletionEvent", result);
    }
  }
  return {};
}

// The other streams go on after the leading one, and later tasks after these.
Outcome release_streams(const Driver& driver, const Batch& batch) {
  for (const Part& part : batch.parts) {
    const comm::GraphOrder& order = part.proxy->order();
    Outcome outcome = outcome_of(part.graph_tasks == nullptr
                                     ? order.record(batch.function, batch.streams[0])
                                     : order.leave_graph(batch.function, batch.streams[0]));
    if (!outcome.ok()) return outcome;
  }
  auto end = std::make_shared<comm::StreamEvent>();
  Outcome outcome =
      outcome_of(comm::StreamEvent::record(driver, batch.function, batch.streams[0], end.get()));
  for (size_t i = 1; i < batch.streams.size() && outcome.ok(); ++i) {
    outcome = outcome_of(end->wait(batch.function, batch.streams[i]));
  }
  if (!outcome.ok()) return outcome;
  for (const Part& part : batch.parts) part.chain().last = end;
  return {};
}

// Of calls that are not enqueued to their end. True when a part of one is on the stream.
bool drop_streamed(Part& part) {
  bool begun = part.next_streamed > 0;
  if (const StreamedMessages& it = part.messages; it.call != nullptr) {
    begun = begun || it.call->begun();
    if (!it.call->begun()) part.proxy->watches().drop(it.watch, part.graph_watches());
    if (it.call->begun() && !it.call->done() && !it.call->abandon()) it.watch->lose();
  }
  for (size_t i = part.next_streamed; i < part.streamed.size(); ++i) {
    StreamedCall& it = part.streamed[i];
    if (it.call->begun()) {
      begun = true;
      if (!it.call->abandon()) it.watch->lose();
    } else {
      part.proxy->watches().drop(it.watch, part.graph_watches());
    }
  }
  return begun;
}

// Tells the proxies how often the streams will ring. `others_wait`: streams of other communicators
// wait for operations of the same group.
void end(const Driver& driver, Batch& batch, bool others_wait) {
  for (Part& part : batch.parts) {
    if (!batch.outcome.ok() && !batch.capture.active &&
        !part.proxy->fail_if_lost(driver, *part.comm, &batch.outcome) && others_wait) {
      part.comm->give_up(batch.outcome);
    }
    const bool commanded = batch.commands != nullptr && part.task != nullptr;
    const size_t rings = commanded ? batch.commands->rings(part.task_index) : 0;
    const bool begun = !batch.outcome.ok() && drop_streamed(part);
    if (!batch.outcome.ok() && (rings > 0 || begun) && !batch.capture.active) {
      // The stream will ring and wait, but the task will not be run. (A capture that has failed
      // drops what it holds.)
      part.comm->give_up(batch.outcome);
    }
    if (part.begun) part.proxy->enqueue_ends(part.task, rings, part.graph_tasks);
  }
}

// The batches of one group, whose steps are enqueued as stream_commands.h describes.
class Group {
 public:
  Group(const Driver& driver, const NeighborsInGroup& neighbors, std::vector<Batch> batches)
      : driver_(driver), batches_(std::move(batches)) {
    std::vector<Proxy*> proxies;
    for (Batch& batch : batches_) {
      batch.joined = batches_.size() > 1;
      for (const Part& part : batch.parts) {
        const size_t most = neighbors.calls_in_flight_max(*part.comm);
        const bool first = &part == &batch.parts[0];
        batch.calls_max = first ? most : std::min(batch.calls_max, most);
      }
      const Operation& first = batch.parts[0].operations[0];
      batch.function = first.function;
      for (Part& part : batch.parts) {
        part.proxy = proxy_of(*part.comm);
        proxies.push_back(part.proxy.get());
      }
    }
    // All threads take the locks in one order.
    std::sort(proxies.begin(), proxies.end());
    for (Proxy* proxy : proxies) locks_.emplace_back(proxy->enqueue_lock());
  }

  void enqueue() {
    for (Batch& batch : batches_) {
      run(batch, [&] { return begin(driver_, batch); });
    }
    for (Batch& batch : batches_) {
      step(batch);
      run(batch, [&] { return record_launch(driver_, batch); });
    }
    for (bool any = true; any;) {
      any = false;
      for (Batch& batch : batches_) {
        if (batch.takes_turns()) any = step(batch) || any;
      }
    }
    for (Batch& batch : batches_) {
      run(batch, [&] { return fork_or_join(driver_, batch, true); });
    }
    for (Batch& batch : batches_) {
      run(batch, [&] { return enqueue_messages(batch, false); });
    }
    // Steps of all ranks before the next ones of any: they wait only for what earlier ones set.
    for (bool any = true; any;) {
      any = false;
      for (Batch& batch : batches_) {
        run(batch, [&] { return enqueue_streamed(batch, &any); });
      }
    }
    for (Batch& batch : batches_) {
      run(batch, [&] { return enqueue_messages(batch, true); });
    }
    for (Batch& batch : batches_) {
      run(batch, [&] { return fork_or_join(driver_, batch, false); });
    }
    for (Batch& batch : batches_) step(batch);
    bool any_waits = false;
    for (Batch& batch : batches_) {
      run(batch, [&] { return release_streams(driver_, batch); });
      any_waits = any_waits || (batch.outcome.ok() && !batch.capture.active);
    }
    for (Batch& batch : batches_) end(driver_, batch, any_waits);
  }

  const std::vector<Batch>& batches() const { return batches_; }

 private:
  // Calls it in the batch's context, if nothing has failed yet.
  template <typename Call>
  void run(Batch& batch, Call call) {
    if (!batch.outcome.ok()) return;
    try {
      const cuda::Stream lead = batch.streams[0];
      const cuda::ContextScope context(driver_, cuda::is_default_stream(lead) ? nullptr : lead,
                                       batch.context);
      batch.outcome = call();
    } catch (...) {
      batch.outcome = outcome_of_exception(batch.function, std::current_exception());
    }
  }
  // False when no step is left.
  bool step(Batch& batch) {
    if (!batch.outcome.ok() || batch.commands == nullptr || batch.commands->ended()) return false;
    run(batch, [&] { return batch.commands->enqueue_step(); });
    return true;
  }

  const Driver& driver_;
  std::vector<Batch> batches_;
  std::vector<std::unique_lock<std::mutex>> locks_;
};

// Memory that the host cannot access, so that the call needs CUDA.
bool uses_device_memory(const Driver& driver, cuda::Context context, const Operation& operation) {
  if (context == nullptr) return false;
  const cuda::ContextScope scope(driver, nullptr, context);
  return cuda::only_on_device(driver, operation.send) ||
         cuda::only_on_device(driver, operation.recv);
}

}  // namespace

void find_order(Operation* operation) {
  const bool named = operation->stream != nullptr || operation->launch_event != nullptr;
  const Driver* driver = named ? cuda::driver(true) : cuda::known_driver();
  if (driver == nullptr) return;
  if (cuda::is_default_stream(operation->stream)) {
    operation->context = cuda::context_on(*driver, operation->comm->device());
  }
  cuda::Context current = nullptr;
  if (operation->context == nullptr &&
      (driver->cuCtxGetCurrent(&current) != cuda::kSuccess || current == nullptr)) {
    // A thread without a context: the legacy default stream is the same for all threads.
    const cuda::Context primary = cuda::primary_context(*driver, operation->comm->device());
    if (operation->stream != nullptr || uses_device_memory(*driver, primary, *operation)) {
      operation->context = primary;
    }
  }
  operation->in_stream_order = operation->stream != nullptr || operation->context != nullptr;
}

Outcome enqueue(std::vector<Operation> operations,
                const std::shared_ptr<const std::atomic<bool>>& may_run) {
  const Driver& driver = *cuda::driver(true);
  const NeighborsInGroup neighbors(driver, operations);
  std::shared_ptr<Comm> failed;
  Outcome refused = neighbors.check(operations, &failed);
  if (!refused.ok()) {
    // Peers elsewhere may have begun.
    failed->give_up(refused);
    failed->note_error(refused.text);
    return refused;
  }
  std::vector<Batch> batches = batches_of(std::move(operations));
  for (Batch& it : batches) it.may_run = may_run;
  Group group(driver, neighbors, std::move(batches));
  group.enqueue();
  Outcome first;
  for (const Batch& batch : group.batches()) {
    if (batch.outcome.ok()) continue;
    batch.parts[0].comm->note_error(batch.outcome.text);
    if (first.ok()) first = batch.outcome;
  }
  return first;
}

Outcome use_own_stream(Operation* operation) {
  comm::StreamMemory& memory = *operation->comm->devices().stream_memory();
  const cuda::ContextScope scope(memory.driver(), nullptr, memory.context());
  cuda::Stream stream = nullptr;
  Outcome outcome = outcome_of(
      memory.own_stream(operation->function, comm::StreamMemory::OwnStream::kCollectives, &stream));
  if (!outcome.ok()) return outcome;
  operation->stream = static_cast<cudaStream_t>(stream);
  operation->context = memory.context();
  operation->in_stream_order = true;
  return {};
}

Outcome wait_for_own_stream(const char* function, Comm& comm) {
  comm::StreamMemory& memory = *comm.devices().stream_memory();
  const cuda::Driver& driver = memory.driver();
  const cuda::ContextScope scope(driver, nullptr, memory.context());
  cuda::Stream stream = nullptr;
  Outcome outcome =
      outcome_of(memory.own_stream(function, comm::StreamMemory::OwnStream::kCollectives, &stream));
  if (!outcome.ok()) return outcome;
  const cuda::Result result = driver.cuStreamSynchronize(stream);
  if (result != cuda::kSuccess) {
    return cuda_failed(driver, function, "cuStreamSynchronize", result);
  }
  const ncclResult_t error = comm.async_error();
  if (error == ncclSuccess || error == ncclInProgress) return {};
  return {error, comm.last_error()};
}

uint64_t wanted_chunk_bytes() {
  const Driver* driver = cuda::driver_in_use();
  if (driver == nullptr) return 0;
  comm::leave_before_cuda(*driver);
  const auto& settings = process_settings();
  return settings.ok() ? static_cast<uint64_t>(settings.value().nccl_chunk_bytes) : 0;
}

bool must_cut(const Operation& operation) {
  const uint64_t chunk_bytes = operation.comm->devices().chunk_bytes();
  return chunk_bytes > 0 && cut(operation, chunk_bytes).slice_count > 1;
}

Outcome run_cut(std::vector<Operation> operations) {
  std::vector<std::vector<Operation>> by_comm;
  for (Operation& it : operations) {
    auto mine = std::find_if(by_comm.begin(), by_comm.end(),
                             [&](const auto& known) { return known[0].comm == it.comm; });
    if (mine == by_comm.end()) mine = by_comm.emplace(by_comm.end());
    mine->push_back(std::move(it));
  }
  const auto nowhere = [](const void*, const void*) { return false; };
  std::vector<std::unique_ptr<ProxyTask>> tasks;
  for (auto& it : by_comm) tasks.push_back(plan_task(std::move(it), false, nowhere, nullptr));
  return run_here(tasks);
}

}  // namespace weir::nccl
