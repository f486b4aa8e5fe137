// SPDX-License-Identifier: Apache-2.0
#include "cuda/kernels/reduce_layout.h"

#include <algorithm>

namespace weir::kernels {

unsigned lay_out(ReduceArguments* a, size_t element_bytes) {
  const auto offset = [](const void* pointer) {
    return reinterpret_cast<uintptr_t>(pointer) % kVectorBytes;
  };
  const uintptr_t first = offset(a->destinations[0]);
  const bool alike = std::all_of(a->sources, a->sources + a->source_count,
                                 [&](const void* it) { return offset(it) == first; }) &&
                     std::all_of(a->destinations, a->destinations + a->destination_count,
                                 [&](const void* it) { return offset(it) == first; });
  const uint64_t before = (kVectorBytes - first) % kVectorBytes / element_bytes;
  a->head_count = alike ? std::min<uint64_t>(before, a->count) : a->count;
  const uint64_t lanes = kVectorBytes / element_bytes;
  const uint64_t vectors = (a->count - a->head_count) / lanes;
  const uint64_t work = std::max(vectors, a->count - vectors * lanes);
  const uint64_t blocks = (work + kBlockThreads - 1) / kBlockThreads;
  return static_cast<unsigned>(std::clamp<uint64_t>(blocks, 1, kBlocksMax));
}

}  // namespace weir::kernels
