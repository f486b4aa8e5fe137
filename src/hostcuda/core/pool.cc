// SPDX-License-Identifier: Apache-2.0
#include "hostcuda/core/pool.h"

#include <algorithm>
#include <atomic>
#include <optional>

#include "hostcuda/core/capture.h"
#include "hostcuda/core/graph.h"
#include "hostcuda/core/handles.h"
#include "hostcuda/core/memory.h"

namespace weir::hostcuda {

namespace {

HandleTable<Pool>& pools() {
  static auto* const table = new HandleTable<Pool>;
  return *table;
}

// Of all pools, so that calls that synchronize look at pools only where something is kept.
std::atomic<uint64_t> all_kept_bytes{0};

}  // namespace

Pool::~Pool() { close(); }

void Pool::add_used(size_t bytes) {
  used_bytes_ += bytes;
  used_high_bytes_ = std::max(used_high_bytes_, used_bytes_);
  const uint64_t reserved = reserved_bytes();
  if (bytes_max_ != 0 && reserved > bytes_max_) release_kept(reserved - bytes_max_);
  reserved_high_bytes_ = std::max(reserved_high_bytes_, reserved_bytes());
}

uint64_t Pool::reserved_bytes() const {
  uint64_t bytes = used_bytes_ + kept_bytes_;
  for (const Pending& pending : pending_) bytes += pending.bytes;
  return bytes;
}

void Pool::keep(uint64_t bytes) {
  if (closed_ || device_.arena.charge(bytes) != Error::kSuccess) return;
  kept_bytes_ += bytes;
  all_kept_bytes.fetch_add(bytes);
}

void Pool::release_kept(uint64_t bytes) {
  const uint64_t released = std::min(bytes, kept_bytes_);
  if (released == 0) return;
  kept_bytes_ -= released;
  all_kept_bytes.fetch_sub(released);
  device_.arena.discharge(released);
}

void Pool::trim(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (const uint64_t reserved = reserved_bytes(); reserved > bytes) release_kept(reserved - bytes);
}

void Pool::trim_to_threshold() {
  uint64_t threshold_bytes = 0;
  {
    const std::lock_guard lock(mutex_);
    threshold_bytes = threshold_bytes_;
  }
  trim(threshold_bytes);
}

void Pool::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  release_kept(kept_bytes_);
}

void Pool::clear() {
  const std::lock_guard lock(mutex_);
  release_kept(kept_bytes_);
  used_bytes_ = 0;
  pending_.clear();
}

bool Pool::take_pending(uint64_t number, size_t* bytes) {
  const std::lock_guard lock(mutex_);
  for (auto at = pending_.begin(); at != pending_.end(); ++at) {
    if (at->number != number) continue;
    if (bytes != nullptr) *bytes = at->bytes;
    pending_.erase(at);
    return true;
  }
  return false;
}

Error Pool::allocate(const void* handle, size_t bytes, void** out) {
  *out = nullptr;
  const StreamRef stream = find_stream(handle);
  if (stream == nullptr) return Error::kInvalidHandle;
  if (in_host_function()) return Error::kNotPermitted;
  if (bytes == 0) return Error::kSuccess;
  if (stream->capture.load() != nullptr) {
    void* address = nullptr;
    const Error error = allocate_device(device_, bytes, MemoryKind::kDevice, &address);
    if (error != Error::kSuccess) return error;
    *out = address;
    AllocateOperation operation;
    operation.address = address;
    operation.bytes = bytes;
    operation.memory = std::make_shared<GraphMemory>(address);
    return capture_operation(stream, std::move(operation));
  }
  if (const Error error = check_implicit(stream); error != Error::kSuccess) return error;
  {
    const std::lock_guard lock(mutex_);
    if (bytes_max_ != 0 && bytes > bytes_max_ - std::min<uint64_t>(bytes_max_, used_bytes_)) {
      return Error::kOutOfMemory;
    }
    for (auto at = pending_.begin(); at != pending_.end(); ++at) {
      if (at->stream_id != stream->id() || at->bytes != bytes) continue;
      *out = at->address;
      pending_.erase(at);
      add_used(bytes);
      return Error::kSuccess;
    }
    release_kept(bytes);  // to be allocated instead
  }
  const Error error = allocate_device(device_, bytes, MemoryKind::kDevice, out, shared_from_this());
  if (error != Error::kSuccess) return error;
  const std::lock_guard lock(mutex_);
  add_used(bytes);
  return Error::kSuccess;
}

Error Pool::free(const void* handle, void* address) {
  const StreamRef stream = find_stream(handle);
  if (stream == nullptr) return Error::kInvalidHandle;
  if (in_host_function()) return Error::kNotPermitted;
  const auto found = find_allocation(address);
  if (!found.has_value() || found->base != reinterpret_cast<uintptr_t>(address) ||
      found->kind != MemoryKind::kDevice) {
    return Error::kInvalidValue;
  }
  if (stream->capture.load() != nullptr) {
    return capture_operation(stream, FreeOperation{address});
  }
  if (const Error error = check_implicit(stream); error != Error::kSuccess) return error;
  if (found->pool == nullptr) {
    return enqueue(stream, [address](const Cancel&) { (void)release_device(address); });
  }
  Pool& pool = *found->pool;
  // Each free of an address has its own number: the address may be freed again before the stream
  // has come here.
  static std::atomic<uint64_t> next_free{1};
  const uint64_t number = next_free.fetch_add(1);
  {
    const std::lock_guard lock(pool.mutex_);
    for (const Pending& other : pool.pending_) {
      if (other.address == address) return Error::kInvalidValue;
    }
    pool.used_bytes_ -= std::min<uint64_t>(pool.used_bytes_, found->bytes);
    pool.pending_.push_back({address, found->bytes, stream->id(), number});
  }
  const Error error = enqueue(stream, [owner = found->pool, address, number](const Cancel&) {
    size_t bytes = 0;
    if (!owner->take_pending(number, &bytes)) return;
    (void)release_device(address);
    const std::lock_guard lock(owner->mutex_);
    owner->keep(bytes);
  });
  if (error != Error::kSuccess) (void)pool.take_pending(number);
  return error;
}

Error Pool::free_now(void* address) {
  const auto found = find_allocation(address);
  if (!found.has_value() || found->pool == nullptr) return Error::kInvalidValue;
  if (const Error error = release_device(address); error != Error::kSuccess) return error;
  Pool& pool = *found->pool;
  {
    const std::lock_guard lock(pool.mutex_);
    pool.used_bytes_ -= std::min<uint64_t>(pool.used_bytes_, found->bytes);
    pool.keep(found->bytes);
  }
  pool.trim_to_threshold();
  return Error::kSuccess;
}

Error Pool::get(PoolAttribute attribute, void* value) const {
  const std::lock_guard lock(mutex_);
  switch (attribute) {
    case PoolAttribute::kFollowEvents:
    case PoolAttribute::kOpportunistic:
    case PoolAttribute::kInternalDependencies:
      *static_cast<int*>(value) = reuse_[static_cast<int>(attribute) - 1];
      return Error::kSuccess;
    case PoolAttribute::kReleaseThreshold:
      *static_cast<uint64_t*>(value) = threshold_bytes_;
      return Error::kSuccess;
    case PoolAttribute::kReservedCurrent:
      *static_cast<uint64_t*>(value) = reserved_bytes();
      return Error::kSuccess;
    case PoolAttribute::kUsedCurrent:
      *static_cast<uint64_t*>(value) = used_bytes_;
      return Error::kSuccess;
    case PoolAttribute::kReservedHigh:
      *static_cast<uint64_t*>(value) = reserved_high_bytes_;
      return Error::kSuccess;
    case PoolAttribute::kUsedHigh:
      *static_cast<uint64_t*>(value) = used_high_bytes_;
      return Error::kSuccess;
  }
  return Error::kInvalidValue;
}

Error Pool::set(PoolAttribute attribute, const void* value) {
  const std::lock_guard lock(mutex_);
  switch (attribute) {
    case PoolAttribute::kFollowEvents:
    case PoolAttribute::kOpportunistic:
    case PoolAttribute::kInternalDependencies:
      reuse_[static_cast<int>(attribute) - 1] = *static_cast<const int*>(value);
      return Error::kSuccess;
    case PoolAttribute::kReleaseThreshold:
      threshold_bytes_ = *static_cast<const uint64_t*>(value);
      return Error::kSuccess;
    case PoolAttribute::kReservedHigh:
    case PoolAttribute::kUsedHigh:
      // CUDA only allows resetting the high-water marks.
      if (*static_cast<const uint64_t*>(value) != 0) return Error::kInvalidValue;
      if (attribute == PoolAttribute::kReservedHigh) {
        reserved_high_bytes_ = reserved_bytes();
      } else {
        used_high_bytes_ = used_bytes_;
      }
      return Error::kSuccess;
    default:
      return Error::kInvalidValue;
  }
}

PoolRef default_pool(Device& device) {
  const std::lock_guard lock(device.state);
  if (device.default_pool == nullptr) {
    device.default_pool = std::make_shared<Pool>(device, 0);
    device.default_pool->is_default = true;
    pools().add(device.default_pool);
  }
  return device.default_pool;
}

PoolRef current_pool(Device& device) {
  {
    const std::lock_guard lock(device.state);
    if (device.current_pool != nullptr) return device.current_pool;
  }
  return default_pool(device);
}

Error set_current_pool(Device& device, const void* handle) {
  const PoolRef pool = find_pool(handle);
  if (pool == nullptr || &pool->device() != &device) return Error::kInvalidValue;
  const std::lock_guard lock(device.state);
  device.current_pool = pool;
  return Error::kSuccess;
}

Error create_pool(Device& device, size_t bytes_max, void** handle) {
  *handle = pools().add(std::make_shared<Pool>(device, bytes_max));
  return Error::kSuccess;
}

Error destroy_pool(void* handle) {
  const PoolRef pool = find_pool(handle);
  if (pool == nullptr || pool->is_default) return Error::kInvalidValue;
  pools().take(handle);
  pool->close();
  Device& device = pool->device();
  const std::lock_guard lock(device.state);
  if (device.current_pool == pool) device.current_pool.reset();
  return Error::kSuccess;
}

PoolRef find_pool(const void* handle) { return pools().find(handle); }

void trim_pools_to_thresholds() {
  if (all_kept_bytes.load() == 0) return;
  for (const PoolRef& pool : pools().all()) pool->trim_to_threshold();
}

bool release_kept_memory(const Device& device) {
  const uint64_t before = all_kept_bytes.load();
  if (before == 0) return false;
  for (const PoolRef& pool : pools().all()) {
    if (&pool->device() == &device) pool->trim(0);
  }
  return all_kept_bytes.load() != before;
}

void clear_pools(const Device& device) {
  for (const PoolRef& pool : pools().all()) {
    if (&pool->device() == &device) pool->clear();
  }
}

}  // namespace weir::hostcuda
