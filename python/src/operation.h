// SPDX-License-Identifier: Apache-2.0
// An operation in flight: its requests, the tensors that they use, and what has to be done when
// they are complete. A Work is a program's handle of it. Whoever comes first completes it: a thread
// that waits or asks, or a thread of completions. Thread-safe.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "communicator.h"

namespace weir::pytorch {

// The tensors that an operation returns, in the shape in which a Future has them.
using Outputs = std::vector<std::vector<at::Tensor>>;

// The value of a Future: one list of tensors, or the list of several.
c10::IValue value_of(const Outputs& outputs);
std::vector<at::Tensor> flat(const Outputs& outputs);

class Operation : public c10::intrusive_ptr_target {
 public:
  // `name` as the program knows it; a literal.
  Operation(std::shared_ptr<SharedCommunicator> comm, const char* name);

  // ---- While it is being started, by one thread ----

  // One more request of the operation; weir.h writes the handle there.
  weir_request_t* new_request();
  // Lives until the operation is complete.
  void keep(const at::Tensor& tensor) { kept_.push_back(tensor); }
  // Called when all requests are complete without an error, before anybody is told; copies results
  // to where the program wants them.
  void then(std::function<void()> action) { actions_.push_back(std::move(action)); }
  void set_outputs(Outputs outputs) { outputs_ = std::move(outputs); }
  void set_end_of_profile(std::function<void()> end) { end_of_profile_ = std::move(end); }
  // Called by a thread of completions, with or without an error.
  void set_when_finished(std::function<void()> task) { when_finished_ = std::move(task); }
  // Where a receive from any rank finds its sender.
  weir_tag_info_t* tag_info() { return &tag_info_; }

  // ---- Afterwards ----

  bool is_complete();
  // False: `timeout` (0: none but the operation's own deadline) passed first.
  bool wait(std::chrono::milliseconds timeout);
  // nullptr: no error. Valid once it is complete.
  std::exception_ptr exception() const;
  int source_rank() const { return tag_info_.source; }
  const Outputs& outputs() const { return outputs_; }
  // Measured from this call on.
  void measure() { begin_ = std::chrono::steady_clock::now(); }
  float duration_ms() const;
  // Completed with the operation. Python callbacks of it run in a thread of completions or in one
  // that waits, with no lock held. Once completions have been stopped this waits for the operation.
  c10::intrusive_ptr<c10::ivalue::Future> future();
  // The operation completes without a thread that waits for it, and lives until then.
  void watch();
  // Started by this process's parent: it cannot be waited for, and its locks may be held for ever.
  bool is_of_parent() const;

 private:
  friend class Completions;

  // False: completions have been stopped, so that nothing completes it but a thread that waits.
  bool watch_locked();
  // The thread that has taken the requests gives them back, not all complete.
  void give_back();
  bool wait_stopped(std::chrono::milliseconds timeout);
  void wait_for_requests();
  void check_process() const;
  static void on_request(void* context, weir_result_t result);
  // By a thread of completions, when all requests are known to be complete.
  void complete_watched();
  // By the thread that has taken the requests, when all are complete.
  void finish();
  void mark_future();

  const std::shared_ptr<SharedCommunicator> comm_;
  const char* const name_;
  const uint64_t generation_;  // of the process that started it

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool is_taken_ = false;  // a thread waits on the requests or tests them
  bool is_watched_ = false;
  bool is_to_be_watched_ = false;  // once no thread has taken the requests
  bool is_done_ = false;
  std::atomic<bool> is_done_flag_{false};
  std::atomic<size_t> unwatched_{0};  // requests whose callback has not been called

  // Of the thread that has taken them.
  std::vector<weir_request_t> requests_;
  weir_result_t result_ = WEIR_OK;
  std::vector<at::Tensor> kept_;
  std::vector<std::function<void()>> actions_;
  std::function<void()> end_of_profile_;
  std::function<void()> when_finished_;
  Outputs outputs_;
  weir_tag_info_t tag_info_{-1, -1, 0};
  std::optional<std::chrono::steady_clock::time_point> begin_;
  std::chrono::steady_clock::time_point end_;
  std::exception_ptr exception_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// The Work of an operation that is in flight.
class OperationWork : public c10d::Work {
 public:
  OperationWork(int rank, c10d::OpType type, const char* title,
                const std::vector<at::Tensor>& inputs, uint64_t sequence,
                c10::intrusive_ptr<Operation> operation);
  ~OperationWork() override;

  bool isCompleted() override { return operation_->is_complete(); }
  bool isSuccess() const override;
  std::exception_ptr exception() const override { return operation_->exception(); }
  int sourceRank() const override { return operation_->source_rank(); }
  std::vector<at::Tensor> result() override;
  void synchronize() override { wait(kNoTimeout); }
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return operation_->future(); }
  // How long it took, in ms; 0 before its end, and where enableCollectivesTiming was not called.
  float getDuration() const override { return operation_->duration_ms(); }
  uint64_t getSequencenumber() const override { return sequence_; }

 private:
  c10::intrusive_ptr<Operation> operation_;
  uint64_t sequence_;
};

// No callback of a Future is called after this has returned: Python is about to end. Where a
// callback still waits after a second, all communicators are aborted. Operations in flight complete
// when they are waited for.
void stop_completions();
bool completions_are_stopped();
// For threads that are about to take Python's lock. Once stop_completions has returned, a thread
// other than the one that called it does not come back from here: Python would end it when it takes
// the lock, and C++ above it cannot be unwound.
void stay_if_python_ends();
// The scope of a call that may wait. Python's lock, where the caller holds it, is released; at its
// end the thread stays if Python ends. In functions that Python calls through PyTorch's own
// bindings, which have released the lock, and a call guard of Weir's.
class WithoutPython {
 public:
  WithoutPython();
  ~WithoutPython();
  WithoutPython(const WithoutPython&) = delete;
  WithoutPython& operator=(const WithoutPython&) = delete;

 private:
  void* const state_;  // of the thread, in Python; nullptr: it did not hold the lock
};

}  // namespace weir::pytorch
