// SPDX-License-Identifier: Apache-2.0
#include "completions.h"

#include <Python.h>
#include <c10/util/Exception.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "operation.h"

namespace weir::pytorch {

namespace {

// What the calling thread serves.
struct Served {
  const Completions* by = nullptr;  // nullptr: it is none of the threads
  uint64_t ticket = 0;
};
thread_local Served t_served;

}  // namespace

Completions* Completions::current_ = nullptr;
std::atomic<uint64_t> Completions::generation_{1};

Completions& Completions::get() {
  static const bool is_made = [] {
    current_ = new Completions;
    // A child made by fork has neither the threads nor, for certain, an unlocked mutex. The
    // parent's operations are left alone there.
    pthread_atfork(nullptr, nullptr, [] {
      generation_.fetch_add(1, std::memory_order_relaxed);
      current_ = new Completions;
    });
    return true;
  }();
  static_cast<void>(is_made);
  return *current_;
}

uint64_t Completions::generation() {
  get();
  return generation_.load(std::memory_order_relaxed);
}

bool Completions::start() {
  const std::lock_guard lock(mutex_);
  if (is_stopped_) return false;
  if (threads_.empty()) ensure_idle();
  return true;
}

void Completions::add(c10::intrusive_ptr<Operation> operation) {
  {
    const std::lock_guard lock(mutex_);
    // After the end their tensors are left to the process.
    if (is_at_end()) {
      operation.release();
      return;
    }
    operations_.push_back(std::move(operation));
  }
  changed_.notify_one();
}

void Completions::post(std::function<void()> task) {
  if (!start()) return;
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.notify_one();
}

void Completions::add(const std::shared_ptr<SharedCommunicator>& communicator) {
  const std::lock_guard lock(mutex_);
  std::erase_if(communicators_, [](const auto& known) { return known.expired(); });
  communicators_.push_back(communicator);
}

bool Completions::is_own_thread() const { return t_served.by == this; }

bool Completions::has_entry() const {
  return !operations_.empty() || (!tasks_.empty() && !is_in_task_);
}

bool Completions::ensure_idle() {
  if (idle_ > 0) return true;
  // At the end callbacks return as what they wait for is served.
  if (threads_.size() >= kThreadsMax && !is_stopped_) return false;
  threads_.emplace_back([this] { run(); });
  // It counts from now on, so that nobody starts one more meanwhile.
  ++idle_;
  return true;
}

void Completions::prepare() {
  if (!is_own_thread()) return;
  const std::lock_guard lock(mutex_);
  try {
    if (ensure_idle()) return;
  } catch (const std::system_error&) {
    // The callback goes on alone, which is right unless it waits.
    return;
  }
  TORCH_WARN_ONCE(threads_.size(), " callbacks of Futures run or wait at the same time, the most ",
                  "that Weir serves: others are called when one of them has returned");
}

void Completions::hand_over() {
  if (!is_own_thread()) return;
  {
    const std::lock_guard lock(mutex_);
    if (serving_ != t_served.ticket) return;
    if (!ensure_idle()) {
      C10_THROW_ERROR(
          DistBackendError,
          c10::str(kThreadsMax, " callbacks of Futures wait at the same time, the most ",
                   "that Weir serves: this one cannot wait for an operation"));
    }
    serving_ = 0;
  }
  changed_.notify_one();
}

void Completions::run() {
  t_served.by = this;
  std::unique_lock lock(mutex_);
  while (await_entry(lock)) serve_entry(lock);
}

bool Completions::await_entry(std::unique_lock<std::mutex>& lock) {
  while (!is_at_end()) {
    if (!has_entry()) {
      changed_.wait(lock);
      continue;
    }
    // Longer with each thread that is busy: they may be waiting for Python's lock alone.
    const auto patient_until = taken_at_ + kPatience * busy_;
    if (serving_ == 0 || Clock::now() >= patient_until) {
      --idle_;
      return true;
    }
    changed_.wait_until(lock, patient_until);
  }
  return false;
}

void Completions::serve_entry(std::unique_lock<std::mutex>& lock) {
  const uint64_t ticket = ++tickets_;
  t_served.ticket = ticket;
  serving_ = ticket;
  taken_at_ = Clock::now();
  ++busy_;
  c10::intrusive_ptr<Operation> operation;
  std::function<void()> task;
  if (!operations_.empty()) {
    operation = std::move(operations_.front());
    operations_.pop_front();
  } else {
    task = std::move(tasks_.front());
    tasks_.pop_front();
    is_in_task_ = true;
  }
  const bool is_task = task != nullptr;
  lock.unlock();
  if (operation) operation->complete_watched();
  if (task) {
    prepare();
    task();
  }
  operation.reset();
  task = nullptr;
  lock.lock();
  if (is_task) is_in_task_ = false;
  if (serving_ == ticket) serving_ = 0;
  ++idle_;
  --busy_;
  if (is_stopped_) {
    ended_.notify_all();
    changed_.notify_all();
  }
}

void Completions::abort_communicators(std::unique_lock<std::mutex>& lock) {
  const auto communicators = communicators_;
  // An abort completes requests, which are added here.
  lock.unlock();
  for (const auto& known : communicators) {
    if (const auto communicator = known.lock()) weir_comm_abort(communicator->handle());
  }
  lock.lock();
}

void Completions::stop() {
  std::vector<std::thread> threads;
  std::deque<std::function<void()>> tasks;
  {
    std::unique_lock lock(mutex_);
    is_stopped_ = true;
    const size_t own = is_own_thread() ? 1 : 0;
    const auto no_callback_runs = [&] { return busy_ <= own; };
    if (!no_callback_runs()) ensure_idle();
    if (!ended_.wait_for(lock, kGrace, no_callback_runs)) {
      abort_communicators(lock);
      ended_.wait(lock, no_callback_runs);
    }
    for (auto& operation : operations_) operation.release();
    operations_.clear();
    tasks.swap(tasks_);
    threads.swap(threads_);
  }
  changed_.notify_all();
  for (std::thread& thread : threads) {
    if (thread.get_id() == std::this_thread::get_id()) {
      thread.detach();
    } else {
      thread.join();
    }
  }
}

namespace {

std::thread::id g_ending_thread;  // valid once g_python_ends is set
std::atomic<bool> g_python_ends{false};

}  // namespace

void stop_completions() {
  Completions::get().stop();
  g_ending_thread = std::this_thread::get_id();
  g_python_ends.store(true, std::memory_order_release);
  // Threads that were past stay_if_python_ends by then take Python's lock meanwhile, which the
  // caller has released.
  constexpr std::chrono::milliseconds kLastReturns{20};
  std::this_thread::sleep_for(kLastReturns);
}

void stay_if_python_ends() {
  if (!g_python_ends.load(std::memory_order_acquire)) [[likely]] {
    return;
  }
  if (std::this_thread::get_id() == g_ending_thread) return;
  for (;;) pause();
}

WithoutPython::WithoutPython()
    : state_(Py_IsInitialized() != 0 && PyGILState_Check() != 0 ? PyEval_SaveThread() : nullptr) {}

WithoutPython::~WithoutPython() {
  stay_if_python_ends();
  if (state_ != nullptr) PyEval_RestoreThread(static_cast<PyThreadState*>(state_));
}

bool completions_are_stopped() { return !Completions::get().start(); }

}  // namespace weir::pytorch
