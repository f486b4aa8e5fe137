// SPDX-License-Identifier: Apache-2.0
#include "nccl/backend.h"

#include <cstdlib>
#include <string_view>

#include "core/base/log.h"
#include "nccl/cuda_driver.h"
#include "nccl/metrics.h"
#include "nccl/own.h"
#include "nccl/recording.h"
#include "nccl/route.h"

namespace weir::nccl {

namespace {

// The settings table has checked the values where Weir itself was used; here a wrong one counts as
// unset, so that a pass-through needs nothing of Weir's.
std::string_view setting(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? std::string_view(value) : std::string_view();
}

bool is_on(const char* name) {
  const std::string_view text = setting(name);
  return text == "1" || text == "true" || text == "on";
}

Wish wish() {
  const std::string_view text = setting("WEIR_BACKEND");
  return text == "nccl" ? Wish::kNccl : text == "weir" ? Wish::kWeir : Wish::kAuto;
}

Backend find_out() {
  Backend it;
  it.wish = wish();
  it.disabled = is_on("WEIR_DISABLE");
  it.own = &kOwnTable;
  if (!it.disabled && it.wish == Wish::kWeir) {
    it.reason = "WEIR_BACKEND=weir";
  } else if (!it.disabled && it.wish == Wish::kAuto && !cuda_is_there()) {
    (void)cuda_device_count(&it.reason);
  } else {
    // Stays loaded for the life of the process, since its threads and handles do.
    it.library = RealLibrary::open(std::string(setting("WEIR_NCCL_LIBRARY")), &it.reason).release();
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
  wrap_with_metrics(std::string(setting("WEIR_METRICS")), &it);
  publish_real_table(it.real);
  return it;
}

}  // namespace

const Backend& backend() {
  // Threads may use it while the process ends: never destroyed.
  static const Backend* it = new Backend(find_out());
  return *it;
}

}  // namespace weir::nccl
