// SPDX-License-Identifier: Apache-2.0
#include "operation.h"

#include <c10/util/Exception.h>
#include <pthread.h>

#include <deque>
#include <thread>

namespace weir::pytorch {

// The thread of completions, one per process. It holds no lock of Weir's, so that callbacks of
// Futures may take Python's.
class Completions {
 public:
  static Completions& get() {
    static const bool is_made = [] {
      current_ = new Completions;
      // A child made by fork has neither the thread nor, for certain, an unlocked mutex.
      pthread_atfork(nullptr, nullptr, [] { current_ = new Completions; });
      return true;
    }();
    static_cast<void>(is_made);
    return *current_;
  }

  // Starts the thread, where it does not run. False: completions have been stopped.
  bool start() {
    const std::lock_guard lock(mutex_);
    if (is_stopped_) return false;
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
    return true;
  }

  void add(c10::intrusive_ptr<Operation> operation) {
    {
      const std::lock_guard lock(mutex_);
      // After the end their tensors are left to the process.
      if (is_stopped_) {
        operation.release();
        return;
      }
      queue_.push_back({std::move(operation), nullptr});
    }
    changed_.notify_one();
  }

  // `task` is called by the thread; dropped after the end.
  void post(std::function<void()> task) {
    if (!start()) return;
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back({nullptr, std::move(task)});
    }
    changed_.notify_one();
  }

  void stop() {
    std::thread thread;
    {
      const std::lock_guard lock(mutex_);
      is_stopped_ = true;
      for (Entry& entry : queue_) entry.operation.release();
      queue_.clear();
      thread = std::move(thread_);
    }
    changed_.notify_one();
    if (thread.joinable()) thread.join();
  }

 private:
  struct Entry {
    c10::intrusive_ptr<Operation> operation;
    std::function<void()> task;
  };

  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return is_stopped_ || !queue_.empty(); });
      if (is_stopped_) return;
      Entry entry = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      if (entry.operation) entry.operation->complete_watched();
      if (entry.task) entry.task();
      entry = {};
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Entry> queue_;
  std::thread thread_;
  bool is_stopped_ = false;

  // Never destroyed: operations may complete while the process ends.
  static Completions* current_;
};

Completions* Completions::current_ = nullptr;

void stop_completions() { Completions::get().stop(); }

// ---- Operation --------------------------------------------------------------------------------

weir_request_t* Operation::new_request() {
  requests_.push_back(nullptr);
  return &requests_.back();
}

bool Operation::is_complete() {
  if (is_done_flag_.load(std::memory_order_acquire)) return true;
  {
    const std::lock_guard lock(mutex_);
    if (is_done_) return true;
    if (is_taken_) return false;
    is_taken_ = true;
  }
  bool all_done = true;
  for (weir_request_t& request : requests_) {
    if (request == nullptr) continue;
    int done = 0;
    const weir_result_t result = weir_test(&request, &done);
    if (result != WEIR_OK && result_ == WEIR_OK) result_ = result;
    if (done == 0 && result == WEIR_OK) all_done = false;
  }
  if (all_done) {
    finish();
    return true;
  }
  {
    const std::lock_guard lock(mutex_);
    is_taken_ = false;
  }
  changed_.notify_all();
  return false;
}

bool Operation::wait(std::chrono::milliseconds timeout) {
  if (is_done_flag_.load(std::memory_order_acquire)) return true;
  std::unique_lock lock(mutex_);
  if (timeout.count() > 0) {
    watch_locked();
    return changed_.wait_for(lock, timeout, [&] { return is_done_; });
  }
  changed_.wait(lock, [&] { return is_done_ || !is_taken_; });
  if (is_done_) return true;
  is_taken_ = true;
  lock.unlock();
  for (weir_request_t& request : requests_) {
    if (request == nullptr) continue;
    const weir_result_t result = weir_wait(&request);
    if (result != WEIR_OK && result_ == WEIR_OK) result_ = result;
  }
  finish();
  return true;
}

std::exception_ptr Operation::exception() const {
  const std::lock_guard lock(mutex_);
  return exception_;
}

float Operation::duration_ms() const {
  const std::lock_guard lock(mutex_);
  if (!is_done_ || !begin_) return 0;
  return std::chrono::duration<float, std::milli>(end_ - *begin_).count();
}

c10::intrusive_ptr<c10::ivalue::Future> Operation::future() {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    const std::lock_guard lock(mutex_);
    if (future_) return future_;
    const auto tensors = c10::ListType::create(c10::TensorType::get());
    future_ = c10::make_intrusive<c10::ivalue::Future>(
        outputs_.size() > 1 ? c10::TypePtr(c10::ListType::create(tensors)) : c10::TypePtr(tensors));
    future = future_;
    if (!is_done_) {
      watch_locked();
      return future;
    }
  }
  mark_future();
  return future;
}

void Operation::watch() {
  const std::lock_guard lock(mutex_);
  watch_locked();
}

void Operation::watch_locked() {
  // A thread that waits completes the operation.
  if (is_done_ || is_taken_ || is_watched_) return;
  is_watched_ = true;
  if (!Completions::get().start()) {
    // Python is ending, and the transports may still write to the tensors: they stay.
    c10::intrusive_ptr<Operation>::reclaim_copy(this).release();
    return;
  }
  unwatched_.store(requests_.size() + 1, std::memory_order_relaxed);
  for (const weir_request_t request : requests_) {
    auto self = c10::intrusive_ptr<Operation>::reclaim_copy(this);
    if (request == nullptr ||
        weir_request_on_complete(request, &Operation::on_request, self.get()) != WEIR_OK) {
      on_request(self.release(), WEIR_OK);
    } else {
      self.release();
    }
  }
  on_request(c10::intrusive_ptr<Operation>::reclaim_copy(this).release(), WEIR_OK);
}

// No lock of the operation's may be taken here: the call that registers this may call it.
void Operation::on_request(void* context, weir_result_t /*result*/) {
  auto self = c10::intrusive_ptr<Operation>::reclaim(static_cast<Operation*>(context));
  if (self->unwatched_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    Completions::get().add(std::move(self));
  }
}

void Operation::complete_watched() {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_done_ || !is_taken_; });
    if (is_done_) return;
    is_taken_ = true;
  }
  for (weir_request_t& request : requests_) {
    if (request == nullptr) continue;
    const weir_result_t result = weir_wait(&request);
    if (result != WEIR_OK && result_ == WEIR_OK) result_ = result;
  }
  finish();
}

void Operation::finish() {
  std::exception_ptr exception;
  if (result_ != WEIR_OK) {
    exception = exception_of(result_, comm_->handle(), name_);
  } else {
    try {
      for (const auto& action : actions_) action();
    } catch (...) {
      exception = std::current_exception();
    }
  }
  if (end_of_profile_) end_of_profile_();
  if (when_finished_) Completions::get().post(std::move(when_finished_));
  std::vector<at::Tensor> kept;
  std::vector<std::function<void()>> actions;
  bool has_future = false;
  {
    const std::lock_guard lock(mutex_);
    kept.swap(kept_);
    actions.swap(actions_);
    if (begin_) end_ = std::chrono::steady_clock::now();
    exception_ = exception;
    is_done_ = true;
    is_taken_ = false;
    has_future = future_ != nullptr;
    is_done_flag_.store(true, std::memory_order_release);
  }
  changed_.notify_all();
  if (has_future) mark_future();
}

void Operation::mark_future() {
  if (exception_) {
    future_->setError(exception_);
  } else {
    future_->markCompleted(value_of(outputs_));
  }
}

c10::IValue value_of(const Outputs& outputs) {
  if (outputs.empty()) return std::vector<at::Tensor>();
  if (outputs.size() == 1) return outputs.front();
  return outputs;
}

std::vector<at::Tensor> flat(const Outputs& outputs) {
  std::vector<at::Tensor> tensors;
  for (const auto& list : outputs) tensors.insert(tensors.end(), list.begin(), list.end());
  return tensors;
}

// ---- Works ------------------------------------------------------------------------------------

OperationWork::OperationWork(int rank, c10d::OpType type, const char* title,
                             const std::vector<at::Tensor>& inputs, uint64_t sequence,
                             c10::intrusive_ptr<Operation> operation)
    : Work(rank, type, title, inputs), operation_(std::move(operation)), sequence_(sequence) {
  if (recordFunctionEndCallback_) {
    operation_->set_end_of_profile(std::move(recordFunctionEndCallback_));
    recordFunctionEndCallback_ = nullptr;
  }
}

// The buffers of an operation that nobody waits for are kept until it is complete.
OperationWork::~OperationWork() { operation_->watch(); }

bool OperationWork::isSuccess() const {
  return operation_->is_complete() && operation_->exception() == nullptr;
}

std::vector<at::Tensor> OperationWork::result() {
  TORCH_CHECK(operation_->is_complete(),
              "Work needs to be completed before result is called: call wait() first");
  return flat(operation_->outputs());
}

bool OperationWork::wait(std::chrono::milliseconds timeout) {
  if (!operation_->wait(timeout)) {
    C10_THROW_ERROR(DistBackendError,
                    c10::str("Timed out: the operation was not complete after ", timeout.count(),
                             " ms. It goes on until its own deadline"));
  }
  if (const auto exception = operation_->exception()) std::rethrow_exception(exception);
  return true;
}

std::vector<at::Tensor> CompleteWork::result() { return flat(outputs_); }

c10::intrusive_ptr<c10::ivalue::Future> CompleteWork::getFuture() {
  const auto tensors = c10::ListType::create(c10::TensorType::get());
  auto future = c10::make_intrusive<c10::ivalue::Future>(
      outputs_.size() > 1 ? c10::TypePtr(c10::ListType::create(tensors)) : c10::TypePtr(tensors));
  future->markCompleted(value_of(outputs_));
  return future;
}

}  // namespace weir::pytorch
