// SPDX-License-Identifier: Apache-2.0
#include "communicator.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "completions.h"
#include "texts.h"

namespace weir::pytorch {

namespace {

// What weir_comm_set_timeout takes.
constexpr std::chrono::milliseconds kLongestTimeout = std::chrono::hours(24);

}  // namespace

std::shared_ptr<SharedCommunicator> SharedCommunicator::create(weir_comm_t handle,
                                                               std::chrono::milliseconds timeout) {
  std::shared_ptr<SharedCommunicator> communicator(new SharedCommunicator(handle, timeout));
  Completions::get().add(communicator);
  return communicator;
}

SharedCommunicator::~SharedCommunicator() { weir_comm_destroy(handle_); }

weir_result_t SharedCommunicator::set_deadline(std::chrono::milliseconds timeout) {
  if (has_deadline(timeout)) return WEIR_OK;
  const auto bounded = std::clamp(timeout, std::chrono::milliseconds(1), kLongestTimeout);
  const weir_result_t result = weir_comm_set_timeout(handle_, bounded.count());
  if (result == WEIR_OK) deadline_.store(timeout.count(), std::memory_order_relaxed);
  return result;
}

std::exception_ptr exception_of(weir_result_t result, weir_comm_t comm, const std::string& what) {
  std::string text = weir_last_error(comm);
  if (text.empty()) text = weir_result_string(result);
  // Programs look for Gloo's words.
  if (result == WEIR_ERROR_TIMEOUT) text = "Timed out because " + text;
  text = what + ": " + for_python(std::move(text));
  const c10::SourceLocation here{__func__, __FILE__, static_cast<uint32_t>(__LINE__)};
  switch (result) {
    case WEIR_ERROR_INVALID_ARGUMENT:
      return std::make_exception_ptr(c10::ValueError(here, text));
    case WEIR_ERROR_UNSUPPORTED:
      return std::make_exception_ptr(c10::NotImplementedError(here, text));
    default:
      return std::make_exception_ptr(c10::DistBackendError(here, text));
  }
}

void check(weir_result_t result, weir_comm_t comm, const char* what) {
  if (result != WEIR_OK) [[unlikely]]
    std::rethrow_exception(exception_of(result, comm, what));
}

}  // namespace weir::pytorch
