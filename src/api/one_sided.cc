// SPDX-License-Identifier: Apache-2.0
// weir.h: windows and one-sided operations.
#include "core/comm/one_sided.h"

#include <fmt/format.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "api/checks.h"
#include "api/errors.h"
#include "api/handles.h"
#include "core/comm/process.h"

using weir::Code;
using weir::Rank;
using weir::Status;
using weir::api::guarded;
using weir::api::guarded_operation;
using weir::api::invalid;
using weir::api::report;
using weir::comm::Communicator;
using weir::comm::lies_within;
using weir::comm::OneSided;
using weir::comm::OneSidedCall;
using weir::comm::OneSidedKind;
using weir::comm::OneSidedWindow;
using weir::comm::Request;
using weir::comm::RequestKind;

namespace {

constexpr size_t kBytesMax = PTRDIFF_MAX;
constexpr size_t kWordBytes = sizeof(uint64_t);

weir_result_t wrong(weir_comm_t comm, const char* function, const std::string& text) {
  return invalid(fmt::format("{} on '{}': {}", function, comm->comm->name(), text), comm);
}

// Text of what is wrong, or empty.
std::string wrong_window(const weir_window* window) {
  if (window->one_sided != nullptr) return {};
  return "the window was created by weir_register; one-sided operations need a window of "
         "weir_window_create";
}

std::string wrong_rank(weir_comm_t comm, int rank) {
  const auto n = static_cast<int>(comm->comm->rank_count());
  return rank >= 0 && rank < n ? std::string()
                               : fmt::format("target {} is not a rank of {}", rank, n);
}

std::string wrong_range(const OneSidedWindow& window, Rank target, size_t offset, size_t bytes) {
  const uint64_t limit = window.parts[target].bytes;
  if (lies_within(offset, bytes, limit)) return {};
  return fmt::format("{} bytes at offset {} do not lie in the {} bytes of rank {}", bytes, offset,
                     limit, target);
}

std::string wrong_word(const OneSidedWindow& window, Rank target, size_t offset) {
  if (std::string text = wrong_range(window, target, offset, kWordBytes); !text.empty()) {
    return text;
  }
  return window.parts[target].word_shift == offset % kWordBytes
             ? std::string()
             : fmt::format("the address of the word at offset {} of rank {} is not a multiple of 8",
                           offset, target);
}

Status on_device(weir_comm_t comm, const char* function, Rank target) {
  return Status(Code::kUnsupported, fmt::format("{} on '{}': the window of rank {} lies on a "
                                                "device; one-sided operations need host memory",
                                                function, comm->comm->name(), target));
}

// Does the operation at once, or gives a request to the communicator that carries it.
weir_result_t launch(weir_comm_t comm, const OneSidedCall& call, Rank target, weir_request_t* out) {
  if (out == nullptr) WEIR_REFUSE_IN_CALLBACK("an operation without a request", comm);
  OneSided& side = *comm->comm->one_sided();
  if (const Status status = comm->comm->health(); !status.ok()) return report(status, comm);
  const bool is_done = side.do_directly(call, target);
  if (is_done && out == nullptr) return WEIR_OK;
  Communicator& carrier = side.carrier();
  Request* request = carrier.requests().acquire();
  request->comm = &carrier;
  if (is_done) {
    request->done.store(true, std::memory_order_release);
    *out = reinterpret_cast<weir_request_t>(request);
    return WEIR_OK;
  }
  request->kind = RequestKind::kOneSided;
  request->peer = target;
  if (request->one_sided == nullptr) request->one_sided = std::make_unique<OneSidedCall>();
  *request->one_sided = call;
  Status status = side.start(*request);
  if (!status.ok()) {
    carrier.requests().release(request);
    return report(status, comm);
  }
  if (out != nullptr) {
    *out = reinterpret_cast<weir_request_t>(request);
    weir::comm::request_started();
    return WEIR_OK;
  }
  status = carrier.wait(*request);
  carrier.requests().release(request);
  return report(status, comm);
}

// The common part of operations on a target: checks the arguments, then launches.
weir_result_t operate(const char* function, weir_window_t window, int target, OneSidedCall call,
                      bool is_word, weir_window_t signal_window, weir_request_t* out) {
  weir_comm_t comm = (window != nullptr ? window : signal_window)->comm;
  if (out != nullptr) *out = nullptr;
  if (const std::string text = wrong_rank(comm, target); !text.empty()) {
    return wrong(comm, function, text);
  }
  const auto rank = static_cast<Rank>(target);
  if (window != nullptr) {
    if (const std::string text = wrong_window(window); !text.empty()) {
      return wrong(comm, function, text);
    }
    call.window = window->one_sided;
    if (is_word) call.bytes = kWordBytes;
    const std::string text = is_word ? wrong_word(*call.window, rank, call.offset)
                                     : wrong_range(*call.window, rank, call.offset, call.bytes);
    if (!text.empty()) return wrong(comm, function, text);
    if (call.window->parts[rank].on_device) return report(on_device(comm, function, rank), comm);
  }
  if (signal_window != nullptr) {
    if (const std::string text = wrong_window(signal_window); !text.empty()) {
      return wrong(comm, function, text);
    }
    if (signal_window->comm != comm) {
      return wrong(comm, function, "the windows belong to different communicators");
    }
    call.signal_window = signal_window->one_sided;
    if (const std::string text = wrong_word(*call.signal_window, rank, call.signal_offset);
        !text.empty()) {
      return wrong(comm, function, text);
    }
    if (call.signal_window->parts[rank].on_device) {
      return report(on_device(comm, function, rank), comm);
    }
  }
  const void* buffer = call.source != nullptr ? call.source : call.destination;
  if (!is_word && window != nullptr) {
    if (buffer == nullptr && call.bytes > 0) return wrong(comm, function, "the buffer is NULL");
    if (call.bytes > kBytesMax) {
      return wrong(comm, function, fmt::format("{} bytes overflow the address space", call.bytes));
    }
  }
  const void* const buffers[] = {buffer};
  const auto device = comm->comm->devices().device_of(buffers);
  if (!device.ok()) return report(device.status(), comm);
  if (device.value() >= 0) {
    return report(
        Status(
            Code::kUnsupported,
            fmt::format(
                "{} on '{}': the buffer lies on device {}; one-sided operations need host memory",
                function, comm->comm->name(), device.value())),
        comm);
  }
  return launch(comm, call, rank, out);
}

weir_result_t create_window(weir_comm_t comm, void* memory, size_t bytes,
                            const weir::comm::OneSidedReach* reach, weir_window_t* window) {
  auto handle = std::make_unique<weir_window>();
  auto side = comm->comm->open_one_sided();
  if (!side.ok()) return report(side.status().with_context("window_create"), comm);
  auto made = side.value()->create(memory, bytes, reach);
  if (!made.ok()) return report(made.status().with_context("window_create"), comm);
  handle->comm = comm;
  handle->one_sided = made.value();
  *window = comm->add_window(std::move(handle));
  return WEIR_OK;
}

}  // namespace

// Returns from the calling function when the window does not belong to this process.
#define WEIR_CHECK_WINDOW(window, function)                                        \
  do {                                                                             \
    if ((window) == nullptr || (window)->mark != kWindowMark) [[unlikely]] {       \
      return invalid(std::string(function) + ": the window is NULL or destroyed"); \
    }                                                                              \
    WEIR_CHECK_COMM((window)->comm, function);                                     \
  } while (false)

weir_result_t weir_window_create(weir_comm_t comm, void* memory, size_t bytes,
                                 weir_window_t* window) {
  return guarded([&] {
    WEIR_CHECK_COMM(comm, "window_create");
    WEIR_REFUSE_IN_CALLBACK("window_create", comm);
    if (window == nullptr) return invalid("window_create: window is NULL", comm);
    *window = nullptr;
    if (memory == nullptr && bytes > 0) return invalid("window_create: memory is NULL", comm);
    if (bytes > kBytesMax ||
        reinterpret_cast<uintptr_t>(memory) > std::numeric_limits<uintptr_t>::max() - bytes) {
      return invalid(fmt::format("window_create: {} bytes overflow the address space", bytes),
                     comm);
    }
    return create_window(comm, memory, bytes, nullptr, window);
  });
}

weir_result_t weir::create_reached_window(weir_comm_t comm, void* memory, size_t bytes,
                                          const comm::OneSidedReach& reach, weir_window_t* window,
                                          bool* is_mapped) {
  return guarded([&] {
    *window = nullptr;
    const weir_result_t result = create_window(comm, memory, bytes, &reach, window);
    if (result == WEIR_OK) *is_mapped = (*window)->one_sided->is_mapped;
    return result;
  });
}

namespace {

// Ends a window by `how`, and its handle with it.
weir_result_t end_window(weir_window_t window, const char* function,
                         Status (OneSided::*how)(const OneSidedWindow*)) {
  return guarded([&] {
    if (window == nullptr) return WEIR_OK;
    WEIR_CHECK_WINDOW(window, function);
    weir_comm_t comm = window->comm;
    WEIR_REFUSE_IN_CALLBACK(function, comm);
    if (const std::string text = wrong_window(window); !text.empty()) {
      return wrong(comm, function, text);
    }
    const Status status = (comm->comm->one_sided()->*how)(window->one_sided);
    (void)comm->take_window(window);
    return status.ok() ? WEIR_OK : report(status.with_context(function), comm);
  });
}

}  // namespace

weir_result_t weir_window_destroy(weir_window_t window) {
  return end_window(window, "window_destroy", &OneSided::destroy);
}

weir_result_t weir_window_retire(weir_window_t window) {
  return end_window(window, "window_retire", &OneSided::retire);
}

weir_result_t weir_window_bytes(weir_window_t window, int rank, size_t* bytes) {
  return guarded([&] {
    WEIR_CHECK_WINDOW(window, "window_bytes");
    weir_comm_t comm = window->comm;
    std::string text = wrong_window(window);
    if (text.empty()) text = wrong_rank(comm, rank);
    if (text.empty() && bytes == nullptr) text = "bytes is NULL";
    if (!text.empty()) return wrong(comm, "window_bytes", text);
    *bytes = window->one_sided->parts[static_cast<Rank>(rank)].bytes;
    return WEIR_OK;
  });
}

weir_result_t weir_put(weir_window_t window, int target, size_t offset, const void* data,
                       size_t bytes, weir_request_t* request) {
  return guarded_operation(request, [&] {
    WEIR_CHECK_WINDOW(window, "put");
    OneSidedCall call;
    call.kind = OneSidedKind::kPut;
    call.offset = offset;
    call.source = data;
    call.bytes = bytes;
    return operate("put", window, target, call, false, nullptr, request);
  });
}

weir_result_t weir_get(weir_window_t window, int target, size_t offset, void* data, size_t bytes,
                       weir_request_t* request) {
  return guarded_operation(request, [&] {
    WEIR_CHECK_WINDOW(window, "get");
    OneSidedCall call;
    call.kind = OneSidedKind::kGet;
    call.offset = offset;
    call.destination = data;
    call.bytes = bytes;
    return operate("get", window, target, call, false, nullptr, request);
  });
}

weir_result_t weir_put_signal(weir_window_t window, int target, size_t offset, const void* data,
                              size_t bytes, weir_window_t signal_window, size_t signal_offset,
                              uint64_t value, weir_request_t* request) {
  return guarded_operation(request, [&] {
    WEIR_CHECK_WINDOW(window, "put_signal");
    WEIR_CHECK_WINDOW(signal_window, "put_signal");
    OneSidedCall call;
    call.kind = OneSidedKind::kPutSignal;
    call.offset = offset;
    call.source = data;
    call.bytes = bytes;
    call.signal_offset = signal_offset;
    call.value = value;
    return operate("put_signal", window, target, call, false, signal_window, request);
  });
}

weir_result_t weir_signal(weir_window_t window, int target, size_t signal_offset, uint64_t value,
                          weir_request_t* request) {
  return guarded_operation(request, [&] {
    WEIR_CHECK_WINDOW(window, "signal");
    OneSidedCall call;
    call.kind = OneSidedKind::kSignal;
    call.signal_offset = signal_offset;
    call.value = value;
    return operate("signal", nullptr, target, call, false, window, request);
  });
}

weir_result_t weir_wait_signal(weir_window_t window, size_t signal_offset, uint64_t value,
                               weir_request_t* request) {
  return guarded_operation(request, [&] {
    WEIR_CHECK_WINDOW(window, "wait_signal");
    OneSidedCall call;
    call.kind = OneSidedKind::kWaitSignal;
    call.offset = signal_offset;
    call.value = value;
    const auto self = static_cast<int>(window->comm->comm->rank());
    return operate("wait_signal", window, self, call, true, nullptr, request);
  });
}

weir_result_t weir_fetch_add(weir_window_t window, int target, size_t offset, uint64_t value,
                             uint64_t* old, weir_request_t* request) {
  return guarded_operation(request, [&] {
    WEIR_CHECK_WINDOW(window, "fetch_add");
    OneSidedCall call;
    call.kind = OneSidedKind::kFetchAdd;
    call.offset = offset;
    call.value = value;
    call.old = old;
    return operate("fetch_add", window, target, call, true, nullptr, request);
  });
}

weir_result_t weir_compare_swap(weir_window_t window, int target, size_t offset, uint64_t expected,
                                uint64_t desired, uint64_t* old, weir_request_t* request) {
  return guarded_operation(request, [&] {
    WEIR_CHECK_WINDOW(window, "compare_swap");
    OneSidedCall call;
    call.kind = OneSidedKind::kCompareSwap;
    call.offset = offset;
    call.value = desired;
    call.expected = expected;
    call.old = old;
    return operate("compare_swap", window, target, call, true, nullptr, request);
  });
}

weir_result_t weir_fence(weir_comm_t comm, int target) {
  return guarded([&] {
    WEIR_CHECK_COMM(comm, "fence");
    if (target != WEIR_ALL_RANKS) {
      if (const std::string text = wrong_rank(comm, target); !text.empty()) {
        return wrong(comm, "fence", text);
      }
    }
    OneSided* side = comm->comm->one_sided();
    if (side == nullptr) return WEIR_OK;  // there are no windows
    if (target != WEIR_ALL_RANKS) {
      side->fence(static_cast<Rank>(target));
      return WEIR_OK;
    }
    for (Rank rank = 0; rank < comm->comm->rank_count(); ++rank) side->fence(rank);
    return WEIR_OK;
  });
}

weir_result_t weir_flush(weir_comm_t comm, int target, weir_request_t* request) {
  return guarded_operation(request, [&] {
    WEIR_CHECK_COMM(comm, "flush");
    if (target != WEIR_ALL_RANKS) {
      if (const std::string text = wrong_rank(comm, target); !text.empty()) {
        return wrong(comm, "flush", text);
      }
    }
    if (comm->comm->one_sided() == nullptr) {
      return report(Status(Code::kInvalidUsage,
                           fmt::format("flush on '{}': the communicator has no window for "
                                       "one-sided operations; call weir_window_create first",
                                       comm->comm->name())),
                    comm);
    }
    OneSidedCall call;
    call.kind = OneSidedKind::kFlush;
    call.all_ranks = target == WEIR_ALL_RANKS;
    return launch(comm, call, call.all_ranks ? 0 : static_cast<Rank>(target), request);
  });
}
