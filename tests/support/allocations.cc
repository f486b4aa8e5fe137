// SPDX-License-Identifier: Apache-2.0
#include "support/allocations.h"

#include <cstdlib>
#include <new>

namespace {
thread_local uint64_t t_allocations = 0;
}  // namespace

uint64_t weir::test::allocation_count() { return t_allocations; }

void* operator new(std::size_t bytes) {
  ++t_allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  ++t_allocations;
  return std::malloc(bytes);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
