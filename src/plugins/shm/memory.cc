// SPDX-License-Identifier: Apache-2.0
#include "plugins/shm/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <linux/memfd.h>
#include <linux/mempolicy.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
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

uint64_t round_to_huge_pages(uint64_t bytes) {
  return (bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
}

bool is_hugetlb(int fd) {
  struct statfs file_system;
  return fstatfs(fd, &file_system) == 0 && file_system.f_type == HUGETLBFS_MAGIC;
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

weir_result_t create_memory(const Report& report, uint64_t bytes, uint64_t end_bytes, bool huge,
                            int* fd) {
  if (bytes > INT64_MAX - kHugePageBytes - end_bytes) {
    return report.fail(WEIR_ERROR_NO_MEMORY, "shm: %llu bytes of shared memory are too many",
                       static_cast<unsigned long long>(bytes));
  }
  const uint64_t whole_bytes = bytes + round_to_huge_pages(end_bytes);
  if (huge && bytes % kHugePageBytes == 0 && free_huge_bytes() >= whole_bytes) {
    const int huge_fd = sized_and_sealed(MFD_HUGETLB | MFD_HUGE_2MB, whole_bytes);
    if (huge_fd >= 0) {
      // Mapping reserves the pages for the file; without that a later touch could kill a process.
      void* base = mmap(nullptr, whole_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, huge_fd, 0);
      if (base != MAP_FAILED) {
        munmap(base, whole_bytes);
        *fd = huge_fd;
        return WEIR_OK;
      }
      close(huge_fd);
    }
  }
  *fd = sized_and_sealed(0, bytes + end_bytes);
  return *fd >= 0 ? WEIR_OK : report.fail_errno("memfd_create");
}

weir_result_t check_memory(const Report& report, int fd, uint64_t* bytes) {
  struct stat status;
  if (fstat(fd, &status) != 0) return report.fail_errno("fstat of the shared memory");
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals || status.st_size < 0) {
    return report.fail(WEIR_ERROR_REFUSED, "shm: the descriptor received is not a sealed memfd");
  }
  *bytes = static_cast<uint64_t>(status.st_size);
  return WEIR_OK;
}

weir_result_t map_end(const Report& report, int fd, uint64_t memory_bytes, uint64_t end_bytes,
                      Mapping* mapping, unsigned char** end) {
  const uint64_t bytes = is_hugetlb(fd) ? round_to_huge_pages(end_bytes) : end_bytes;
  if (memory_bytes < bytes) {
    return report.fail(WEIR_ERROR_REFUSED, "shm: shared memory has %llu bytes, fewer than %llu",
                       static_cast<unsigned long long>(memory_bytes),
                       static_cast<unsigned long long>(bytes));
  }
  void* const mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                            static_cast<off_t>(memory_bytes - bytes));
  if (mapped == MAP_FAILED) return report.fail_errno("mmap of the end of the shared memory");
  mapping->base = static_cast<unsigned char*>(mapped);
  mapping->bytes = bytes;
  *end = mapping->base + (bytes - end_bytes);
  return WEIR_OK;
}

weir_result_t map_memory(const Report& report, int fd, uint64_t bytes, uint64_t huge_bytes,
                         Mapping* mapping) {
  const bool hugetlb = is_hugetlb(fd);
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
  // The kernel completes a huge page of which a part exists, but makes none from nothing.
  for (uint64_t i = 0; i < bytes; i += kHugePageBytes) {
    (void)*static_cast<volatile unsigned char*>(base + i);
  }
  madvise(base, bytes, MADV_COLLAPSE);
}

bool has_several_nodes() {
  FILE* file = fopen("/sys/devices/system/node/online", "re");
  if (file == nullptr) return false;
  char list[128] = "";
  const bool read = fgets(list, sizeof list, file) != nullptr;
  fclose(file);
  return read && strpbrk(list, ",-") != nullptr;
}

bool prefer_node(unsigned char* base, uint64_t bytes, int32_t node) {
  constexpr unsigned long kWordBits = 8 * sizeof(unsigned long);
  unsigned long nodes[1024 / kWordBits] = {};
  const auto bit = static_cast<unsigned long>(node);
  if (node < 0 || bit >= sizeof nodes * 8) return false;
  nodes[bit / kWordBits] = 1ul << bit % kWordBits;
  // The kernel counts one bit less than it is told.
  return syscall(SYS_mbind, base, bytes, MPOL_PREFERRED, nodes, sizeof nodes * 8 + 1, 0) == 0;
}

void unmap_memory(Mapping* mapping) {
  if (mapping->base != nullptr) munmap(mapping->base, mapping->bytes);
  *mapping = Mapping();
}

}  // namespace weir::plugins::shm
