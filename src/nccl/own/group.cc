// SPDX-License-Identifier: Apache-2.0
#include "nccl/own/group.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <iterator>
#include <latch>
#include <mutex>
#include <utility>

#include "core/base/background.h"
#include "core/base/per_thread.h"
#include "core/base/process_generation.h"
#include "nccl/stream/direct_policy.h"
#include "nccl/stream/enqueue.h"

namespace weir::nccl {

namespace {

struct Batch {
  std::vector<Setup> setups;
  std::vector<Operation> operations;

  bool empty() const { return setups.empty() && operations.empty(); }
};

struct Group {
  int depth = 0;
  uint64_t generation = 0;  // of the process that opened it
  Outcome error;            // the first of its calls
  Batch batch;
};

Group& my_group() { return PerThread<Group>::get(); }

// A group that was open at a fork is the parent's; here no group is open.
bool in_group() {
  if (my_group().depth == 0) return false;
  if (my_group().generation == process_generation()) return true;
  // Its contents are not destroyed here: threads of the parent may have been using them.
  (void)new Group(std::exchange(my_group(), Group()));
  return false;
}

// ---- Setups -------------------------------------------------------------------------------------

// Setups that must run one after the other, in a thread of their own.
struct Chain {
  std::vector<Setup> setups;

  std::mutex lock;
  std::condition_variable ended;
  bool done = false;
  Outcome outcome;  // the first error

  bool aborted() const {
    for (const Setup& setup : setups) {
      if (setup.made != nullptr && setup.made->aborted()) return true;
      if (setup.parent != nullptr && setup.parent->aborted()) return true;
    }
    return false;
  }
};

Outcome run_setup(const Setup& setup) {
  try {
    if (setup.parent != nullptr) setup.parent->wait_for_streams();
    return setup.work();
  } catch (...) {
    return outcome_of_exception(setup.function, std::current_exception());
  }
}

void run_chain(Chain& chain) noexcept {
  Outcome first;
  try {
    for (const Setup& setup : chain.setups) {
      Outcome outcome = run_setup(setup);
      if (!outcome.ok() && setup.made != nullptr) setup.made->note_error(outcome.text);
      if (!outcome.ok() && first.ok()) first = std::move(outcome);
    }
  } catch (...) {
    first = outcome_of_exception("a call that makes communicators", std::current_exception());
  }
  std::lock_guard lock(chain.lock);
  chain.outcome = std::move(first);
  chain.done = true;
  chain.ended.notify_all();
}

std::vector<std::shared_ptr<Chain>> chains_of(std::vector<Setup> setups) {
  std::vector<std::shared_ptr<Chain>> chains;
  for (Setup& setup : setups) {
    Chain* found = nullptr;
    for (const auto& chain : chains) {
      if (setup.parent != nullptr && chain->setups.front().parent == setup.parent) {
        found = chain.get();
      }
    }
    if (found == nullptr) found = chains.emplace_back(std::make_shared<Chain>()).get();
    found->setups.push_back(std::move(setup));
  }
  return chains;
}

// Waits for the end, or until another thread has aborted a communicator of the chain. After an
// abort, the chain's own thread runs until a deadline, and no thread waits for it.
Outcome wait_for(Chain& chain) {
  std::unique_lock lock(chain.lock);
  while (!chain.done) {
    chain.ended.wait_for(lock, std::chrono::milliseconds(10));
    if (!chain.done && chain.aborted()) {
      return {ncclInternalError,
              fmt::format("{}: the communicator, or the one from which it is made, was aborted or "
                          "destroyed before the call had ended",
                          chain.setups.front().function)};
    }
  }
  return chain.outcome;
}

Outcome run_setups(std::vector<Setup> setups) {
  Outcome first;
  std::vector<std::shared_ptr<Chain>> running;
  for (auto& chain : chains_of(std::move(setups))) {
    try {
      run_in_background([chain] { run_chain(*chain); });
      running.push_back(std::move(chain));
    } catch (...) {
      if (first.ok()) {
        first = outcome_of_exception(chain->setups.front().function, std::current_exception());
      }
    }
  }
  for (const auto& chain : running) {
    Outcome outcome = wait_for(*chain);
    if (outcome.ok()) {
      for (const Setup& setup : chain->setups) {
        if (setup.publish) setup.publish();
      }
    } else if (first.ok()) {
      first = std::move(outcome);
    }
    // The chain's thread may hold it for a moment longer, which its communicators must not wait
    // for. (After an abort they are still in use there.)
    std::lock_guard lock(chain->lock);
    if (chain->done) chain->setups.clear();
  }
  return first;
}

// ---- Operations ---------------------------------------------------------------------------------

bool all_in_stream_order(const std::vector<Operation>& operations) {
  return std::all_of(operations.begin(), operations.end(),
                     [](const Operation& it) { return it.in_stream_order; });
}

// Takes out those that are in stream order.
std::vector<Operation> take_in_stream_order(std::vector<Operation>* operations) {
  const auto first = std::stable_partition(operations->begin(), operations->end(),
                                           [](const Operation& it) { return !it.in_stream_order; });
  std::vector<Operation> taken(std::make_move_iterator(first),
                               std::make_move_iterator(operations->end()));
  operations->erase(first, operations->end());
  return taken;
}

// Those without a stream whose peers have them in streams. Their communicators.
Outcome put_on_own_streams(std::vector<Operation>* operations,
                           std::vector<std::shared_ptr<Comm>>* communicators) {
  for (Operation& it : *operations) {
    if (it.in_stream_order || !goes_by_stream(it)) continue;
    Outcome outcome = use_own_stream(&it);
    if (!outcome.ok()) return outcome;
    communicators->push_back(it.comm);
  }
  return {};
}

Outcome run_others(std::vector<Operation> operations);

Outcome run_operations(std::vector<Operation> operations) {
  std::vector<std::shared_ptr<Comm>> on_own_streams;
  const char* const function = operations[0].function;
  Outcome outcome = put_on_own_streams(&operations, &on_own_streams);
  if (outcome.ok()) outcome = run_others(std::move(operations));
  for (const auto& comm : on_own_streams) {
    Outcome ended = wait_for_own_stream(function, *comm);
    if (outcome.ok()) outcome = std::move(ended);
  }
  return outcome;
}

Outcome run_others(std::vector<Operation> operations) {
  if (std::vector<Operation> on_streams = take_in_stream_order(&operations); !on_streams.empty()) {
    Outcome outcome = enqueue(std::move(on_streams));
    if (!outcome.ok() || operations.empty()) return outcome;
  }
  for (const Operation& it : operations) it.comm->wait_for_streams();
  if (std::any_of(operations.begin(), operations.end(), must_cut)) {
    return run_cut(std::move(operations));
  }
  if (operations.size() == 1) return start(operations[0], nullptr);
  Outcome first;
  std::vector<weir_request_t> requests(operations.size());
  std::vector<bool> begun(operations.size());
  for (size_t i = 0; i < operations.size(); ++i) {
    Outcome outcome = start(operations[i], &requests[i]);
    begun[i] = outcome.ok();
    if (outcome.ok()) continue;
    operations[i].comm->note_error(outcome.text);
    requests[i] = nullptr;
    if (first.ok()) first = std::move(outcome);
  }
  const auto note = [&](const Operation& operation, Outcome outcome) {
    if (outcome.ok()) return;
    operation.comm->note_error(outcome.text);
    if (first.ok()) first = std::move(outcome);
  };
  for (size_t i = 0; i < operations.size(); ++i) {
    if (requests[i] == nullptr) continue;
    const Operation& operation = operations[i];
    note(operation, operation.comm->outcome(operation.function, weir_wait(&requests[i])));
  }
  // They may come last, since no rank's operations wait for another rank to take its signals.
  for (size_t i = 0; i < operations.size(); ++i) {
    if (waits_for_signals(operations[i]) && begun[i]) {
      note(operations[i], finish(operations[i]));
    }
  }
  return first;
}

// ---- Batches ------------------------------------------------------------------------------------

Outcome run(Batch& batch) {
  if (!batch.setups.empty()) {
    Outcome outcome = run_setups(std::move(batch.setups));
    if (!outcome.ok()) return outcome;
  }
  return batch.operations.empty() ? Outcome() : run_operations(std::move(batch.operations));
}

// The communicators of a batch, each once.
std::vector<std::shared_ptr<Comm>> communicators_of(const Batch& batch) {
  std::vector<std::shared_ptr<Comm>> all;
  auto add = [&](const std::shared_ptr<Comm>& comm) {
    if (comm == nullptr) return;
    for (const auto& known : all) {
      if (known == comm) return;
    }
    all.push_back(comm);
  };
  for (const Setup& setup : batch.setups) {
    add(setup.parent);
    add(setup.made);
  }
  for (const Operation& operation : batch.operations) add(operation.comm);
  return all;
}

Outcome common_blocking(const Batch& batch, bool* blocking) {
  bool any = false;
  bool mixed = false;
  auto add = [&](const Comm& comm) {
    mixed = mixed || (any && comm.config().blocking != *blocking);
    *blocking = comm.config().blocking;
    any = true;
  };
  for (const Setup& setup : batch.setups) add(setup.lead());
  for (const Operation& operation : batch.operations) add(*operation.comm);
  if (mixed) {
    return invalid_argument(
        "ncclGroupEnd: blocking and nonblocking communicators cannot share a group");
  }
  return {};
}

// Withdraws handles of communicators that will not be made.
void withdraw(const std::vector<Setup>& setups) {
  for (const Setup& setup : setups) {
    if (setup.handle == nullptr) continue;
    if (close_handle(setup.handle) != nullptr && setup.out != nullptr) *setup.out = nullptr;
  }
}

// A group that goes on in the background.
struct Queued {
  Batch batch;  // without the operations on streams
  std::atomic<bool> set_up{false};
  std::latch enqueued{1};
  Outcome enqueue_outcome;
};

Outcome run_queued(Queued& queued, const std::vector<std::shared_ptr<Comm>>& on_streams) {
  Outcome outcome;
  try {
    outcome = run_setups(std::move(queued.batch.setups));
  } catch (...) {
    outcome = outcome_of_exception("a call in the background", std::current_exception());
  }
  if (!outcome.ok()) {
    for (const auto& comm : on_streams) comm->give_up(outcome);
  }
  queued.set_up.store(true, std::memory_order_release);
  queued.enqueued.wait();
  if (outcome.ok()) outcome = queued.enqueue_outcome;
  if (!outcome.ok() || queued.batch.operations.empty()) return outcome;
  return run_operations(std::move(queued.batch.operations));
}

// Operations are put on their streams here, where a default stream and a context are those that the
// caller means; they run when the setups have ended. The setups are begun first: putting an
// operation on a full stream waits for the stream.
ncclResult_t queue(Batch batch) {
  const auto communicators = communicators_of(batch);
  std::vector<Operation> on_streams = take_in_stream_order(&batch.operations);
  std::vector<std::shared_ptr<Comm>> stream_communicators;
  for (const Operation& it : on_streams) stream_communicators.push_back(it.comm);
  auto queued = std::make_shared<Queued>();
  queued->batch = std::move(batch);
  for (const auto& comm : communicators) comm->background_begins();
  try {
    run_in_background([queued, communicators, stream_communicators] {
      Outcome ended;
      try {
        ended = run_queued(*queued, stream_communicators);
      } catch (...) {
        ended = outcome_of_exception("a call in the background", std::current_exception());
      }
      if (!ended.ok()) (void)report(ended);
      // A new communicator before its parent: a program may poll the parent only, and use the new
      // one when the parent is no longer in progress.
      std::for_each(communicators.rbegin(), communicators.rend(),
                    [&](const auto& comm) { comm->background_ends(ended); });
    });
  } catch (...) {
    const Outcome outcome = outcome_of_exception("ncclGroupEnd", std::current_exception());
    for (const auto& comm : communicators) comm->background_ends(outcome);
    return report(outcome);
  }
  try {
    if (!on_streams.empty()) {
      queued->enqueue_outcome = enqueue(
          std::move(on_streams), std::shared_ptr<std::atomic<bool>>(queued, &queued->set_up));
    }
  } catch (...) {
    queued->enqueue_outcome = outcome_of_exception("ncclGroupEnd", std::current_exception());
  }
  queued->enqueued.count_down();
  return ncclInProgress;
}

ncclResult_t run_or_queue(Batch batch) {
  bool blocking = true;
  Outcome outcome = common_blocking(batch, &blocking);
  if (!outcome.ok()) {
    withdraw(batch.setups);
    return report(outcome);
  }
  if (blocking) {
    std::vector<Setup> made;
    for (const Setup& setup : batch.setups) {
      if (setup.handle == nullptr) continue;
      made.emplace_back();
      made.back().handle = setup.handle;
      made.back().out = setup.out;
    }
    outcome = run(batch);
    if (!outcome.ok() && !made.empty()) withdraw(made);
    return outcome.ok() ? ncclSuccess : report(outcome);
  }
  if (batch.setups.empty() && all_in_stream_order(batch.operations)) {
    outcome = enqueue(std::move(batch.operations));
    return outcome.ok() ? ncclSuccess : report(outcome);
  }
  return queue(std::move(batch));
}

template <typename Add>
ncclResult_t add_or_run(Add add) {
  if (in_group()) {
    add(my_group().batch);
    return ncclSuccess;
  }
  Batch batch;
  add(batch);
  return run_or_queue(std::move(batch));
}

// Found out before anything is on a stream: a call that breaks off halfway ends the communicator.
// Not during a capture: to ask for an event that belongs to one is forbidden (CUDA's programming
// guide), and may spoil it.
bool is_event(const Operation& operation) {
  const cuda::Driver& driver = *cuda::driver(true);
  if (driver.cuEventQuery == nullptr) return true;
  const cuda::ContextScope scope(driver, operation.stream, operation.context);
  int is_captured = 0;
  if (driver.cuStreamIsCapturing(operation.stream, &is_captured) != cuda::kSuccess ||
      is_captured != 0) {
    return true;
  }
  const cuda::RelaxedCapture relaxed(driver);
  return driver.cuEventQuery(operation.launch_event) != cuda::kErrorInvalidHandle;
}

// The event can be recorded, and is the only one of its communicator in the group.
Outcome check_launch_event(const Operation& operation) {
  const auto wrong = [&](const char* what) {
    return invalid_usage(fmt::format("{}, rank {} of {}: config.launchCompletionEvent: {}",
                                     operation.function, operation.comm->rank(),
                                     operation.comm->rank_count(), what));
  };
  if (!operation.in_stream_order) {
    return wrong(
        "an event is recorded in a stream, and without a stream and a CUDA context there is none; "
        "in host mode leave the field NULL: a call that returns has ended");
  }
  if (!is_event(operation)) {
    return wrong(
        "CUDA knows no such event; it must exist until the call returns, so create it before and "
        "destroy it after that");
  }
  const auto& earlier = my_group().batch.operations;
  const bool has_one =
      in_group() && std::any_of(earlier.begin(), earlier.end(), [&](const auto& it) {
        return it.comm == operation.comm && it.launch_event != nullptr;
      });
  if (!has_one) return {};
  return wrong("another call of the group has one for this communicator, and only one is allowed");
}

}  // namespace

void group_start() {
  if (!in_group()) my_group().generation = process_generation();
  ++my_group().depth;
}

ncclResult_t group_end() {
  if (!in_group()) {
    return report(invalid_usage("ncclGroupEnd: no group is open; ncclGroupStart opens one"));
  }
  if (--my_group().depth > 0) return ncclSuccess;
  Batch batch = std::move(my_group().batch);
  const Outcome error = std::move(my_group().error);
  my_group() = Group();
  if (!error.ok()) {
    withdraw(batch.setups);
    return report({error.code, "ncclGroupEnd: nothing of the group was started: " + error.text});
  }
  return batch.empty() ? ncclSuccess : run_or_queue(std::move(batch));
}

Outcome group_drop(const char* function) {
  if (!in_group()) {
    return invalid_usage(fmt::format("{}: no group is open; ncclGroupStart opens one", function));
  }
  if (--my_group().depth > 0) return {};
  Batch batch = std::move(my_group().batch);
  Outcome error = std::move(my_group().error);
  my_group() = Group();
  withdraw(batch.setups);
  return error;
}

ncclResult_t refuse(const Outcome& outcome, Comm* comm) {
  if (in_group() && my_group().error.ok()) my_group().error = outcome;
  if (comm != nullptr) comm->check_streams(outcome);
  return report(outcome, comm);
}

ncclResult_t submit(Operation operation) {
  if (!in_group() && is_message(operation.kind) && operation.peer == operation.comm->rank()) {
    const std::shared_ptr<Comm> comm = operation.comm;
    return refuse(invalid_usage(fmt::format(
                      "{}, rank {} of {}: a message to oneself outside a group never ends: call "
                      "ncclSend and ncclRecv between ncclGroupStart and ncclGroupEnd",
                      operation.function, comm->rank(), comm->rank_count())),
                  comm.get());
  }
  find_order(&operation);
  if (operation.launch_event != nullptr) {
    const Outcome outcome = check_launch_event(operation);
    if (!outcome.ok()) return refuse(outcome, operation.comm.get());
  }
  if (!in_group() && operation.comm->config().blocking) {
    const std::shared_ptr<Comm> comm = operation.comm;
    Outcome outcome;
    if (!operation.in_stream_order && !must_cut(operation) && !goes_by_stream(operation)) {
      comm->wait_for_streams();
      outcome = start(operation, nullptr);
    } else {
      std::vector<Operation> one;
      one.push_back(std::move(operation));
      outcome = run_operations(std::move(one));
    }
    return outcome.ok() ? ncclSuccess : report(outcome, comm.get());
  }
  return add_or_run([&](Batch& batch) { batch.operations.push_back(std::move(operation)); });
}

ncclResult_t submit(Setup setup) {
  return add_or_run([&](Batch& batch) { batch.setups.push_back(std::move(setup)); });
}

}  // namespace weir::nccl
