// SPDX-License-Identifier: Apache-2.0
#include "nccl/wishes.h"

#include <cstdlib>
#include <string_view>

#include "nccl/cuda_driver.h"

namespace weir::nccl {

namespace {

// The settings table has checked the values where Weir itself was used; here a wrong one counts as
// unset, so that a pass-through needs nothing of Weir's.
std::string_view setting(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? std::string_view(value) : std::string_view();
}

}  // namespace

bool is_on(const char* name) {
  const std::string_view text = setting(name);
  return text == "1" || text == "true" || text == "on";
}

Wishes wishes_of_environment() {
  const std::string_view text = setting("WEIR_BACKEND");
  Wishes wishes;
  wishes.wish = text == "nccl" ? Wish::kNccl : text == "weir" ? Wish::kWeir : Wish::kAuto;
  wishes.disabled = is_on("WEIR_DISABLE");
  wishes.library = setting("WEIR_NCCL_LIBRARY");
  return wishes;
}

bool looks_for_real(const Wishes& wishes, std::string* reason) {
  if (wishes.disabled || wishes.wish == Wish::kNccl) return true;
  if (wishes.wish == Wish::kWeir) {
    *reason = "WEIR_BACKEND=weir";
    return false;
  }
  if (cuda_is_there()) return true;
  (void)cuda_device_count(reason);
  return false;
}

}  // namespace weir::nccl
