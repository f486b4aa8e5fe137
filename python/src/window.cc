// SPDX-License-Identifier: Apache-2.0
#include "window.h"

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <utility>
#include <vector>

#include "tensors.h"

namespace weir::pytorch {

namespace {

enum Kind : size_t {
  kPut,
  kPutSignal,
  kGet,
  kSignal,
  kWaitSignal,
  kFetchAdd,
  kCompareSwap,
  kKinds
};
constexpr std::array<const char*, kKinds> kNames = {
    "PUT", "PUT_SIGNAL", "GET", "SIGNAL", "WAIT_SIGNAL", "FETCH_ADD", "COMPARE_SWAP"};

struct AtomicCount {
  std::atomic<uint64_t> calls{0};
  std::atomic<uint64_t> bytes{0};
};
std::array<AtomicCount, kKinds> g_counts;

// Once it has been started: what is refused is not served.
void count(Kind kind, size_t bytes) {
  g_counts[kind].calls.fetch_add(1, std::memory_order_relaxed);
  g_counts[kind].bytes.fetch_add(bytes, std::memory_order_relaxed);
}

constexpr size_t kWordBytes = 8;
constexpr int64_t kSignalsMax = int64_t{1} << 24;

const at::Tensor& checked_memory(const at::Tensor& memory) {
  check_cpu(memory, "Window");
  TORCH_CHECK_VALUE(is_flat(memory), "Window: the tensor is not contiguous");
  return memory;
}

at::Tensor words(int64_t signal_count) {
  TORCH_CHECK_VALUE(signal_count >= 0 && signal_count <= kSignalsMax, "Window: ", signal_count,
                    " signals; 0 to ", kSignalsMax, " are possible");
  return at::zeros({signal_count}, at::kLong);
}

// ValueError on all ranks where they differ in what must be the same.
void check_alike(weir_comm_t comm, int size, const at::Tensor& memory, int64_t signal_count) {
  struct Passed {
    int64_t type;
    int64_t signals;
    bool operator==(const Passed&) const = default;
  };
  const Passed own{static_cast<int64_t>(memory.scalar_type()), signal_count};
  std::vector<Passed> all(static_cast<size_t>(size));
  check(weir_all_gather(comm, &own, all.data(), 2, WEIR_INT64, nullptr), comm, "Window");
  const auto name_of = [](const Passed& passed) {
    return c10::str("a tensor of torch.",
                    c10::getDtypeNames(static_cast<at::ScalarType>(passed.type)).first, " and ",
                    passed.signals, " signals");
  };
  for (size_t rank = 1; rank < all.size(); ++rank) {
    TORCH_CHECK_VALUE(all[rank] == all[0], "Window: rank 0 passes ", name_of(all[0]), ", and rank ",
                      rank, " ", name_of(all[rank]),
                      ": all ranks pass the same type and the same number of signals");
  }
}

size_t offset_of(int64_t offset_bytes, const char* what) {
  TORCH_CHECK_VALUE(offset_bytes >= 0, what, ": the offset is ", offset_bytes);
  return static_cast<size_t>(offset_bytes);
}

}  // namespace

std::map<std::string, OperationCount> window_operation_counts() {
  std::map<std::string, OperationCount> counts;
  for (size_t i = 0; i < kKinds; ++i) {
    const uint64_t calls = g_counts[i].calls.load(std::memory_order_relaxed);
    if (calls == 0) continue;
    counts[kNames[i]] = {calls, g_counts[i].bytes.load(std::memory_order_relaxed)};
  }
  return counts;
}

void reset_window_operation_counts() {
  for (AtomicCount& counted : g_counts) {
    counted.calls = 0;
    counted.bytes = 0;
  }
}

Window::Window(const c10::intrusive_ptr<Backend>& backend, const at::Tensor& memory,
               int64_t signal_count)
    : backend_(backend),
      comm_(backend->communicator()),
      memory_(checked_memory(memory)),
      signals_(words(signal_count)) {
  check_alike(comm(), backend->getSize(), memory_, signal_count);
  void* const data = memory_.nbytes() == 0 ? nullptr : memory_.data_ptr();
  check(weir_window_create(comm(), data, memory_.nbytes(), &data_window_), comm(), "Window");
  void* const own_words = signal_count == 0 ? nullptr : signals_.data_ptr();
  const weir_result_t result =
      weir_window_create(comm(), own_words, signals_.nbytes(), &signal_window_);
  if (result != WEIR_OK) {
    const std::exception_ptr exception = exception_of(result, comm(), "Window");
    retire();
    std::rethrow_exception(exception);
  }
}

Window::~Window() { retire(); }

void Window::retire() {
  for (weir_window_t* window : {&data_window_, &signal_window_}) {
    // A rank that is lost does not answer; this rank's part ends all the same.
    [[maybe_unused]] const weir_result_t result =
        weir_window_retire(std::exchange(*window, nullptr));
  }
}

void Window::close() {
  check_open("Window.close");
  const weir_result_t data = weir_window_destroy(std::exchange(data_window_, nullptr));
  const weir_result_t signals = weir_window_destroy(std::exchange(signal_window_, nullptr));
  check(data, comm(), "Window.close");
  check(signals, comm(), "Window.close");
}

void Window::check_open(const char* what) const {
  TORCH_CHECK_VALUE(data_window_ != nullptr, what, ": the window has been closed");
}

void Window::check_target(int target, const char* what) const {
  check_open(what);
  TORCH_CHECK_VALUE(target >= 0 && target < backend_->getSize(), what, ": rank ", target,
                    " is not in a group of ", backend_->getSize());
}

size_t Window::word(int64_t signal, const char* what) const {
  TORCH_CHECK_VALUE(signal >= 0 && signal < signal_count(), what, ": signal ", signal,
                    " of a window with ", signal_count());
  return static_cast<size_t>(signal) * kWordBytes;
}

int64_t Window::bytes_of(int rank) const {
  check_target(rank, "Window.elements_of");
  size_t bytes = 0;
  check(weir_window_bytes(data_window_, rank, &bytes), comm(), "Window.elements_of");
  return static_cast<int64_t>(bytes);
}

template <typename Start>
Window::WorkPointer Window::start(const char* name, const at::Tensor& kept, bool is_async,
                                  Milliseconds timeout, Start&& start) {
  if (timeout == c10d::kUnsetTimeout) timeout = backend_->own_options()->timeout;
  if (!is_async && comm_->has_deadline(timeout)) {
    check(start(static_cast<weir_request_t*>(nullptr)), comm(), name);
    return {};
  }
  auto operation = c10::make_intrusive<Operation>(comm_, name);
  if (kept.defined()) operation->keep(kept);
  operation->set_outputs({{}});
  check(comm_->start_within(timeout, [&] { return start(operation->new_request()); }), comm(),
        name);
  auto work = c10::make_intrusive<OperationWork>(backend_->getRank(), c10d::OpType::UNKNOWN,
                                                 nullptr, std::vector<at::Tensor>(), 0, operation);
  if (is_async) return work;
  work->wait();
  return {};
}

Window::WorkPointer Window::put(const at::Tensor& data, int target, int64_t offset_bytes,
                                bool is_async, Milliseconds timeout) {
  check_target(target, "Window.put");
  check_cpu(data, "Window.put");
  const size_t offset = offset_of(offset_bytes, "Window.put");
  const at::Tensor flat = flat_input(data);
  WorkPointer work = start("Window.put", flat, is_async, timeout, [&](weir_request_t* request) {
    return weir_put(data_window_, target, offset, flat.const_data_ptr(), flat.nbytes(), request);
  });
  count(kPut, flat.nbytes());
  return work;
}

Window::WorkPointer Window::put_signal(const at::Tensor& data, int target, int64_t offset_bytes,
                                       int64_t signal, uint64_t value, bool is_async) {
  check_target(target, "Window.put_signal");
  check_cpu(data, "Window.put_signal");
  const size_t offset = offset_of(offset_bytes, "Window.put_signal");
  const size_t signal_offset = word(signal, "Window.put_signal");
  const at::Tensor flat = flat_input(data);
  WorkPointer work =
      start("Window.put_signal", flat, is_async, c10d::kUnsetTimeout, [&](weir_request_t* request) {
        return weir_put_signal(data_window_, target, offset, flat.const_data_ptr(), flat.nbytes(),
                               signal_window_, signal_offset, value, request);
      });
  count(kPutSignal, flat.nbytes());
  return work;
}

Window::WorkPointer Window::get(const at::Tensor& data, int target, int64_t offset_bytes,
                                bool is_async) {
  check_target(target, "Window.get");
  check_cpu(data, "Window.get");
  TORCH_CHECK_VALUE(is_flat(data), "Window.get: the tensor is not contiguous");
  const size_t offset = offset_of(offset_bytes, "Window.get");
  void* const bytes = data.data_ptr();
  WorkPointer work =
      start("Window.get", data, is_async, c10d::kUnsetTimeout, [&](weir_request_t* request) {
        return weir_get(data_window_, target, offset, bytes, data.nbytes(), request);
      });
  count(kGet, data.nbytes());
  return work;
}

Window::WorkPointer Window::signal(int target, int64_t signal, uint64_t value, bool is_async,
                                   Milliseconds timeout) {
  check_target(target, "Window.signal");
  const size_t offset = word(signal, "Window.signal");
  WorkPointer work = start("Window.signal", {}, is_async, timeout, [&](weir_request_t* request) {
    return weir_signal(signal_window_, target, offset, value, request);
  });
  count(kSignal, kWordBytes);
  return work;
}

Window::WorkPointer Window::wait_signal(int64_t signal, uint64_t value, bool is_async,
                                        Milliseconds timeout) {
  check_open("Window.wait_signal");
  const size_t offset = word(signal, "Window.wait_signal");
  WorkPointer work =
      start("Window.wait_signal", {}, is_async, timeout, [&](weir_request_t* request) {
        return weir_wait_signal(signal_window_, offset, value, request);
      });
  count(kWaitSignal, kWordBytes);
  return work;
}

uint64_t Window::fetch_add(int target, int64_t signal, uint64_t value) {
  check_target(target, "Window.fetch_add");
  const size_t offset = word(signal, "Window.fetch_add");
  uint64_t old = 0;
  start("Window.fetch_add", {}, false, c10d::kUnsetTimeout, [&](weir_request_t* request) {
    return weir_fetch_add(signal_window_, target, offset, value, &old, request);
  });
  count(kFetchAdd, kWordBytes);
  return old;
}

uint64_t Window::compare_swap(int target, int64_t signal, uint64_t expected, uint64_t desired) {
  check_target(target, "Window.compare_swap");
  const size_t offset = word(signal, "Window.compare_swap");
  uint64_t old = 0;
  start("Window.compare_swap", {}, false, c10d::kUnsetTimeout, [&](weir_request_t* request) {
    return weir_compare_swap(signal_window_, target, offset, expected, desired, &old, request);
  });
  count(kCompareSwap, kWordBytes);
  return old;
}

uint64_t Window::signal_value(int64_t signal) const {
  const size_t offset = word(signal, "Window.signal_value");
  auto* words = reinterpret_cast<uint64_t*>(signals_.data_ptr());
  return std::atomic_ref<uint64_t>(words[offset / kWordBytes]).load(std::memory_order_acquire);
}

void Window::fence(int target) {
  if (target != WEIR_ALL_RANKS) check_target(target, "Window.fence");
  check_open("Window.fence");
  check(weir_fence(comm(), target), comm(), "Window.fence");
}

Window::WorkPointer Window::flush(int target, bool is_async) {
  if (target != WEIR_ALL_RANKS) check_target(target, "Window.flush");
  check_open("Window.flush");
  return start("Window.flush", {}, is_async, c10d::kUnsetTimeout,
               [&](weir_request_t* request) { return weir_flush(comm(), target, request); });
}

}  // namespace weir::pytorch
