// SPDX-License-Identifier: Apache-2.0
#include "nccl/real/backend.h"

#include <cstdlib>

#include "core/base/log.h"
#include "nccl/api/own.h"
#include "nccl/base/outcome.h"
#include "nccl/real/metrics.h"
#include "nccl/real/recording.h"

namespace weir::nccl {

namespace {

Backend find_out() {
  Backend it;
  const RequestedOptions requested = requested_options_of_environment();
  it.requested = requested.backend;
  it.disabled = requested.disabled;
  it.own = &kOwnTable;
  if (looks_for_real(requested, &it.reason)) {
    // Stays loaded until the process ends, since its threads and handles do.
    it.library = RealLibrary::open(requested.library, &it.reason).release();
    if (it.library != nullptr) {
      it.real = &it.library->table();
    } else if (it.disabled) {
      it.real = &absent_table(new std::string(it.reason));
      log_error("WEIR_DISABLE is set, but " + it.reason);
    }
  }
  if (it.library != nullptr) {
    log_info("the real NCCL " + it.library->version_text() + " is behind this library: " +
             it.library->path() + " (" + it.library->found_by() + ")");
  }
  wrap_with_recording(is_on("WEIR_RECORDER_NCCL"), &it);
  const char* metrics = std::getenv("WEIR_METRICS");
  wrap_with_metrics(metrics != nullptr ? metrics : "", &it);
  real_table = it.real;
  if (it.real != nullptr) watch_real_errors(it.real->GetLastError);
  return it;
}

}  // namespace

const Backend& backend() {
  // Threads may use it while the process ends: never destroyed.
  static const Backend* it = new Backend(find_out());
  return *it;
}

}  // namespace weir::nccl
