// SPDX-License-Identifier: Apache-2.0
#include "plugins/shm/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <linux/memfd.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace weir::plugins::shm {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// Bytes in huge pages that are reserved on this machine and free.
uint64_t free_huge_bytes() {
  FILE* file = fopen("/proc/meminfo", "re");
  if (file == nullptr) return 0;
  char line[128];
  unsigned long long free_pages = 0;
  unsigned long long page_kib = 0;
  while (fgets(line, sizeof line, file) != nullptr) {
    sscanf(line, "HugePages_Free: %llu", &free_pages);
    sscanf(line, "Hugepagesize: %llu", &page_kib);
  }
  fclose(file);
  return page_kib * 1024 == kHugePageBytes ? free_pages * kHugePageBytes : 0;
}

int sized_and_sealed(unsigned flags, uint64_t bytes) {
  int fd = memfd_create("weir", flags | MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
  if (fd < 0 && errno == EINVAL) {  // before Linux 6.3
    fd = memfd_create("weir", flags | MFD_CLOEXEC | MFD_ALLOW_SEALING);
  }
  if (fd < 0) return -1;
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0 || fcntl(fd, F_ADD_SEALS, kSeals) != 0) {
    const int error_number = errno;
    close(fd);
    errno = error_number;
    return -1;
  }
  return fd;
}

}  // namespace

uint64_t page_bytes() {
  static const uint64_t bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

uint64_t round_to_pages(uint64_t bytes) {
  const uint64_t unit = bytes >= kHugePageBytes ? kHugePageBytes : page_bytes();
  if (bytes == 0) return unit;
  if (bytes > UINT64_MAX - unit) return 0;
  return (bytes + unit - 1) / unit * unit;
}

weir_result_t create_memory(const Report& report, uint64_t bytes, bool huge, int* fd) {
  if (bytes > INT64_MAX) {
    return report.fail(WEIR_ERROR_NO_MEMORY, "shm: %llu bytes of shared memory are too many",
                       static_cast<unsigned long long>(bytes));
  }
  if (huge && bytes % kHugePageBytes == 0 && free_huge_bytes() >= bytes) {
    const int huge_fd = sized_and_sealed(MFD_HUGETLB | MFD_HUGE_2MB, bytes);
    if (huge_fd >= 0) {
      // Mapping reserves the pages for the file; without that a later touch could kill a process.
      void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, huge_fd, 0);
      if (base != MAP_FAILED) {
        munmap(base, bytes);
        *fd = huge_fd;
        return WEIR_OK;
      }
      close(huge_fd);
    }
  }
  *fd = sized_and_sealed(0, bytes);
  return *fd >= 0 ? WEIR_OK : report.fail_errno("memfd_create");
}

weir_result_t map_memory(const Report& report, int fd, uint64_t bytes, uint64_t huge_bytes,
                         Mapping* mapping) {
  struct stat status;
  if (fstat(fd, &status) != 0) return report.fail_errno("fstat of the shared memory");
  if (status.st_size < 0 || static_cast<uint64_t>(status.st_size) != bytes) {
    return report.fail(WEIR_ERROR_MISMATCH, "shm: shared memory has %lld bytes, %llu expected",
                       static_cast<long long>(status.st_size),
                       static_cast<unsigned long long>(bytes));
  }
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) {
    return report.fail(WEIR_ERROR_REFUSED, "shm: the descriptor received is not a sealed memfd");
  }
  struct statfs file_system;
  const bool hugetlb = fstatfs(fd, &file_system) == 0 && file_system.f_type == HUGETLBFS_MAGIC;
  // Huge pages need the address aligned like the offset: reserve more, place, give the rest back.
  const bool align = hugetlb || huge_bytes >= kHugePageBytes;
  const uint64_t slack = align ? kHugePageBytes : 0;
  if (bytes > SIZE_MAX - slack) return report.fail(WEIR_ERROR_NO_MEMORY, "shm: mapping too large");
  void* reserved =
      mmap(nullptr, bytes + slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return report.fail_errno("mmap of address space");
  const auto start = reinterpret_cast<uintptr_t>(reserved);
  const uintptr_t base =
      align ? (start + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes : start;
  void* mapped = mmap(reinterpret_cast<void*>(base), bytes, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_FIXED | (hugetlb ? 0 : MAP_NORESERVE), fd, 0);
  if (mapped == MAP_FAILED) {
    const int error_number = errno;
    munmap(reserved, bytes + slack);
    errno = error_number;
    return report.fail_errno("mmap of the shared memory");
  }
  if (base > start) munmap(reserved, base - start);
  if (base - start < slack) munmap(reinterpret_cast<void*>(base + bytes), slack - (base - start));
  // Advice only: where the kernel has no huge pages for shared memory, small ones serve.
  if (align && !hugetlb) madvise(mapped, huge_bytes < bytes ? huge_bytes : bytes, MADV_HUGEPAGE);
  mapping->base = static_cast<unsigned char*>(mapped);
  mapping->bytes = bytes;
  return WEIR_OK;
}

void collapse_memory(unsigned char* base, uint64_t bytes) {
  // The kernel fills up a huge page that has begun, but makes none out of nothing.
  for (uint64_t i = 0; i < bytes; i += kHugePageBytes) {
    (void)*static_cast<volatile unsigned char*>(base + i);
  }
  madvise(base, bytes, MADV_COLLAPSE);
}

void unmap_memory(Mapping* mapping) {
  if (mapping->base != nullptr) munmap(mapping->base, mapping->bytes);
  *mapping = Mapping();
}

}  // namespace weir::plugins::shm
