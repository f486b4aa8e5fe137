// SPDX-License-Identifier: Apache-2.0
#include "cuda/kernels/reduce_host.h"
#include "nccl/kernels/kernel_runner.h"

namespace weir::kernels::test {

void* allocate(size_t bytes) { return ::operator new(bytes); }
void release(void* memory) { ::operator delete(memory); }

void run(uint32_t type, const ReduceArguments& arguments, unsigned blocks) {
  reduce_on_host(type, arguments, uint64_t{blocks} * kBlockThreads);
}

}  // namespace weir::kernels::test
