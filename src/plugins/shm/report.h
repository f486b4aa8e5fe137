// SPDX-License-Identifier: Apache-2.0
// Report: how this plugin hands the text of an error to its host. A value; safe on any thread that
// the host's functions are safe on.
#pragma once

#include <string>

#include "weir/plugin.h"

namespace weir::plugins::shm {

struct Report {
  const weir_host_t* host = nullptr;
  std::string* copy = nullptr;  // where the texts go, too

  // Gives the formatted text to the host and returns `code`.
  [[gnu::format(printf, 3, 4)]] weir_result_t fail(weir_result_t code, const char* format,
                                                   ...) const;
  // A system call that failed: "what: reason (errno N)"; WEIR_ERROR_SYSTEM or NO_MEMORY.
  weir_result_t fail_errno(const char* what) const;
  [[gnu::format(printf, 2, 3)]] void warn(const char* format, ...) const;
  Report also_to(std::string* text) const { return {host, text}; }
};

}  // namespace weir::plugins::shm
