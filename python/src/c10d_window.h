// SPDX-License-Identifier: Apache-2.0
// The windows of PyTorch 2.14 and later (c10d::Window) upon weir::pytorch::Window. Each rank has a
// signal from each rank. A signal covers the puts of its rank to the same target before it; a put
// alone signals nothing. Thread-safe, as Window is, but for register and deregister.
#pragma once

#include "backend.h"

#ifdef C10D_BACKEND_HAS_WINDOW

#include <atomic>
#include <memory>
#include <vector>

#include "window.h"

namespace weir::pytorch {

using OwnWindow = Window;  // in C10dWindow, Window is its base class

class C10dWindow final : public c10d::Window {
 public:
  explicit C10dWindow(c10::intrusive_ptr<Backend> backend);
  ~C10dWindow() override;

  // Collective. `tensor` is flat, on the CPU, of the same type on all ranks, of any size.
  void tensor_register(const at::Tensor& tensor, bool owning) override;
  void tensor_deregister() override;
  // Always a Work; it is complete where `is_async` is false.
  c10::intrusive_ptr<c10d::Work> put(const at::Tensor& tensor, int64_t target, int64_t offset,
                                     bool is_async, const c10d::PutOptions& options) override;
  c10::intrusive_ptr<c10d::Work> signal(int64_t peer, bool is_async,
                                        const c10d::SignalOptions& options) override;
  // Each call waits for one more signal of `peer`.
  c10::intrusive_ptr<c10d::Work> wait_signal(int64_t peer, bool is_async,
                                             const c10d::WaitSignalOptions& options) override;
  // This rank's own tensor; others cannot be mapped (NotImplementedError).
  at::Tensor map_remote_tensor(int64_t rank) override;
  c10d::WindowAttr get_attr(int64_t peer) override;

 private:
  OwnWindow& open(const char* what) const;
  void check_peer(int64_t peer, const char* what) const;

  const c10::intrusive_ptr<Backend> backend_;
  std::unique_ptr<OwnWindow> window_;           // nullptr: no tensor is registered
  std::vector<std::atomic<uint64_t>> awaited_;  // signals, by peer
};

}  // namespace weir::pytorch

#endif
