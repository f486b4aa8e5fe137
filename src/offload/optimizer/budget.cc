// SPDX-License-Identifier: Apache-2.0
#include "offload/optimizer/budget.h"

#include <fmt/format.h>

#include <algorithm>

#include "offload/disk/disk.h"

namespace weir::offload {

Status Budget::grow(uint64_t bytes) {
  bytes = (bytes + kDiskAlignment - 1) / kDiskAlignment * kDiskAlignment;
  if (bytes == 0) return {};
  if (limit_bytes_ > 0 && bytes > limit_bytes_ - std::min(limit_bytes_, held_bytes()))
    return Status(Code::kNoMemory,
                  fmt::format("{} bytes more than the {} held go beyond memory_bytes {}", bytes,
                              held_bytes(), limit_bytes_));
  Result<std::unique_ptr<Arena>> arena = Arena::create({.budget_bytes = bytes});
  if (!arena.ok()) return arena.status();
  arenas_.push_back(arena.take());
  return {};
}

Status Budget::grow_for(uint64_t bytes) {
  uint64_t free_bytes = 0;
  for (const auto& arena : arenas_) free_bytes += arena->capacity_bytes() - arena->used_bytes();
  if (free_bytes >= bytes) return {};
  uint64_t more = bytes - free_bytes;
  if (limit_bytes_ > 0) more = std::min(more, limit_bytes_ - std::min(limit_bytes_, held_bytes()));
  if (limit_bytes_ > 0) more = more / kDiskAlignment * kDiskAlignment;
  return grow(more);
}

Result<ArenaBuffer> Budget::take(uint64_t bytes, const std::string& use) {
  for (const auto& arena : arenas_) {
    Result<ArenaBuffer> buffer = arena->allocate(bytes);
    if (buffer.ok() || buffer.status().code() != Code::kNoMemory) return buffer;
  }
  return Status(Code::kNoMemory,
                fmt::format("no {} bytes for {}: the optimizer holds {} bytes already{}", bytes,
                            use, held_bytes(),
                            limit_bytes_ == 0
                                ? std::string()
                                : fmt::format(" of memory_bytes {}; raise that", limit_bytes_)));
}

uint64_t Budget::held_bytes() const {
  uint64_t bytes = 0;
  for (const auto& arena : arenas_) bytes += arena->capacity_bytes();
  return bytes;
}

std::string Budget::describe() const {
  std::string text;
  for (const auto& arena : arenas_) text += (text.empty() ? "" : "; ") + arena->describe();
  return text;
}

}  // namespace weir::offload
