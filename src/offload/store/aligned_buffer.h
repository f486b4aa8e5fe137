// SPDX-License-Identifier: Apache-2.0
// Zeroed memory aligned for the Disk. One owner.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>

#include "offload/disk/disk.h"

namespace weir::offload {

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  // kNoMemory when the system has none. `bytes` is rounded up to kDiskAlignment.
  static Result<AlignedBuffer> make(uint64_t bytes) {
    const uint64_t rounded = (bytes + kDiskAlignment - 1) / kDiskAlignment * kDiskAlignment;
    AlignedBuffer buffer;
    buffer.bytes_ = rounded;
    buffer.data_.reset(static_cast<unsigned char*>(std::aligned_alloc(kDiskAlignment, rounded)));
    if (buffer.data_ == nullptr) {
      return Status(Code::kNoMemory,
                    "no memory for a buffer of " + std::to_string(rounded) + " bytes");
    }
    std::memset(buffer.data_.get(), 0, rounded);
    return buffer;
  }

  unsigned char* data() { return data_.get(); }
  const unsigned char* data() const { return data_.get(); }
  uint64_t bytes() const { return bytes_; }
  std::span<const unsigned char> span() const { return {data_.get(), bytes_}; }
  // For a transfer that never completed: the kernel may use the memory for ever, so it is not
  // freed.
  void leak() { static_cast<void>(data_.release()); }

 private:
  struct Free {
    void operator()(unsigned char* memory) const { std::free(memory); }
  };
  std::unique_ptr<unsigned char, Free> data_;
  uint64_t bytes_ = 0;
};

}  // namespace weir::offload
