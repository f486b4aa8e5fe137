// SPDX-License-Identifier: Apache-2.0
// The threads that complete operations which nobody waits for, and call the callbacks of their
// Futures. One thread serves at a time. A callback may wait for another operation: then another
// thread goes on, which is started when one is first needed. They hold no lock of Weir's, so that
// callbacks may take Python's. Tensors are let go here too: that may take Python's lock.
// Thread-safe.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "communicator.h"

namespace weir::pytorch {

class Operation;

class Completions {
 public:
  // As many callbacks may wait at a time, less one.
  static constexpr size_t kThreadsMax = 64;

  // Those of this process: a child made by fork has its own.
  static Completions& get();
  // Larger in a child made by fork than in its parent.
  static uint64_t generation();

  // Starts a thread, where none runs. False: completions have been stopped.
  bool start();
  // All requests of `operation` are known to be complete. May be called within calls of weir.h.
  void add(c10::intrusive_ptr<Operation> operation);
  // `task` is called by one of the threads, one task at a time; dropped after the end.
  void post(std::function<void()> task);

  // The calling thread, if it is one of these, is about to call what may wait: another one will be
  // there to go on.
  void prepare();
  // Likewise, and it is about to wait: another one goes on at once. DistBackendError where
  // kThreadsMax wait.
  void hand_over();

  // Communicators whose operations a callback may wait for.
  void add(const std::shared_ptr<SharedCommunicator>& communicator);

  // No callback is called after this has returned. What running callbacks wait for is served for
  // kGrace; then all communicators are aborted, so that no callback waits for a peer.
  void stop();

 private:
  using Clock = std::chrono::steady_clock;
  // Of a thread in a callback, where an operation is complete: then another thread serves it.
  static constexpr std::chrono::milliseconds kPatience{2};
  static constexpr std::chrono::milliseconds kGrace{1000};

  bool is_own_thread() const;
  bool has_entry() const;
  bool is_at_end() const { return is_stopped_ && busy_ == 0; }
  // Where no thread is idle. False: there are as many as there may be.
  bool ensure_idle();
  void run();
  // False: the thread ends.
  bool await_entry(std::unique_lock<std::mutex>& lock);
  void serve_entry(std::unique_lock<std::mutex>& lock);
  void abort_communicators(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::condition_variable ended_;
  std::deque<c10::intrusive_ptr<Operation>> operations_;
  std::deque<std::function<void()>> tasks_;
  std::vector<std::weak_ptr<SharedCommunicator>> communicators_;
  std::vector<std::thread> threads_;
  size_t idle_ = 0;
  size_t busy_ = 0;
  uint64_t tickets_ = 0;
  uint64_t serving_ = 0;        // the ticket of the entry whose thread goes on afterwards; 0: none
  Clock::time_point taken_at_;  // when that entry was taken
  bool is_in_task_ = false;
  bool is_stopped_ = false;

  // Never destroyed: operations may complete while the process ends.
  static Completions* current_;
  static std::atomic<uint64_t> generation_;
};

}  // namespace weir::pytorch
