// SPDX-License-Identifier: Apache-2.0
#include "core/engine/context.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace weir::engine {
namespace {

constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;

// Shared memory of two ranks, of which nothing is in place yet.
class Segment {
 public:
  explicit Segment(uint64_t stride_bytes) : stride_bytes_(stride_bytes) {
    const int fd = memfd_create("context_test", MFD_CLOEXEC);
    EXPECT_EQ(ftruncate(fd, static_cast<off_t>(2 * stride_bytes)), 0);
    reserved_ = mmap(nullptr, 2 * stride_bytes + kHugePageBytes, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    const auto start = reinterpret_cast<uintptr_t>(reserved_);
    base_ = reinterpret_cast<unsigned char*>((start + kHugePageBytes - 1) / kHugePageBytes *
                                             kHugePageBytes);
    EXPECT_EQ(mmap(base_, 2 * stride_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0),
              base_);
    close(fd);
  }
  ~Segment() { munmap(reserved_, 2 * stride_bytes_ + kHugePageBytes); }
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  Context context_of(Rank rank) const {
    Context context;
    context.rank = rank;
    context.rank_count = 2;
    context.segment_base = base_;
    context.segment_stride_bytes = stride_bytes_;
    context.staging_bytes = stride_bytes_ - kStagingOffset;
    context.lacks_huge_pages = true;
    return context;
  }
  uint64_t bytes_in_place(Rank rank) const {
    std::vector<unsigned char> pages(stride_bytes_ / 4096);
    EXPECT_EQ(mincore(base_ + rank * stride_bytes_, stride_bytes_, pages.data()), 0);
    return 4096 * static_cast<uint64_t>(std::count_if(
                      pages.begin(), pages.end(), [](unsigned char p) { return (p & 1) != 0; }));
  }
  // Whether this kernel makes huge pages of shared memory on request.
  static bool are_huge_pages_given() {
    const Segment other(kHugePageBytes);
    (void)*static_cast<volatile unsigned char*>(other.base_);
    return madvise(other.base_, kHugePageBytes, MADV_COLLAPSE) == 0;
  }

 private:
  const uint64_t stride_bytes_;
  void* reserved_ = nullptr;
  unsigned char* base_ = nullptr;
};

TEST(Context, ARankAsksForTheHugePagesOfItsOwnPartOnceAndNotBeforeTheyAreWanted) {
  constexpr uint64_t kStride = 2 * kHugePageBytes;
  const Segment segment(kStride);
  Context context = segment.context_of(1);
  context.publish_done();
  EXPECT_EQ(segment.bytes_in_place(1), 4096u);
  std::memset(context.staging(1), 7, 100);
  context.want_huge_pages();
  EXPECT_FALSE(context.lacks_huge_pages);
  EXPECT_EQ(std::count(context.staging(1), context.staging(1) + 100, 7), 100);
  EXPECT_EQ(segment.bytes_in_place(0), 0u);
  if (!Segment::are_huge_pages_given()) GTEST_SKIP() << "this kernel gives none";
  EXPECT_EQ(segment.bytes_in_place(1), kStride);
}

TEST(Context, PartsThatAreNoHugePagesOrVeryLargeStayAsTheyAre) {
  for (const uint64_t stride : {kHugePageBytes + 4096 * 16, uint64_t{128} << 20}) {
    const Segment segment(stride);
    Context context = segment.context_of(0);
    context.want_huge_pages();
    EXPECT_FALSE(context.lacks_huge_pages);
    EXPECT_EQ(segment.bytes_in_place(0), 0u);
  }
}

}  // namespace
}  // namespace weir::engine
