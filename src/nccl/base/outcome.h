// SPDX-License-Identifier: Apache-2.0
// Outcome: a result of NCCL's with its text, as functions inside the library return it; and
// report(), which every exported function ends with: it keeps the text for ncclGetLastError and
// lets no exception through. Thread-safe.
#pragma once

#include <exception>
#include <new>
#include <string>
#include <utility>

#include "core/base/status.h"
#include "weir/nccl.h"

namespace weir::nccl {

struct [[nodiscard]] Outcome {
  ncclResult_t code = ncclSuccess;
  std::string text;

  Outcome() = default;
  Outcome(ncclResult_t the_code, std::string the_text)
      : code(the_code), text(std::move(the_text)) {}
  bool ok() const { return code == ncclSuccess; }
};

inline Outcome invalid_argument(std::string text) { return {ncclInvalidArgument, std::move(text)}; }
inline Outcome invalid_usage(std::string text) { return {ncclInvalidUsage, std::move(text)}; }

// Of what the core does on streams (core/comm/stream), with its text: an error of the system is one
// of CUDA's.
Outcome outcome_of(const Status& status);

// Keeps the text of an error for the calling thread and the process, and returns its code.
ncclResult_t report(const Outcome& outcome, bool is_of_communicator = false);

// From now on every report also remembers the real library's latest text: `last_error` is its
// ncclGetLastError.
void watch_real_errors(const char* (*last_error)(ncclComm_t comm));
// Whether the calling thread has reported an error since the real library's latest text became
// `real_text`.
bool own_error_is_later(const char* real_text);

// For ncclGetLastError: the calling thread's latest text, else the process's. Valid, also after the
// end of the thread, until 4096 other texts have been asked for.
const char* last_error();
// The calling thread's latest text, unless a communicator has it, too; else "".
const char* last_error_of_no_communicator();
// Keeps a communicator's text in the same way.
const char* hold_text(std::string text);

// The outcome for an exception.
Outcome outcome_of_exception(const char* function, std::exception_ptr thrown) noexcept;

// Runs `body`, which returns an Outcome, and reports it.
template <typename Body>
ncclResult_t guarded(const char* function, Body body) noexcept {
  try {
    const Outcome outcome = body();
    return outcome.ok() ? ncclSuccess : report(outcome);
  } catch (...) {
    return report(outcome_of_exception(function, std::current_exception()));
  }
}

}  // namespace weir::nccl
