// SPDX-License-Identifier: Apache-2.0
#include "cuda/kernels/reduce_host.h"

#include "cuda/kernels/reduce_loop.h"

namespace weir::kernels {

namespace {

template <class Element>
void run(const ReduceArguments& arguments, uint64_t thread_count) {
  for (uint64_t i = 0; i < thread_count; ++i) reduce<Element>(arguments, i, thread_count);
}

using Run = void (*)(const ReduceArguments& arguments, uint64_t thread_count);

// As kReduceNames.
constexpr Run kRuns[] = {run<IntegerMath<int8_t, uint8_t>>,
                         run<IntegerMath<uint8_t, uint8_t>>,
                         run<IntegerMath<int32_t, uint32_t>>,
                         run<IntegerMath<uint32_t, uint32_t>>,
                         run<IntegerMath<int64_t, uint64_t>>,
                         run<IntegerMath<uint64_t, uint64_t>>,
                         run<Float16>,
                         run<Float<float>>,
                         run<Float<double>>,
                         run<Bfloat16>,
                         run<Float8E4M3>,
                         run<Float8E5M2>};
static_assert(sizeof kRuns / sizeof kRuns[0] == kReduceCount);

}  // namespace

void reduce_on_host(uint32_t type, const ReduceArguments& arguments, uint64_t thread_count) {
  kRuns[type](arguments, thread_count);
}

}  // namespace weir::kernels
