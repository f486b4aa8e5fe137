// SPDX-License-Identifier: Apache-2.0
#include "core/base/status.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <system_error>

namespace weir {

void check_failed(const char* file, int line, const char* condition, const char* text) {
  std::fprintf(stderr, "weir: internal error: %s:%d: %s (%s). This is a bug in Weir.\n", file, line,
               text, condition);
  std::abort();
}

const std::string& Status::text() const {
  static const auto* const empty = new std::string;  // exit handlers may ask
  return text_ ? *text_ : *empty;
}

Status Status::with_context(const std::string& context) const {
  if (ok()) return *this;
  return Status(code_, context + ": " + text());
}

const char* name_of(Code code) {
  switch (code) {
    case Code::kOk:
      return "ok";
    case Code::kInProgress:
      return "in progress";
    case Code::kInvalidArgument:
      return "invalid argument";
    case Code::kInvalidUsage:
      return "invalid usage";
    case Code::kUnsupported:
      return "unsupported";
    case Code::kNoMemory:
      return "out of memory";
    case Code::kSystem:
      return "system error";
    case Code::kMismatch:
      return "mismatched calls";
    case Code::kTimeout:
      return "timed out";
    case Code::kPeerLost:
      return "peer lost";
    case Code::kAborted:
      return "aborted";
    case Code::kRefused:
      return "refused";
    case Code::kInternal:
      return "internal error";
  }
  return "?";
}

Status system_error(const std::string& what) { return system_error(what, errno); }

Status system_error(const std::string& what, int error_number) {
  const char* remedy = error_number == EMFILE   ? "; raise `ulimit -n`"
                       : error_number == ENFILE ? "; raise the machine's limit fs.file-max"
                                                : "";
  return Status(Code::kSystem, what + ": " + std::generic_category().message(error_number) +
                                   " (errno " + std::to_string(error_number) + ")" + remedy);
}

}  // namespace weir
