// SPDX-License-Identifier: Apache-2.0
#include "plugins/shm/report.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

namespace weir::plugins::shm {

weir_result_t Report::fail(weir_result_t code, const char* format, ...) const {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (copy != nullptr) *copy = text;
  if (host != nullptr && host->error != nullptr) host->error(host->context, text);
  return code;
}

weir_result_t Report::fail_errno(const char* what) const {
  const int error_number = errno;
  char buffer[128];
  const bool lacks_files = error_number == EMFILE || error_number == ENFILE;
  return fail(error_number == ENOMEM ? WEIR_ERROR_NO_MEMORY : WEIR_ERROR_SYSTEM,
              "shm: %s: %s (errno %d)%s", what, strerror_r(error_number, buffer, sizeof buffer),
              error_number, lacks_files ? "; raise `ulimit -n`" : "");
}

void Report::warn(const char* format, ...) const {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (host != nullptr && host->log != nullptr) host->log(host->context, 1, text);
}

}  // namespace weir::plugins::shm
