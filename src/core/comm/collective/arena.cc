// SPDX-License-Identifier: Apache-2.0
#include "core/comm/collective/arena.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace weir::comm {

namespace {

constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;

Status no_address_space(uint64_t bytes) {
  const int error_number = errno;
  return Status(Code::kNoMemory, fmt::format("no address space for an arena of {} bytes: {}", bytes,
                                             std::strerror(error_number)));
}

// Address space at a multiple of a huge page, so that huge pages can serve it; nullptr: none.
unsigned char* reserve(uint64_t bytes, int protection) {
  const uint64_t slack = kHugePageBytes;
  void* reserved =
      mmap(nullptr, bytes + slack, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return nullptr;
  auto* start = static_cast<unsigned char*>(reserved);
  const uint64_t before = -reinterpret_cast<uintptr_t>(start) % kHugePageBytes;
  if (before > 0) munmap(start, before);
  if (before < slack) munmap(start + before + bytes, slack - before);
  return start + before;
}

uint64_t whole_pages(uint64_t bytes) { return (bytes + 4095) / 4096 * 4096; }

}  // namespace

Arena::Arena(const weir_segment_t& segment, unsigned char* own, uint64_t mapped_bytes,
             bool is_shared)
    : segment_(segment),
      own_(own),
      mapped_bytes_(mapped_bytes),
      is_shared_(is_shared),
      ranges_(segment.bytes_per_rank) {}

Arena::~Arena() { munmap(segment_.base, mapped_bytes_); }

void Arena::leave_to_parent(std::shared_ptr<Arena> arena) {
  munmap(arena->segment_.base, arena->mapped_bytes_);
  // Never destroyed.
  (void)new std::shared_ptr<Arena>(std::move(arena));
}

Result<std::shared_ptr<Arena>> Arena::of_segment(const weir_segment_t& segment, uint32_t own_rank,
                                                 uint32_t rank_count, uint64_t bytes) {
  const uint64_t mapped = segment.stride_bytes * rank_count;
  unsigned char* base = reserve(mapped, PROT_NONE);
  if (base == nullptr) return no_address_space(bytes);
  // With an old size of 0, the same shared pages appear a second time (mremap(2)).
  if (mremap(segment.base, 0, mapped, MREMAP_MAYMOVE | MREMAP_FIXED, base) == MAP_FAILED) {
    const int error_number = errno;
    munmap(base, mapped);
    return system_error(fmt::format("arena_create of {} bytes: mremap", bytes), error_number);
  }
  weir_segment_t own_view = segment;
  own_view.base = base;
  own_view.bytes_per_rank = bytes;
  return std::shared_ptr<Arena>(
      new Arena(own_view, base + own_rank * segment.stride_bytes, mapped, true));
}

Result<std::shared_ptr<Arena>> Arena::alone(uint64_t bytes) {
  const uint64_t mapped = whole_pages(bytes);
  unsigned char* base = reserve(mapped, PROT_READ | PROT_WRITE);
  if (base == nullptr) return no_address_space(bytes);
  weir_segment_t segment{};
  segment.base = base;
  segment.bytes_per_rank = bytes;
  return std::shared_ptr<Arena>(new Arena(segment, base, mapped, false));
}

Result<void*> Arena::allocate(uint64_t bytes) {
  if (bytes == 0) return invalid_argument("arena_alloc of 0 bytes");
  const std::lock_guard lock(mutex_);
  if (const auto offset = ranges_.allocate(bytes)) return static_cast<void*>(own_ + *offset);
  return Status(Code::kNoMemory,
                fmt::format("arena_alloc of {} bytes: {} of {} bytes are in use by {} buffers, and "
                            "the largest free piece has {} bytes; free some, or make a larger "
                            "arena",
                            bytes, ranges_.used_bytes(), ranges_.bytes(), ranges_.range_count(),
                            ranges_.largest_free_bytes()));
}

Status Arena::free(void* memory) {
  const auto* address = static_cast<const unsigned char*>(memory);
  if (address < own_ || address >= own_ + bytes()) {
    return invalid_argument(fmt::format("arena_free: {} does not lie in this arena, {} bytes at {}",
                                        memory, bytes(), static_cast<const void*>(own_)));
  }
  const std::lock_guard lock(mutex_);
  if (ranges_.free(static_cast<uint64_t>(address - own_))) return {};
  return invalid_argument(
      fmt::format("arena_free: {} lies in the arena, but no buffer that is in use begins there: it "
                  "was freed already, or weir_arena_alloc did not return it",
                  memory));
}

Arena::Usage Arena::usage() const {
  const std::lock_guard lock(mutex_);
  return {ranges_.bytes(), ranges_.used_bytes(), ranges_.largest_free_bytes(),
          ranges_.range_count()};
}

}  // namespace weir::comm
