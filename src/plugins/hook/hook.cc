// SPDX-License-Identifier: Apache-2.0
#include "plugins/hook/hook.h"

#include <stdarg.h>
#include <time.h>

namespace weir::plugins::hook {

weir_result_t Hook::fail(weir_result_t code, const char* format, ...) const {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (host_ != nullptr && host_->error != nullptr) host_->error(host_->context, text);
  return code;
}

void Hook::warn(const char* format, ...) const {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (host_ != nullptr && host_->log != nullptr) host_->log(host_->context, 1, text);
}

const char* Hook::setting(const char* name) const {
  return host_ == nullptr || host_->setting == nullptr ? nullptr
                                                       : host_->setting(host_->context, name);
}

weir_result_t parts_viable(const weir_transport_part_t* parts, const weir_host_t* host,
                           char* reason, size_t reason_bytes) {
  std::string all;
  weir_result_t result = WEIR_OK;
  for (; parts->transport != nullptr && result == WEIR_OK; ++parts) {
    const weir_transport_functions_t* const part = parts->transport;
    char one[512] = "";
    result = part->viable(part->context, host, one, sizeof one);
    if (result != WEIR_OK) all.clear();
    all += (all.empty() ? "" : "; ") + std::string(part->name) + (one[0] == 0 ? "" : ": ") + one;
  }
  if (reason_bytes != 0) snprintf(reason, reason_bytes, "%s", all.c_str());
  return result;
}

uint64_t monotonic_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(t.tv_nsec);
}

}  // namespace weir::plugins::hook
