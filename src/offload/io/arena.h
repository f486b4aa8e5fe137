// SPDX-License-Identifier: Apache-2.0
// Arena: all memory that transfers use, mapped and touched once within a hard budget, on huge pages
// where there are any. It is allocated before anything starts, so that running out of memory fails
// the start and never a step. Thread-safe. It must outlive its buffers and every Disk that has
// registered its memory or has transfers of it under way.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "core/base/status.h"

namespace weir::offload {

class Arena;

// Uninitialized memory of an arena; the destructor gives it back. Move-only.
class ArenaBuffer {
 public:
  ArenaBuffer() = default;
  ~ArenaBuffer() { reset(); }
  ArenaBuffer(ArenaBuffer&& other) noexcept { *this = std::move(other); }
  ArenaBuffer& operator=(ArenaBuffer&& other) noexcept;

  unsigned char* data() const { return data_; }  // kDiskAlignment-aligned; nullptr: none
  uint64_t bytes() const { return bytes_; }
  void reset();
  // The memory is not given back: it stays allocated until the arena dies. For a buffer that an
  // unfinished transfer may still touch.
  void abandon() { arena_ = nullptr; }

 private:
  friend class Arena;
  ArenaBuffer(Arena* arena, unsigned char* data, uint64_t bytes)
      : arena_(arena), data_(data), bytes_(bytes) {}

  Arena* arena_ = nullptr;
  unsigned char* data_ = nullptr;
  uint64_t bytes_ = 0;
};

struct ArenaOptions {
  uint64_t budget_bytes = 0;  // the most that is mapped; rounded down to kDiskAlignment
  bool huge_pages = true;     // reserved ones (hugetlb), else transparent ones, else none
  bool populate = true;       // every page is present when create returns
};

class Arena {
 public:
  // kInvalidArgument for a budget below kDiskAlignment, kNoMemory when the machine has less.
  static Result<std::unique_ptr<Arena>> create(const ArenaOptions& options);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // `bytes` rounded up to kDiskAlignment. kNoMemory, naming budget and use, when no free range is
  // that large.
  Result<ArenaBuffer> allocate(uint64_t bytes);

  unsigned char* base() const { return base_; }
  uint64_t capacity_bytes() const { return capacity_bytes_; }
  uint64_t used_bytes() const;
  uint64_t used_bytes_max() const;  // the largest value so far
  uint64_t buffer_count() const;
  uint64_t refused_count() const;
  // Bytes that lie on huge pages now, of either kind.
  uint64_t huge_bytes() const;
  std::string describe() const;

 private:
  friend class ArenaBuffer;
  Arena() = default;
  void give_back(unsigned char* data, uint64_t bytes);

  unsigned char* base_ = nullptr;
  uint64_t capacity_bytes_ = 0;
  bool hugetlb_ = false;
  std::string pages_;  // which kind, and why not a better one

  mutable std::mutex mutex_;
  std::map<uint64_t, uint64_t> free_;  // offset -> bytes, never adjacent; guarded, as all below
  uint64_t used_bytes_ = 0;
  uint64_t used_bytes_max_ = 0;
  uint64_t buffer_count_ = 0;
  uint64_t refused_count_ = 0;
};

}  // namespace weir::offload
