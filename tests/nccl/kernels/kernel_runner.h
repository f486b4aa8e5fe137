// SPDX-License-Identifier: Apache-2.0
// Where the tests of the reduction kernels run them: as functions of the host, or on a device. For
// one thread.
#pragma once

#include <cstddef>
#include <new>

#include "cuda/kernels/reduce_arguments.h"

namespace weir::kernels::test {

// Memory that the kernels and the host reach.
void* allocate(size_t bytes);
void release(void* memory);

// A launch, to its end. `type`: an index of kReduceNames.
void run(uint32_t type, const ReduceArguments& arguments, unsigned blocks);

template <typename T>
struct Allocator {
  using value_type = T;
  Allocator() = default;
  template <typename U>
  Allocator(const Allocator<U>& /*other*/) {}  // NOLINT: as the standard wants it
  T* allocate(size_t count) { return static_cast<T*>(test::allocate(count * sizeof(T))); }
  void deallocate(T* memory, size_t /*count*/) { release(memory); }
  bool operator==(const Allocator& /*other*/) const { return true; }
};

}  // namespace weir::kernels::test
