// SPDX-License-Identifier: Apache-2.0
#include "core/comm/state/failure.h"

namespace weir::comm {

bool Failure::set(const Status& status, const std::vector<Rank>& blamed) {
  const std::lock_guard lock(lock_);
  if (!first_.ok()) return false;
  first_ = status;
  blamed_ = blamed;
  text_ = status.text();
  code_.store(static_cast<uint8_t>(status.code()), std::memory_order_release);
  return true;
}

Status Failure::status() const {
  if (!is_set()) return Status();
  const std::lock_guard lock(lock_);
  return first_;
}

std::vector<Rank> Failure::blamed() const {
  const std::lock_guard lock(lock_);
  return blamed_;
}

void Failure::note(const Status& status) {
  const std::lock_guard lock(lock_);
  text_ = status.text();
}

std::string Failure::text() const {
  const std::lock_guard lock(lock_);
  return text_;
}

}  // namespace weir::comm
