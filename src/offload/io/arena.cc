// SPDX-License-Identifier: Apache-2.0
#include "offload/io/arena.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <limits>

#include "core/base/check.h"
#include "offload/disk/disk.h"

namespace weir::offload {
namespace {

constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;

// "MemAvailable" of /proc/meminfo in bytes; the maximum where it is not reported.
uint64_t available_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  uint64_t kib = 0;
  std::string rest;
  while (file >> name >> kib && std::getline(file, rest))
    if (name == "MemAvailable:") return kib * 1024;
  return std::numeric_limits<uint64_t>::max();
}

std::string transparent_huge_pages() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string line;
  std::getline(file, line);
  const size_t begin = line.find('[');
  const size_t end = line.find(']');
  return begin == std::string::npos || end < begin ? "" : line.substr(begin + 1, end - begin - 1);
}

unsigned char* map(uint64_t bytes, int flags) {
  void* address =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  return address == MAP_FAILED ? nullptr : static_cast<unsigned char*>(address);
}

// Maps ordinary pages from a huge page's boundary on, so that transparent huge pages can replace
// them.
unsigned char* map_aligned(uint64_t bytes) {
  unsigned char* all = map(bytes + kHugePageBytes, MAP_NORESERVE);
  if (all == nullptr) return nullptr;
  const uint64_t address = reinterpret_cast<uintptr_t>(all);
  const uint64_t skip = (kHugePageBytes - address % kHugePageBytes) % kHugePageBytes;
  if (skip > 0) munmap(all, skip);
  munmap(all + skip + bytes, kHugePageBytes - skip);
  return all + skip;
}

// Makes every page present; 0 or an errno.
int touch_all(unsigned char* base, uint64_t bytes) {
#ifdef MADV_POPULATE_WRITE
  while (madvise(base, bytes, MADV_POPULATE_WRITE) != 0) {
    if (errno == EINTR || errno == EAGAIN) continue;
    if (errno == EINVAL) break;  // Linux before 5.14
    return errno;
  }
#endif
  for (uint64_t at = 0; at < bytes; at += kDiskAlignment)
    *static_cast<volatile unsigned char*>(base + at) = 0;
  return 0;
}

}  // namespace

ArenaBuffer& ArenaBuffer::operator=(ArenaBuffer&& other) noexcept {
  if (this == &other) return *this;
  reset();
  arena_ = std::exchange(other.arena_, nullptr);
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

void ArenaBuffer::reset() {
  if (arena_ != nullptr) arena_->give_back(data_, bytes_);
  arena_ = nullptr;
  data_ = nullptr;
  bytes_ = 0;
}

Result<std::unique_ptr<Arena>> Arena::create(const ArenaOptions& options) {
  const uint64_t bytes = options.budget_bytes / kDiskAlignment * kDiskAlignment;
  if (bytes == 0)
    return invalid_argument(fmt::format("a memory budget of {} bytes: it needs at least {}",
                                        options.budget_bytes, kDiskAlignment));
  // No byte beyond the budget may be resident, so the unused end of a huge page must not be either.
  const bool whole_huge_pages = bytes % kHugePageBytes == 0;
  std::unique_ptr<Arena> arena(new Arena());
  std::string why_not;
  if (!options.huge_pages) {
    why_not = "huge pages were not asked for";
  } else if (!whole_huge_pages) {
    why_not = "reserved huge pages left out: the budget is not a multiple of 2 MiB";
  } else if ((arena->base_ = map(bytes, MAP_HUGETLB)) != nullptr) {
    arena->hugetlb_ = true;
    arena->pages_ = "reserved huge pages";
  } else {
    why_not = "no reserved huge pages are free (vm.nr_hugepages)";
  }
  if (arena->base_ == nullptr) {
    const uint64_t available = available_bytes();
    if (options.populate && bytes > available)
      return Status(Code::kNoMemory,
                    fmt::format("a memory budget of {} bytes: the machine has {} left; lower the "
                                "budget or end other programs",
                                bytes, available));
    arena->base_ = map_aligned(bytes);
    if (arena->base_ == nullptr)
      return Status(Code::kNoMemory,
                    system_error(fmt::format("map a memory budget of {} bytes", bytes)).text() +
                        "; lower the budget or raise the limit (ulimit -v)");
    const std::string transparent = transparent_huge_pages();
    if (options.huge_pages && transparent != "never" &&
        madvise(arena->base_, bytes, MADV_HUGEPAGE) == 0) {
      arena->pages_ = "transparent huge pages, " + why_not;
    } else {
      madvise(arena->base_, bytes, MADV_NOHUGEPAGE);
      if (options.huge_pages) why_not += "; transparent ones are '" + transparent + "'";
      arena->pages_ = "ordinary pages, " + why_not;
    }
  }
  arena->capacity_bytes_ = bytes;
  arena->free_[0] = bytes;
  // Copy-on-write after fork would move the pages under transfer to new memory.
  madvise(arena->base_, bytes, MADV_DONTFORK);
  if (options.populate) {
    const int number = touch_all(arena->base_, bytes);
    if (number != 0)
      return Status(
          Code::kNoMemory,
          system_error(fmt::format("touch a memory budget of {} bytes", bytes), number).text() +
              "; lower the budget or raise the memory limit of the process's group");
  }
  return arena;
}

Arena::~Arena() {
  if (base_ != nullptr) munmap(base_, capacity_bytes_);
}

Result<ArenaBuffer> Arena::allocate(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const uint64_t rounded = bytes > capacity_bytes_
                               ? bytes
                               : (bytes + kDiskAlignment - 1) / kDiskAlignment * kDiskAlignment;
  if (rounded == 0) return invalid_argument("a buffer of 0 bytes");
  uint64_t longest = 0;
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    const auto [offset, length] = *it;
    longest = std::max(longest, length);
    if (length < rounded) continue;
    free_.erase(it);
    if (length > rounded) free_[offset + rounded] = length - rounded;
    used_bytes_ += rounded;
    used_bytes_max_ = std::max(used_bytes_max_, used_bytes_);
    ++buffer_count_;
    return ArenaBuffer(this, base_ + offset, rounded);
  }
  ++refused_count_;
  return Status(Code::kNoMemory,
                fmt::format("a buffer of {} bytes: of the memory budget of {} bytes {} are in use, "
                            "the longest free piece has {}; raise the budget",
                            rounded, capacity_bytes_, used_bytes_, longest));
}

void Arena::give_back(unsigned char* data, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  uint64_t offset = static_cast<uint64_t>(data - base_);
  used_bytes_ -= bytes;
  --buffer_count_;
  auto next = free_.lower_bound(offset);
  WEIR_CHECK(next == free_.end() || next->first >= offset + bytes, "a buffer is given back once");
  if (next != free_.end() && next->first == offset + bytes) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    WEIR_CHECK(before->first + before->second <= offset, "a buffer is given back once");
    if (before->first + before->second == offset) {
      before->second += bytes;
      return;
    }
  }
  free_[offset] = bytes;
}

uint64_t Arena::used_bytes() const {
  const std::lock_guard lock(mutex_);
  return used_bytes_;
}

uint64_t Arena::used_bytes_max() const {
  const std::lock_guard lock(mutex_);
  return used_bytes_max_;
}

uint64_t Arena::buffer_count() const {
  const std::lock_guard lock(mutex_);
  return buffer_count_;
}

uint64_t Arena::refused_count() const {
  const std::lock_guard lock(mutex_);
  return refused_count_;
}

uint64_t Arena::huge_bytes() const {
  if (hugetlb_) return capacity_bytes_;
  // The kernel may have merged our mapping with its neighbours or split it: any overlap counts.
  std::ifstream file("/proc/self/smaps");
  const uint64_t begin = reinterpret_cast<uintptr_t>(base_);
  const uint64_t end = begin + capacity_bytes_;
  uint64_t huge = 0;
  bool ours = false;
  std::string line;
  while (std::getline(file, line)) {
    unsigned long long first = 0, last = 0, kib = 0;
    if (std::sscanf(line.c_str(), "%llx-%llx ", &first, &last) == 2)
      ours = first < end && last > begin;
    else if (ours && std::sscanf(line.c_str(), "AnonHugePages: %llu kB", &kib) == 1)
      huge += kib * 1024;
  }
  return std::min(huge, capacity_bytes_);
}

std::string Arena::describe() const {
  return fmt::format("{} bytes on {}", capacity_bytes_, pages_);
}

}  // namespace weir::offload
