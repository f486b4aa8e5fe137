// SPDX-License-Identifier: Apache-2.0
#include "hostcuda/core/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iterator>

#include "hostcuda/core/memory.h"

namespace weir::hostcuda {

namespace {

constexpr size_t kPageBytes = 4096;

size_t rounded_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

Error Arena::map_range() {
  if (base_ != nullptr) return Error::kSuccess;
  const int descriptor = memfd_create("weir_hostcuda", MFD_CLOEXEC);
  if (descriptor < 0 || ftruncate(descriptor, static_cast<off_t>(total_bytes_)) != 0) {
    std::fprintf(stderr, "hostcuda: no memory file for a device: %s\n", std::strerror(errno));
    if (descriptor >= 0) close(descriptor);
    return Error::kOutOfMemory;
  }
  void* const base = mmap(nullptr, total_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                          descriptor, 0);
  if (base == MAP_FAILED) {
    std::fprintf(stderr,
                 "hostcuda: %zu bytes of addresses for a device: %s; lower WEIR_HOSTCUDA_MEMORY\n",
                 total_bytes_, std::strerror(errno));
    close(descriptor);
    return Error::kOutOfMemory;
  }
  descriptor_ = descriptor;
  base_ = static_cast<char*>(base);
  free_.emplace(0, total_bytes_);
  add_device_addresses(base, total_bytes_, true);
  return Error::kSuccess;
}

Error Arena::allocate(size_t bytes, void** out, size_t alignment) {
  const std::lock_guard lock(mutex_);
  if (bytes > total_bytes_ - used_bytes_) return Error::kOutOfMemory;
  if (const Error error = map_range(); error != Error::kSuccess) return error;
  const size_t wanted = rounded_up(bytes, kAlignment);
  for (auto at = free_.begin(); at != free_.end(); ++at) {
    const auto [offset, length] = *at;
    const size_t start = rounded_up(offset, alignment);
    if (start - offset > length || wanted > length - (start - offset)) continue;
    if (wanted > total_bytes_ - used_bytes_) break;
    free_.erase(at);
    if (start > offset) free_.emplace(offset, start - offset);
    if (start + wanted < offset + length) {
      free_.emplace(start + wanted, offset + length - start - wanted);
    }
    used_.emplace(start, wanted);
    used_bytes_ += wanted;
    *out = base_ + start;
    return Error::kSuccess;
  }
  return Error::kOutOfMemory;
}

void Arena::free(void* address) {
  const std::lock_guard lock(mutex_);
  const auto found = used_.find(offset_of(address));
  if (found == used_.end()) return;
  auto [start, bytes] = *found;
  used_.erase(found);
  used_bytes_ -= bytes;
  auto next = free_.lower_bound(start);
  const size_t freed_end = start + bytes;
  size_t end = freed_end;
  size_t begin = start;
  if (next != free_.end() && next->first == end) {
    end += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == begin) {
      begin = before->first;
      free_.erase(before);
    }
  }
  free_.emplace(begin, end - begin);
  // Only the pages that this call freed: the surrounding ones are holes already.
  const size_t first_page = std::max(begin, start / kPageBytes * kPageBytes);
  const size_t first = rounded_up(first_page, kPageBytes);
  const size_t last = std::min(end, rounded_up(freed_end, kPageBytes)) / kPageBytes * kPageBytes;
  if (last > first) {
    (void)fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                    static_cast<off_t>(first), static_cast<off_t>(last - first));
  }
}

Error Arena::charge(size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (bytes > total_bytes_ - used_bytes_) return Error::kOutOfMemory;
  used_bytes_ += bytes;
  return Error::kSuccess;
}

void Arena::discharge(size_t bytes) {
  const std::lock_guard lock(mutex_);
  used_bytes_ -= bytes;
}

size_t Arena::free_bytes() const {
  const std::lock_guard lock(mutex_);
  return total_bytes_ - used_bytes_;
}

}  // namespace weir::hostcuda
