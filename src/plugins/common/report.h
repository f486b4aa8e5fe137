// SPDX-License-Identifier: Apache-2.0
// Report: how a plugin hands texts to its host. A value; safe on any thread that the host's
// functions are safe on.
#pragma once

#include <cstdint>
#include <string>

#include "weir/plugin.h"

namespace weir::plugins::common {

struct Report {
  const weir_host_t* host = nullptr;
  const char* name = nullptr;  // of the transport, before each text; null: nothing

  // Gives the text to the host as the reason of the error and returns `code`.
  weir_result_t fail(weir_result_t code, const std::string& text) const {
    if (host != nullptr && host->error != nullptr) {
      host->error(host->context, named(text).c_str());
    }
    return code;
  }
  enum Level { kWarning = 1, kInformation = 2, kDebug = 3 };
  void log(Level level, const std::string& text) const {
    if (host != nullptr && host->log != nullptr) {
      host->log(host->context, level, named(text).c_str());
    }
  }
  // Null when it is not set, or empty.
  const char* setting(const char* variable) const {
    const char* text = host != nullptr && host->setting != nullptr
                           ? host->setting(host->context, variable)
                           : nullptr;
    return text != nullptr && *text != 0 ? text : nullptr;
  }

 private:
  std::string named(const std::string& text) const {
    return name == nullptr ? text : std::string(name) + ": " + text;
  }
};

inline std::string text_of(uint64_t number) { return std::to_string(number); }

}  // namespace weir::plugins::common
