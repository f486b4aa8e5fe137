// SPDX-License-Identifier: Apache-2.0
// Proxy: runs a communicator's operations when its streams have reached them. It holds the tasks
// that were enqueued, which it runs in the order of the calls, and the tasks of captured graphs,
// each of which it runs whenever a launch of the graph rings for it. Its thread exists while there
// are tasks of either kind; it makes no call to CUDA that waits for a stream of the program. Calls
// that are work of streams alone need no thread, and are only watched (comm::StreamWatches).
//
// Tasks of one communicator follow each other in stream order, whatever their streams, and so share
// one staging (TaskChain).
//
// Thread-safe, except chains, which are used under enqueue_lock().
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "core/comm/stream/graph_order.h"
#include "core/comm/stream/staging.h"
#include "core/comm/stream/stream_event.h"
#include "core/comm/stream/stream_watches.h"
#include "cuda/driver.h"
#include "nccl/comm/comm.h"
#include "nccl/stream/calls_in_flight.h"
#include "nccl/stream/proxy_task.h"

namespace weir::nccl {

// What tasks that follow each other have in common.
struct TaskChain {
  TaskChain() = default;
  ~TaskChain() {
    // So that they may be used again; not where a stream may still write to them.
    if (words == nullptr || !is_over(kCollectives) || !is_over(kMessages)) return;
    for (size_t i = 0; i < kWords; ++i) words->mailboxes[i] = {};
  }
  TaskChain(const TaskChain&) = delete;
  TaskChain& operator=(const TaskChain&) = delete;

  // Of calls that are work of the stream alone, by kind: the first mailbox of the two that each
  // kind has in `words`.
  static constexpr size_t kCollectives = 0;
  static constexpr size_t kMessages = 2;
  static constexpr size_t kWords = 4;
  // The latest call that has begun has ended.
  bool is_over(size_t kind) const {
    comm::Mailbox& it = words->mailboxes[kind];
    return it.rung() == comm::load_word(it.done);
  }

  std::shared_ptr<comm::Staging> staging;
  uint32_t last_number = 0;
  std::shared_ptr<comm::StreamEvent> last;  // the end of the latest task
  std::shared_ptr<CallsInFlight> calls;
  std::shared_ptr<comm::Staging> words;   // of calls that are work of the stream alone
  uint32_t last_call = 0;                 // the number of the latest collective
  uint32_t last_message = 0;              // and of the latest group's messages
  std::shared_ptr<comm::Staging> pinned;  // for their plain memory of the host
};

// Tasks in one graph.
class GraphTasks {
 public:
  explicit GraphTasks(uint64_t the_capture) : capture(the_capture) {}

  const uint64_t capture;  // CUDA's number of the capture
  TaskChain chain;
  comm::GraphOrder::Kept kept;
  // The graph and all that was made from it is gone.
  std::atomic<bool> released{false};
  const std::shared_ptr<comm::GraphWatches> watches = std::make_shared<comm::GraphWatches>();

 private:
  friend class Proxy;
  // Tasks that share a staging; task i has the number i + 1.
  struct Part {
    std::shared_ptr<comm::Staging> staging;
    std::vector<std::shared_ptr<ProxyTask>> tasks;
  };
  std::vector<Part> parts_;
};

class Proxy : public StreamWork, public std::enable_shared_from_this<Proxy> {
 public:
  Proxy();
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;

  // Held by the thread that enqueues, from before its first call to CUDA until the task is added.
  std::mutex& enqueue_lock() { return enqueue_lock_; }
  TaskChain& chain() { return chain_; }
  comm::GraphOrder& order() { return order_; }
  comm::StreamWatches& watches() { return *watches_; }

  // Starts the thread if there is none; it stays until enqueue_ends. Waits while kTasksMax tasks
  // are enqueued. Throws when no thread can be started.
  void enqueue_begins(const cuda::Driver& driver);
  // Adds a task that is not part of a graph, before the first call to CUDA that rings for it: such
  // a call may wait until the stream has gone on, which waits for this task. When the caller
  // returns, the task may have been run and destroyed already.
  void add(std::shared_ptr<ProxyTask> task);
  // `task` empty: it was neither added nor captured. `rings`: how often the stream will ring for
  // it.
  void enqueue_ends(const std::shared_ptr<ProxyTask>& task, size_t rings,
                    const std::shared_ptr<GraphTasks>& graph_tasks);

  // Whether the program has reset the device of the stream that was used last. What the streams
  // still held for this communicator is gone then, and is not waited for any more; the communicator
  // fails, also for its peers. `outcome`: of the call that noticed it; says then what happened.
  // Under enqueue_lock().
  bool fail_if_lost(const cuda::Driver& driver, Comm& comm, Outcome* outcome);

  // nullptr: that capture has no tasks yet.
  std::shared_ptr<GraphTasks> find_graph_tasks(uint64_t capture);
  // From any thread, also one of CUDA's.
  void release(GraphTasks& graph_tasks);

  void wait_until_idle(Comm& comm) override;
  bool idle() override;
  void check(Comm& comm, const Outcome& outcome) override;

 private:
  struct Ready {
    ProxyTask* task = nullptr;
    std::shared_ptr<GraphTasks> graph_tasks;  // empty: the first that was enqueued
  };
  void serve() noexcept;
  // With the lock.
  Ready find_ready();
  std::vector<std::shared_ptr<ProxyTask>> take_lost_tasks();
  bool lost(const cuda::Driver& driver);
  void keep(const std::shared_ptr<GraphTasks>& graph_tasks);
  bool has_only_held_tasks() const;
  bool has_work() const { return !tasks_.empty() || !graph_tasks_.empty() || enqueueing_ > 0; }
  // Not for graphs without tasks, which are only kept.
  bool must_poll() const;

  std::mutex enqueue_lock_;
  TaskChain chain_;
  comm::GraphOrder order_;
  bool lost_ = false;
  std::shared_ptr<comm::StreamWatches> watches_;

  std::mutex lock_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<ProxyTask>> tasks_;
  std::vector<std::shared_ptr<GraphTasks>> graph_tasks_;
  int enqueueing_ = 0;
  bool serving_ = false;
};

// The communicator's; made at the first call.
std::shared_ptr<Proxy> proxy_of(Comm& comm);

}  // namespace weir::nccl
