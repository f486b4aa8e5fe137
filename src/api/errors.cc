// SPDX-License-Identifier: Apache-2.0
#include "api/errors.h"

#include "api/handles.h"

namespace weir::api {

std::string& thread_error() {
  static thread_local std::string text;
  return text;
}

weir_result_t report(const Status& status, weir_comm_t comm) {
  if (status.ok()) return WEIR_OK;
  thread_error() = status.text();
  if (comm != nullptr) comm->comm->note_error(status);
  return static_cast<weir_result_t>(status.code());
}

}  // namespace weir::api

using weir::Code;

static_assert(static_cast<int>(Code::kInternal) == WEIR_ERROR_INTERNAL);
static_assert(static_cast<int>(Code::kMismatch) == WEIR_ERROR_MISMATCH);
static_assert(static_cast<int>(Code::kRefused) == WEIR_ERROR_REFUSED);

const char* weir_result_string(weir_result_t result) {
  return weir::name_of(static_cast<Code>(result));
}

const char* weir_last_error(weir_comm_t comm) {
  static thread_local std::string held;
  try {
    held = comm == nullptr || comm->mark != kCommMark ? weir::api::thread_error()
                                                      : comm->comm->last_error();
  } catch (...) {
    return "";
  }
  return held.c_str();
}
