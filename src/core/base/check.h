// SPDX-License-Identifier: Apache-2.0
// WEIR_CHECK(condition, text): an invariant of Weir's own code, always checked. Input from outside
// (caller, wire, disk, environment) is never asserted: a bad one gives a Status.
#pragma once

namespace weir {

// Prints file, line, condition and text, then aborts the process.
[[noreturn]] void check_failed(const char* file, int line, const char* condition, const char* text);

}  // namespace weir

#define WEIR_CHECK(condition, text)                               \
  do {                                                            \
    if (!(condition)) [[unlikely]]                                \
      ::weir::check_failed(__FILE__, __LINE__, #condition, text); \
  } while (false)
