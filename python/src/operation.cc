// SPDX-License-Identifier: Apache-2.0
#include "operation.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <thread>

#include "completions.h"

namespace weir::pytorch {

// ---- Operation --------------------------------------------------------------------------------

Operation::Operation(std::shared_ptr<SharedCommunicator> comm, const char* name)
    : comm_(std::move(comm)), name_(name), generation_(Completions::generation()) {}

bool Operation::is_of_parent() const { return generation_ != Completions::generation(); }

void Operation::check_process() const {
  if (!is_of_parent()) [[likely]]
    return;
  C10_THROW_ERROR(DistBackendError,
                  c10::str(name_, ": this operation was started by the parent of process ",
                           getpid(), ", before a fork. A child cannot wait for it"));
}

weir_request_t* Operation::new_request() {
  requests_.push_back(nullptr);
  return &requests_.back();
}

bool Operation::is_complete() {
  if (is_done_flag_.load(std::memory_order_acquire)) return true;
  if (is_of_parent()) return false;
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
  give_back();
  return false;
}

void Operation::give_back() {
  {
    const std::lock_guard lock(mutex_);
    is_taken_ = false;
    if (is_to_be_watched_) watch_locked();
  }
  changed_.notify_all();
}

bool Operation::wait(std::chrono::milliseconds timeout) {
  if (is_done_flag_.load(std::memory_order_acquire)) return true;
  check_process();
  Completions::get().hand_over();
  std::unique_lock lock(mutex_);
  if (timeout.count() > 0) {
    if (is_taken_ || watch_locked()) {
      is_to_be_watched_ = true;
      return changed_.wait_for(lock, timeout, [&] { return is_done_; });
    }
    lock.unlock();
    return wait_stopped(timeout);
  }
  changed_.wait(lock, [&] { return is_done_ || !is_taken_; });
  if (is_done_) return true;
  is_taken_ = true;
  lock.unlock();
  wait_for_requests();
  return true;
}

bool Operation::wait_stopped(std::chrono::milliseconds timeout) {
  constexpr std::chrono::milliseconds kPause{1};
  const auto end = std::chrono::steady_clock::now() + timeout;
  while (!is_complete()) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(kPause);
  }
  return true;
}

void Operation::wait_for_requests() {
  for (weir_request_t& request : requests_) {
    if (request == nullptr) continue;
    const weir_result_t result = weir_wait(&request);
    if (result != WEIR_OK && result_ == WEIR_OK) result_ = result;
  }
  finish();
}

std::exception_ptr Operation::exception() const {
  if (is_of_parent()) return nullptr;
  const std::lock_guard lock(mutex_);
  return exception_;
}

float Operation::duration_ms() const {
  const std::lock_guard lock(mutex_);
  if (!is_done_ || !begin_) return 0;
  return std::chrono::duration<float, std::milli>(end_ - *begin_).count();
}

c10::intrusive_ptr<c10::ivalue::Future> Operation::future() {
  check_process();
  // A callback that asks for a Future is likely to wait for it.
  Completions::get().hand_over();
  c10::intrusive_ptr<c10::ivalue::Future> future;
  bool is_done = false;
  bool is_watched = false;
  {
    const std::lock_guard lock(mutex_);
    if (future_) return future_;
    const auto tensors = c10::ListType::create(c10::TensorType::get());
    future_ = c10::make_intrusive<c10::ivalue::Future>(
        outputs_.size() > 1 ? c10::TypePtr(c10::ListType::create(tensors)) : c10::TypePtr(tensors));
    future = future_;
    is_done = is_done_;
    is_watched = !is_done && watch_locked();
  }
  if (is_done) {
    mark_future();
  } else if (!is_watched) {
    const WithoutPython without;
    wait(kNoTimeout);
  }
  return future;
}

void Operation::watch() {
  // A child has no use for what its parent waits for; peers may still write to the tensors.
  const bool is_watched = [&] {
    if (is_of_parent()) return true;
    const std::lock_guard lock(mutex_);
    return is_done_ || watch_locked();
  }();
  if (!is_watched) c10::intrusive_ptr<Operation>::reclaim_copy(this).release();
}

bool Operation::watch_locked() {
  is_to_be_watched_ = true;
  // A thread that has taken the requests completes the operation or gives them back.
  if (is_done_ || is_taken_ || is_watched_) return true;
  if (!Completions::get().start()) return false;
  is_watched_ = true;
  unwatched_.store(requests_.size() + 1, std::memory_order_relaxed);
  // One reference for all callbacks; the last of them passes it on.
  auto* const self = c10::intrusive_ptr<Operation>::reclaim_copy(this).release();
  for (const weir_request_t request : requests_) {
    if (request == nullptr ||
        weir_request_on_complete(request, &Operation::on_request, self) != WEIR_OK) {
      on_request(self, WEIR_OK);
    }
  }
  on_request(self, WEIR_OK);
  return true;
}

// Within calls of weir.h: it takes no lock of the operation's, which the call that registers this
// holds, and lets no tensor go.
void Operation::on_request(void* context, weir_result_t /*result*/) {
  auto* const self = static_cast<Operation*>(context);
  if (self->unwatched_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    Completions::get().add(c10::intrusive_ptr<Operation>::reclaim(self));
  }
}

void Operation::complete_watched() {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_done_ || !is_taken_; });
    if (is_done_) return;
    is_taken_ = true;
  }
  wait_for_requests();
}

void Operation::finish() {
  std::exception_ptr exception;
  if (result_ != WEIR_OK) {
    exception = comm_->failed(result_, name_);
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
  Completions::get().prepare();
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
  const WithoutPython without;
  const bool is_over = operation_->wait(timeout);
  if (!is_over) {
    C10_THROW_ERROR(DistBackendError,
                    c10::str("Timed out: the operation was not complete after ", timeout.count(),
                             " ms. It goes on until its own deadline"));
  }
  if (const auto exception = operation_->exception()) std::rethrow_exception(exception);
  return true;
}

}  // namespace weir::pytorch
