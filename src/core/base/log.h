// SPDX-License-Identifier: Apache-2.0
// Log lines, on standard error or in the file of WEIR_LOG_FILE, at the level of WEIR_LOG. Only the
// function that decides an error logs it; callers pass the Status on. Thread-safe. Never on a warm
// data path.
#pragma once

#include <string_view>

namespace weir {

enum class LogLevel : int { kError = 0, kWarn = 1, kInfo = 2, kDebug = 3, kTrace = 4 };

bool log_enabled(LogLevel level);
void log(LogLevel level, std::string_view text);

inline void log_error(std::string_view text) { log(LogLevel::kError, text); }
inline void log_warn(std::string_view text) { log(LogLevel::kWarn, text); }
inline void log_info(std::string_view text) { log(LogLevel::kInfo, text); }

}  // namespace weir
