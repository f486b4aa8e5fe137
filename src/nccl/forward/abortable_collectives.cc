// SPDX-License-Identifier: Apache-2.0
#include "nccl/forward/abortable_collectives.h"

#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "nccl/api/translate.h"

namespace weir::nccl {

namespace {

// For calls that cannot fail on an existing communicator.
void ignore(weir_result_t) {}

}  // namespace

AbortableCollectives::AbortableCollectives(const char* function, const Comm& comm,
                                           const Comm* parent, weir_comm_t weir)
    : function_(function), comm_(comm), parent_(parent), weir_(weir) {
  ignore(weir_comm_rank(weir, &rank_));
  ignore(weir_comm_size(weir, &rank_count_));
}

Outcome AbortableCollectives::gather_bytes(const void* mine, void* all, size_t bytes) {
  weir_request_t request = nullptr;
  const weir_result_t started = weir_all_gather(weir_, mine, all, bytes, WEIR_UINT8, &request);
  return finish(started, &request);
}

Outcome AbortableCollectives::broadcast_bytes(void* value, size_t bytes) {
  weir_request_t request = nullptr;
  const weir_result_t started = weir_broadcast(weir_, value, value, bytes, WEIR_UINT8, 0, &request);
  return finish(started, &request);
}

Outcome AbortableCollectives::minimum(StartState mine, StartState* of_all) {
  auto value = static_cast<int32_t>(mine);
  weir_request_t request = nullptr;
  const weir_result_t started =
      weir_all_reduce(weir_, &value, &value, 1, WEIR_INT32, WEIR_MIN, &request);
  Outcome outcome = finish(started, &request);
  *of_all = static_cast<StartState>(value);
  return outcome;
}

// Returns only when the caller's buffers are free.
Outcome AbortableCollectives::finish(weir_result_t result, weir_request_t* request) {
  bool stopped = false;
  for (int looked = 0; result == WEIR_OK && *request != nullptr; ++looked) {
    int done = 0;
    result = weir_test(request, &done);
    if (done != 0 || result != WEIR_OK) break;
    if (aborted() && !stopped) {
      stopped = true;
      (void)weir_comm_abort(weir_);
    }
    if (looked < 1000) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
  if (result == WEIR_OK) return {};
  return {to_nccl(result, aborted()),
          fmt::format("{}: while the ranks agreed on the real NCCL or Weir: {}", function_,
                      weir_last_error(nullptr))};
}

}  // namespace weir::nccl
