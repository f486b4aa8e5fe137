// SPDX-License-Identifier: Apache-2.0
// Budget: the memory of an optimizer, in arenas whose sum stays within a limit. Same thread rule as
// its owner. It must outlive its buffers and the Disk.
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

  // Adds an arena of this size. kNoMemory beyond the limit.
  Status grow(uint64_t bytes);
  // Adds as much of `bytes` as the limit allows, if the arenas have less free.
  Status grow_for(uint64_t bytes);
  // kNoMemory when no arena has a free range that large; `use` appears in the error text.
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
