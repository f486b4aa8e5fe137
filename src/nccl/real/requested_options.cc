// SPDX-License-Identifier: Apache-2.0
#include "nccl/real/requested_options.h"

#include <cstdlib>
#include <string_view>

#include "nccl/cuda/device_query.h"

namespace weir::nccl {

namespace {

// The settings table reports wrong values where Weir itself is used; here a wrong value counts as
// unset, so that a pass-through depends on nothing of Weir's.
std::string_view setting(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? std::string_view(value) : std::string_view();
}

}  // namespace

bool is_on(const char* name) {
  const std::string_view text = setting(name);
  return text == "1" || text == "true" || text == "on";
}

RequestedOptions requested_options_of_environment() {
  const std::string_view text = setting("WEIR_BACKEND");
  RequestedOptions requested;
  requested.backend = text == "nccl"   ? RequestedBackend::kNccl
                      : text == "weir" ? RequestedBackend::kWeir
                                       : RequestedBackend::kAuto;
  requested.disabled = is_on("WEIR_DISABLE");
  requested.library = setting("WEIR_NCCL_LIBRARY");
  return requested;
}

bool looks_for_real(const RequestedOptions& requested, std::string* reason) {
  if (requested.disabled || requested.backend == RequestedBackend::kNccl) return true;
  if (requested.backend == RequestedBackend::kWeir) {
    *reason = "WEIR_BACKEND=weir";
    return false;
  }
  if (cuda_is_there()) return true;
  (void)cuda_device_count(reason);
  return false;
}

}  // namespace weir::nccl
