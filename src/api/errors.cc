// SPDX-License-Identifier: Apache-2.0
#include "api/errors.h"

#include "api/checks.h"
#include "api/handles.h"
#include "core/base/per_thread.h"

namespace weir::api {

namespace {
struct ThreadTexts {
  std::string error;
  std::string held;  // given out by weir_last_error
};
}  // namespace

std::string& thread_error() { return PerThread<ThreadTexts>::get().error; }

weir_result_t report(const Status& status, weir_comm_t comm) {
  if (status.ok()) return WEIR_OK;
  thread_error() = status.text();
  if (comm != nullptr) comm->comm->note_error(status);
  return static_cast<weir_result_t>(status.code());
}

weir_result_t no_communicator(weir_comm_t comm, const char* function) {
  const std::string where = std::string(function) + ": ";
  if (comm == nullptr) return invalid(where + "the communicator is NULL");
  if (comm->is_of_parent()) return of_parent(*comm->comm, function);
  return invalid(where + "the handle is not a communicator, or the communicator was destroyed");
}

weir_result_t of_parent(const comm::Communicator& comm, const char* function) {
  return report(Status(Code::kInvalidUsage,
                       std::string(function) + ": " + comm.maker().refusal("communicator")));
}

weir_result_t inside_callback(const char* function, weir_comm_t comm) {
  return report(Status(Code::kInvalidUsage,
                       std::string(function) +
                           ": may not be called inside a callback, for which others wait; "
                           "weir_request_on_complete (weir.h) lists what may"),
                comm);
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
  try {
    std::string& held = weir::PerThread<weir::api::ThreadTexts>::get().held;
    held =
        comm == nullptr || !comm->is_alive() ? weir::api::thread_error() : comm->comm->last_error();
    return held.c_str();
  } catch (...) {
    return "";
  }
}
