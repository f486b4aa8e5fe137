// SPDX-License-Identifier: Apache-2.0
// One call of a program on its way to weir.h: it is done within the call where the program waits
// for it anyway (then there is no Work, as with ProcessGroupNCCL), and becomes an operation in
// flight else.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "backend.h"

namespace weir::pytorch {

class Backend::Launch {
 public:
  // `name` as the program knows the operation ("all_reduce"); a literal.
  Launch(Backend& backend, c10d::OpType type, const char* name, std::chrono::milliseconds timeout,
         bool is_async);
  ~Launch();
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  const char* name() const { return name_; }

  // Calls `start(request)`, which makes one call of weir.h, with NULL where it may wait. Several of
  // one launch are started in this order on all ranks.
  template <typename Start>
  void call(Start&& start) {
    if (operation_ == nullptr) {
      backend_.check_result(start(static_cast<weir_request_t*>(nullptr)), name_);
      return;
    }
    backend_.check_result(
        backend_.comm_->start_within(timeout_, [&] { return start(operation_->new_request()); }),
        name_);
  }

  // Lives until the operation is complete.
  void keep(const at::Tensor& tensor) {
    if (operation_ != nullptr) operation_->keep(tensor);
  }
  // Done once the calls are complete.
  template <typename Action>
  void then(Action&& action) {
    if (operation_ != nullptr) {
      operation_->then(std::forward<Action>(action));
    } else {
      action();
    }
  }
  weir_tag_info_t* tag_info() { return operation_->tag_info(); }

  // The calls are made, and waited for.
  void finish_now(size_t bytes);
  // The calls are made. nullptr: they are complete, and the caller said that it would wait for
  // them; then nothing is copied. `inputs` for the profile; `outputs` is one list or several.
  WorkPointer finish(const Tensors& inputs, const Tensors& outputs, size_t bytes) {
    return is_done(bytes) ? nullptr : work(inputs, {outputs});
  }
  WorkPointer finish(const Tensors& inputs, const TensorLists& outputs, size_t bytes) {
    return is_done(bytes) ? nullptr : work(inputs, outputs);
  }
  WorkPointer finish(const at::Tensor& input, const at::Tensor& output, size_t bytes) {
    return is_done(bytes) ? nullptr : work({input}, {{output}});
  }

 private:
  void observe();
  bool is_done(size_t bytes);
  WorkPointer work(const Tensors& inputs, Outputs outputs);

  const WithoutPython without_;  // until all others have ended
  Backend& backend_;
  const c10d::OpType type_;
  const char* const name_;
  const std::chrono::milliseconds timeout_;
  uint64_t sequence_;
  c10::intrusive_ptr<Operation> operation_;  // nullptr: the calls wait
};

}  // namespace weir::pytorch
