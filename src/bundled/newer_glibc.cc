// SPDX-License-Identifier: Apache-2.0
// Functions of a C library that is newer than the oldest one on which Weir loads (2.34), for what
// GCC's static libraries call.
//
// _dl_find_object (2.35): by it the unwinder finds the tables of a function. Exceptions are thrown
// and caught within the library: its own tables are found without the loader, whose lock another
// thread may hold in a forked child.
//
// arc4random (2.36): for std::random_device.
#include <dlfcn.h>
#include <link.h>
#include <sys/random.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>

#if defined(DLFO_STRUCT_HAS_EH_DBASE)  // glibc has it, so that GCC's unwinder calls it

// The file's first bytes in memory, from the linker.
extern "C" __attribute__((visibility("hidden"))) const ElfW(Ehdr) own_header
    __asm__("__ehdr_start");

namespace {

struct Search {
  uintptr_t at;
  struct dl_find_object* found;
};

// Fills in `found` when the address lies in this library, and ends the iteration then.
int look_at(struct dl_phdr_info* library, size_t, void* argument) {
  const Search& search = *static_cast<Search*>(argument);
  uintptr_t begin = UINTPTR_MAX, end = 0;
  const ElfW(Phdr)* tables = nullptr;
  bool is_here = false;
  for (int i = 0; i < library->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = library->dlpi_phdr[i];
    if (segment.p_type == PT_GNU_EH_FRAME) tables = &segment;
    if (segment.p_type != PT_LOAD) continue;
    const uintptr_t first = library->dlpi_addr + segment.p_vaddr;
    const uintptr_t last = first + segment.p_memsz;
    begin = first < begin ? first : begin;
    end = last > end ? last : end;
    if (search.at >= first && search.at < last) is_here = true;
  }
  if (!is_here) return 0;
  if (tables == nullptr) return -1;
  search.found->dlfo_map_start = reinterpret_cast<void*>(begin);
  search.found->dlfo_map_end = reinterpret_cast<void*>(end);
  search.found->dlfo_eh_frame = reinterpret_cast<void*>(library->dlpi_addr + tables->p_vaddr);
  return 1;
}

int look_at_own(Search* search) {
  const auto base = reinterpret_cast<uintptr_t>(&own_header);
  struct dl_phdr_info own = {};
  own.dlpi_addr = base;
  own.dlpi_phdr = reinterpret_cast<const ElfW(Phdr)*>(base + own_header.e_phoff);
  own.dlpi_phnum = own_header.e_phnum;
  return look_at(&own, sizeof own, search);
}

}  // namespace

extern "C" __attribute__((visibility("hidden"))) int _dl_find_object(
    void* address, struct dl_find_object* result) noexcept {
  *result = {};
  Search search{reinterpret_cast<uintptr_t>(address), result};
  int found = look_at_own(&search);
  if (found == 0) found = dl_iterate_phdr(look_at, &search);
  return found == 1 ? 0 : -1;
}

#endif

extern "C" __attribute__((visibility("hidden"))) uint32_t arc4random() noexcept {
  uint32_t value = 0;
  while (getrandom(&value, sizeof value, 0) != ssize_t{sizeof value}) {
    if (errno != EINTR) abort();  // it must not return what can be guessed
  }
  return value;
}
