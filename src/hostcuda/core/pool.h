// SPDX-License-Identifier: Apache-2.0
// Memory pools: memory that is allocated and freed in stream order. Memory that a stream frees can
// be reused by that stream at once, and by all once the stream has reached the free; a pool keeps
// no other free memory, whatever its release threshold. Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>

#include "hostcuda/core/device.h"
#include "hostcuda/core/error.h"

namespace weir::hostcuda {

// The numbers of CUDA's cudaMemPoolAttr.
enum class PoolAttribute : int {
  kFollowEvents = 1,
  kOpportunistic = 2,
  kInternalDependencies = 3,
  kReleaseThreshold = 4,
  kReservedCurrent = 5,
  kReservedHigh = 6,
  kUsedCurrent = 7,
  kUsedHigh = 8,
};

class Pool : public std::enable_shared_from_this<Pool> {
 public:
  Pool(Device& device, size_t bytes_max) : device_(device), bytes_max_(bytes_max) {}

  Device& device() const { return device_; }
  Error allocate(const void* stream, size_t bytes, void** out);
  // `address` belongs to a pool; its allocation may have been made on another stream.
  static Error free(const void* stream, void* address);
  // The same for memory that nothing uses any more.
  static Error free_now(void* address);

  bool is_default = false;

  // Three of the attributes are int, the others uint64_t; `value` points to the right one.
  Error get(PoolAttribute attribute, void* value) const;
  Error set(PoolAttribute attribute, const void* value);

 private:
  struct Pending {
    void* address;
    size_t bytes;
    uint64_t stream_id;
    uint64_t number;  // of this free
  };
  void add_used(size_t bytes);
  bool take_pending(uint64_t number);

  Device& device_;
  const size_t bytes_max_;  // 0: no limit of its own
  mutable std::mutex mutex_;
  int reuse_[3] = {1, 1, 1};
  uint64_t threshold_bytes_ = 0;
  uint64_t used_bytes_ = 0;
  uint64_t used_high_bytes_ = 0;
  std::list<Pending> pending_;  // freed in stream order, not yet reached by the stream
};
using PoolRef = std::shared_ptr<Pool>;

PoolRef default_pool(Device& device);
PoolRef current_pool(Device& device);
Error set_current_pool(Device& device, const void* handle);
Error create_pool(Device& device, size_t bytes_max, void** handle);
Error destroy_pool(void* handle);
PoolRef find_pool(const void* handle);

}  // namespace weir::hostcuda
