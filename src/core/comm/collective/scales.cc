// SPDX-License-Identifier: Apache-2.0
#include "core/comm/collective/scales.h"

#include <fmt/format.h>

#include <cstring>

namespace weir::comm {

Result<int> Scales::create(DataType type, const void* scalar) {
  const std::lock_guard lock(lock_);
  size_t index = 0;
  while (index < scales_.size() && scales_[index].used) ++index;
  if (index >= kCountMax) {
    return Status(
        Code::kNoMemory,
        fmt::format("a communicator can have at most {} pre-multiplied sums; destroy some",
                    kCountMax));
  }
  if (index == scales_.size()) scales_.emplace_back();
  Scale& scale = scales_[index];
  scale.used = true;
  scale.type = type;
  std::memcpy(scale.value, scalar, element_bytes(type));
  return kFirst + static_cast<int>(index);
}

Status Scales::destroy(int op) {
  const std::lock_guard lock(lock_);
  if (!is_used(op)) return unknown(op);
  scales_[static_cast<size_t>(op - kFirst)].used = false;
  return Status();
}

Result<Scales::Scale> Scales::find(int op) const {
  const std::lock_guard lock(lock_);
  if (!is_used(op)) return unknown(op);
  return scales_[static_cast<size_t>(op - kFirst)];
}

bool Scales::is_used(int op) const {
  if (op < kFirst) return false;
  const auto index = static_cast<size_t>(op - kFirst);
  return index < scales_.size() && scales_[index].used;
}

Status Scales::unknown(int op) const {
  return invalid_argument(
      fmt::format("reduction {} was not created on '{}', or was destroyed", op, name_));
}

}  // namespace weir::comm
