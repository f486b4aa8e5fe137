// SPDX-License-Identifier: Apache-2.0
// Status and Result<T>: how every function of Weir reports failure. A Status has a Code, and a text
// that says who failed, what happened and what to do. The codes are grouped by the largest thing
// that an error makes unusable, so that `scope()` needs no table. Values; safe to copy between
// threads.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "core/base/check.h"

namespace weir {

// The numbers are those of weir_result_t.
enum class Code : uint8_t {
  kOk = 0,
  kInProgress = 1,
  kInvalidArgument = 2,
  kInvalidUsage = 3,
  kUnsupported = 4,
  kNoMemory = 5,
  kSystem = 6,
  kMismatch = 7,
  kTimeout = 8,
  kPeerLost = 9,
  kAborted = 10,
  kRefused = 11,
  kInternal = 12,
};

// What is unusable after the error.
enum class Scope : uint8_t { kNothing, kCall, kCommunicator };

class [[nodiscard]] Status {
 public:
  Status() = default;  // ok
  Status(Code code, std::string text)
      : code_(code), text_(std::make_shared<const std::string>(std::move(text))) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  Scope scope() const {
    if (code_ <= Code::kInProgress) return Scope::kNothing;
    return code_ <= Code::kNoMemory ? Scope::kCall : Scope::kCommunicator;
  }
  const std::string& text() const;
  // The same error with "context: " before its text.
  Status with_context(const std::string& context) const;

 private:
  Code code_ = Code::kOk;
  std::shared_ptr<const std::string> text_;
};

const char* name_of(Code code);

// A system call that failed: "what: strerror (errno N)". Reads errno when not given.
Status system_error(const std::string& what);
Status system_error(const std::string& what, int error_number);

inline Status invalid_argument(std::string text) {
  return Status(Code::kInvalidArgument, std::move(text));
}

// Either a value or an error.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    WEIR_CHECK(!status_.ok(), "a Result made from a Status needs an error");
  }
  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() {
    WEIR_CHECK(ok(), "value() of a failed Result");
    return *value_;
  }
  const T& value() const {
    WEIR_CHECK(ok(), "value() of a failed Result");
    return *value_;
  }
  T take() { return std::move(value()); }

 private:
  Status status_;
  std::optional<T> value_;
};

// Returns from the calling function when `expression` (a Status) is an error.
#define WEIR_RETURN_IF_ERROR(expression)         \
  do {                                           \
    ::weir::Status weir_status_ = (expression);  \
    if (!weir_status_.ok()) return weir_status_; \
  } while (false)

}  // namespace weir
