// SPDX-License-Identifier: Apache-2.0
// Memory pools: memory that is allocated and freed in stream order. Memory that a stream frees can
// be reused by that stream at once, and by all once the stream has reached the free. From then on
// the pool keeps as much memory of the device reserved for later allocations, until a trim, a
// synchronization that finds more than the release threshold reserved, or an allocation elsewhere
// that needs it. What is kept has no address. Thread-safe.
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
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  Device& device() const { return device_; }
  Error allocate(const void* stream, size_t bytes, void** out);
  // `address` belongs to a pool; its allocation may have been made on another stream.
  static Error free(const void* stream, void* address);
  // The same for memory that nothing uses any more.
  static Error free_now(void* address);
  // Releases kept memory until no more than `bytes` are reserved, or nothing is kept.
  void trim(uint64_t bytes);
  // Releases what exceeds the release threshold.
  void trim_to_threshold();
  // Nothing is kept from now on: the handle is destroyed.
  void close();
  // The device was reset: nothing is allocated or kept any more.
  void clear();

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
  // With the lock.
  void add_used(size_t bytes);
  uint64_t reserved_bytes() const;
  void keep(uint64_t bytes);
  void release_kept(uint64_t bytes);
  // False: there is no such free (any more).
  bool take_pending(uint64_t number, size_t* bytes = nullptr);

  Device& device_;
  const size_t bytes_max_;  // 0: no limit of its own
  mutable std::mutex mutex_;
  int reuse_[3] = {1, 1, 1};
  uint64_t threshold_bytes_ = 0;
  uint64_t used_bytes_ = 0;
  uint64_t used_high_bytes_ = 0;
  uint64_t kept_bytes_ = 0;  // free, and charged to the device
  uint64_t reserved_high_bytes_ = 0;
  bool closed_ = false;
  std::list<Pending> pending_;  // freed in stream order, not yet reached by the stream
};
using PoolRef = std::shared_ptr<Pool>;

PoolRef default_pool(Device& device);
PoolRef current_pool(Device& device);
Error set_current_pool(Device& device, const void* handle);
Error create_pool(Device& device, size_t bytes_max, void** handle);
Error destroy_pool(void* handle);
PoolRef find_pool(const void* handle);
// The host has synchronized with a stream, an event or a device.
void trim_pools_to_thresholds();
// For an allocation that found too little memory. False: nothing was kept.
bool release_kept_memory(const Device& device);
// The device is reset.
void clear_pools(const Device& device);

}  // namespace weir::hostcuda
