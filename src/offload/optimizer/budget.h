// SPDX-License-Identifier: Apache-2.0
// Budget: the memory of an optimizer, in arenas whose sum stays below a limit. Thread rule of its
// owner. It outlives its buffers and the Disk.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "offload/io/arena.h"

namespace weir::offload {

class Budget {
 public:
  explicit Budget(uint64_t limit_bytes) : limit_bytes_(limit_bytes) {}  // 0: none

  // Another arena of so much. kNoMemory beyond the limit.
  Status grow(uint64_t bytes);
  // As much of `bytes` as the limit allows, if the arenas have less free.
  Status grow_for(uint64_t bytes);
  // kNoMemory when no arena has so much in one piece; `use` is for the text.
  Result<ArenaBuffer> take(uint64_t bytes, const std::string& use);

  Arena* first() const { return arenas_.empty() ? nullptr : arenas_[0].get(); }
  uint64_t limit_bytes() const { return limit_bytes_; }
  uint64_t held_bytes() const;
  std::string describe() const;

 private:
  uint64_t limit_bytes_;
  std::vector<std::unique_ptr<Arena>> arenas_;
};

}  // namespace weir::offload
