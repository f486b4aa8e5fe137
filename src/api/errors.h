// SPDX-License-Identifier: Apache-2.0
// Converts Status to weir_result_t, and keeps the text for weir_last_error. Thread-safe.
#pragma once

#include <new>
#include <string>

#include "core/base/status.h"
#include "weir/weir.h"

namespace weir::api {

// The calling thread's text of its last failed call.
std::string& thread_error();

// Keeps the text of an error, for the thread and, where given, for the communicator.
weir_result_t report(const Status& status, weir_comm_t comm = nullptr);

inline weir_result_t invalid(std::string text, weir_comm_t comm = nullptr) {
  return report(invalid_argument(std::move(text)), comm);
}

// Runs `body`, which returns a weir_result_t; no exception leaves the library.
template <typename Body>
weir_result_t guarded(Body body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return WEIR_ERROR_NO_MEMORY;
  } catch (const std::exception& e) {
    try {
      return report(Status(Code::kInternal, e.what()));
    } catch (...) {
      return WEIR_ERROR_INTERNAL;
    }
  } catch (...) {
    return WEIR_ERROR_INTERNAL;
  }
}

// `guarded` for an operation that may give a request: where it fails, *request is NULL, no handle
// of an earlier operation.
template <typename Body>
weir_result_t guarded_operation(weir_request_t* request, Body body) noexcept {
  if (request != nullptr) *request = nullptr;
  return guarded(body);
}

}  // namespace weir::api
