// SPDX-License-Identifier: Apache-2.0
// Outcome: a result of NCCL's with its text, as the inside of the library passes it on; and the way
// out of the library, where the text is kept for ncclGetLastError and no exception passes.
// Thread-safe.
#pragma once

#include <exception>
#include <new>
#include <string>
#include <utility>

#include "weir/nccl.h"

namespace weir::nccl {

class Comm;

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

// Keeps the text of an error for the calling thread, the process and, where given, the
// communicator.
ncclResult_t report(const Outcome& outcome, Comm* comm = nullptr);

// Whether the calling thread has reported an error since the real library's latest text became
// `real_text`.
bool own_error_is_later(const char* real_text);

// For ncclGetLastError: the calling thread's latest text, else the process's. Good until the thread
// asks again.
const char* last_error();
// The same for a communicator's own text.
const char* hold_text(std::string text);

// What a body that throws is to return.
Outcome outcome_of_exception(const char* function, std::exception_ptr thrown) noexcept;

// Runs `body`, which returns an Outcome.
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
