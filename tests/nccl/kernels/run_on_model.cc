// SPDX-License-Identifier: Apache-2.0
// As functions of the host, as they are compiled for devices that convert small floats in pairs,
// with a model of the instructions.
#include "cuda/kernels/reduce_host.h"
#include "cuda/kernels/reduce_loop.h"
#include "nccl/kernels/instruction_model.h"
#include "nccl/kernels/kernel_runner.h"

namespace weir::kernels::test {

namespace {

template <class Element>
void run_pairs(const ReduceArguments& arguments, uint64_t thread_count) {
  for (uint64_t i = 0; i < thread_count; ++i) reduce<Element>(arguments, i, thread_count);
}

}  // namespace

void* allocate(size_t bytes) { return ::operator new(bytes); }
void release(void* memory) { ::operator delete(memory); }

void run(uint32_t type, const ReduceArguments& arguments, unsigned blocks) {
  const uint64_t thread_count = uint64_t{blocks} * kBlockThreads;
  switch (type) {  // as kReduceNames
    case 6:
      return run_pairs<PairedFloat16<ModelInstructions>>(arguments, thread_count);
    case 9:
      return run_pairs<PairedBfloat16<ModelInstructions>>(arguments, thread_count);
    case 10:
      return run_pairs<PairedFloat8E4M3<ModelInstructions>>(arguments, thread_count);
    case 11:
      return run_pairs<PairedFloat8E5M2<ModelInstructions>>(arguments, thread_count);
    default:
      return reduce_on_host(type, arguments, thread_count);
  }
}

}  // namespace weir::kernels::test
