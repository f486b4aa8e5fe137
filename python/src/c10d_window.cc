// SPDX-License-Identifier: Apache-2.0
#include "c10d_window.h"

#ifdef C10D_BACKEND_HAS_WINDOW

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <optional>
#include <utility>

#include "tensors.h"

namespace weir::pytorch {

namespace {

c10::intrusive_ptr<c10d::Work> waited_for(c10::intrusive_ptr<c10d::Work> work, bool is_async) {
  if (!is_async) work->wait();
  return work;
}

}  // namespace

C10dWindow::C10dWindow(c10::intrusive_ptr<Backend> backend)
    : backend_(std::move(backend)), awaited_(static_cast<size_t>(backend_->getSize())) {}

// Python drops it with its lock, and the end of a window waits.
C10dWindow::~C10dWindow() {
  const WithoutPython without;
  window_.reset();
}

void C10dWindow::tensor_register(const at::Tensor& tensor, bool owning) {
  const WithoutPython without;
  TORCH_CHECK_VALUE(window_ == nullptr,
                    "tensor_register: a tensor is registered; tensor_deregister comes first");
  check_cpu(tensor, "tensor_register");
  TORCH_CHECK_VALUE(is_flat(tensor), "tensor_register: the tensor is not contiguous");
  const at::Tensor memory =
      owning ? tensor.detach()
             : at::from_blob(tensor.data_ptr(), {tensor.numel()}, tensor.options());
  window_ = std::make_unique<OwnWindow>(backend_, memory, backend_->getSize());
  awaited_ = std::vector<std::atomic<uint64_t>>(static_cast<size_t>(backend_->getSize()));
}

void C10dWindow::tensor_deregister() {
  const WithoutPython without;
  open("tensor_deregister").close();
  window_.reset();
}

c10::intrusive_ptr<c10d::Work> C10dWindow::put(const at::Tensor& tensor, int64_t target,
                                               int64_t offset, bool is_async,
                                               const c10d::PutOptions& options) {
  OwnWindow& window = open("put");
  check_peer(target, "put");
  check_same_type(tensor, window.memory(), "put");
  TORCH_CHECK_VALUE(offset >= 0, "put: the offset is ", offset);
  return waited_for(
      window.put(tensor.detach(), static_cast<int>(target),
                 offset * static_cast<int64_t>(tensor.element_size()), true, options.timeout),
      is_async);
}

c10::intrusive_ptr<c10d::Work> C10dWindow::signal(int64_t peer, bool is_async,
                                                  const c10d::SignalOptions& options) {
  OwnWindow& window = open("signal");
  check_peer(peer, "signal");
  window.fence(static_cast<int>(peer));
  return waited_for(
      window.signal(static_cast<int>(peer), backend_->getRank(), 1, true, options.timeout),
      is_async);
}

c10::intrusive_ptr<c10d::Work> C10dWindow::wait_signal(int64_t peer, bool is_async,
                                                       const c10d::WaitSignalOptions& options) {
  OwnWindow& window = open("wait_signal");
  check_peer(peer, "wait_signal");
  const uint64_t value = awaited_[static_cast<size_t>(peer)].fetch_add(1) + 1;
  return waited_for(window.wait_signal(peer, value, true, options.timeout), is_async);
}

at::Tensor C10dWindow::map_remote_tensor(int64_t rank) {
  OwnWindow& window = open("map_remote_tensor");
  check_peer(rank, "map_remote_tensor");
  TORCH_CHECK_NOT_IMPLEMENTED(
      rank == backend_->getRank(), "map_remote_tensor: the tensor of rank ", rank,
      " cannot be mapped here: weir.Window.get reads it, or tensors of weir.empty in collectives");
  return window.memory();
}

c10d::WindowAttr C10dWindow::get_attr(int64_t peer) {
  open("get_attr");
  check_peer(peer, "get_attr");
  return {c10d::WindowAccessType::UNIFIED};
}

OwnWindow& C10dWindow::open(const char* what) const {
  TORCH_CHECK_VALUE(window_ != nullptr, what, ": no tensor is registered with the window");
  return *window_;
}

void C10dWindow::check_peer(int64_t peer, const char* what) const {
  // The group may have been reconfigured meanwhile.
  TORCH_CHECK_VALUE(peer >= 0 && static_cast<uint64_t>(peer) < awaited_.size(), what, ": rank ",
                    peer, " is not in a group of ", awaited_.size());
}

c10::intrusive_ptr<c10d::Window> Backend::new_window(const std::optional<at::Tensor>& tensor) {
  auto window = c10::make_intrusive<C10dWindow>(c10::intrusive_ptr<Backend>::reclaim_copy(this));
  if (tensor) window->tensor_register(*tensor, true);
  return window;
}

}  // namespace weir::pytorch

#endif
