// SPDX-License-Identifier: Apache-2.0
#include "plugins/ucx/quiet.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
extern "C" {
#include <ucs/debug/debug.h>
#include <ucs/debug/log_def.h>
}

#include <mutex>

namespace weir::plugins::ucx {

thread_local Heard* Listening::current_ = nullptr;

namespace {

bool log_is_asked_for = false;

__attribute__((format(printf, 6, 0))) ucs_log_func_rc_t on_log(const char*, unsigned, const char*,
                                                               ucs_log_level_t level,
                                                               const ucs_log_component_config_t*,
                                                               const char* format,
                                                               va_list arguments) {
  Heard* heard = Listening::current();
  // Other uses of UCX in this process are not silenced; nor are fatal messages.
  if (heard == nullptr || level == UCS_LOG_LEVEL_FATAL) return UCS_LOG_FUNC_RC_CONTINUE;
  if (level <= UCS_LOG_LEVEL_DIAG) {
    va_list copy;
    va_copy(copy, arguments);
    (void)vsnprintf(heard->text, sizeof heard->text, format, copy);
    va_end(copy);
  }
  return log_is_asked_for ? UCS_LOG_FUNC_RC_CONTINUE : UCS_LOG_FUNC_RC_STOP;
}

}  // namespace

std::string Heard::take() {
  if (text[0] == 0) return "";
  std::string taken = " (UCX: " + std::string(text) + ")";
  text[0] = 0;
  return taken;
}

void be_quiet() {
  static std::once_flag once;
  std::call_once(once, [] {
    log_is_asked_for = getenv("UCX_LOG_LEVEL") != nullptr;
    ucs_log_push_handler(on_log);
    if (getenv("UCX_HANDLE_ERRORS") == nullptr && getenv("UCX_ERROR_SIGNALS") == nullptr) {
      for (const int number : {SIGILL, SIGSEGV, SIGBUS, SIGFPE}) ucs_debug_disable_signal(number);
    }
  });
}

}  // namespace weir::plugins::ucx
