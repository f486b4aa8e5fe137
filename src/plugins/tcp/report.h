// SPDX-License-Identifier: Apache-2.0
// Report: how this plugin hands texts to its host, and what they are made of. A value; safe on any thread
// that the host's functions are safe on.
#pragma once

#include <string.h>

#include <cstdint>
#include <string>

#include "weir/plugin.h"

namespace weir::plugins::tcp {

struct Report {
  const weir_host_t* host = nullptr;

  // Gives the text to the host as the reason of the error and returns `code`.
  weir_result_t fail(weir_result_t code, const std::string& text) const {
    if (host != nullptr && host->error != nullptr) host->error(host->context, text.c_str());
    return code;
  }
  enum Level { kWarning = 1, kInformation = 2, kDebug = 3 };
  void log(Level level, const std::string& text) const {
    if (host != nullptr && host->log != nullptr) host->log(host->context, level, text.c_str());
  }
  // Null when it is not set.
  const char* setting(const char* name) const {
    return host != nullptr && host->setting != nullptr ? host->setting(host->context, name)
                                                       : nullptr;
  }
};

inline std::string text_of(uint64_t number) { return std::to_string(number); }
// Of an errno.
inline std::string reason_of(int error_number) {
  char buffer[128];
  return strerror_r(error_number, buffer, sizeof buffer);
}

}  // namespace weir::plugins::tcp
