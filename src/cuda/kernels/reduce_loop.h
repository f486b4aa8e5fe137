// SPDX-License-Identifier: Apache-2.0
// The loop of one thread of a reduction kernel. Elements are folded over the sources in their
// order; a vector of 16 bytes at a time where all buffers allow it, so that neighbouring threads
// read neighbouring vectors. All sources of an element are read before it is stored.
//
// Compiled by nvcc and by the host's compiler. Threads of one launch share nothing.
#pragma once

#include "cuda/kernels/reduce_elements.h"

#ifdef __CUDACC__
#define WEIR_UNROLL _Pragma("unroll")
#define WEIR_ONE_BY_ONE _Pragma("unroll 1")
#else
#define WEIR_UNROLL
#define WEIR_ONE_BY_ONE
#endif

namespace weir::kernels {

template <class Stored>
struct alignas(kVectorBytes) Vector {
  static constexpr uint32_t kLanes = kVectorBytes / sizeof(Stored);
  Stored lanes[kLanes];
};

template <class Stored>
WEIR_KERNEL Vector<Stored> load_vector(const Stored* from) {
#ifdef __CUDA_ARCH__
  return bits_as<Vector<Stored>>(*reinterpret_cast<const uint4*>(from));
#else
  Vector<Stored> vector;
  memcpy(&vector, from, sizeof vector);
  return vector;
#endif
}

template <class Stored>
WEIR_KERNEL void store_vector(Stored* to, const Vector<Stored>& vector) {
#ifdef __CUDA_ARCH__
  // A plain assignment would become four stores.
  __stwb(reinterpret_cast<uint4*>(to), bits_as<uint4>(vector));
#else
  memcpy(to, &vector, sizeof vector);
#endif
}

template <class Element, ReduceFold kFold>
struct Reduction {
  using Stored = typename Element::Stored;
  using Wide = typename Element::Wide;

  static WEIR_KERNEL Wide operand(const ReduceArguments& a, uint32_t source, Stored stored) {
    const Wide wide = Element::widen(stored);
    if constexpr (kFold == ReduceFold::kSum) {
      if (a.scaled != 0) {
        Stored scale;
        if (a.scaled == kScaledByMemory) {
          scale = *reinterpret_cast<const Stored*>(static_cast<uintptr_t>(a.scales[source]));
        } else {
          memcpy(&scale, &a.scales[source], sizeof scale);
        }
        return Element::widen(Element::narrow(Element::multiply(wide, Element::widen(scale))));
      }
    }
    return wide;
  }

  static WEIR_KERNEL Stored finish(const ReduceArguments& a, Wide total) {
    if constexpr (kFold == ReduceFold::kSum) {
      if (a.divisor != 1) total = Element::divide(total, a.divisor);
    }
    return Element::narrow(total);
  }

  static WEIR_KERNEL const Stored* source(const ReduceArguments& a, uint32_t s, uint64_t at) {
    return static_cast<const Stored*>(a.sources[s]) + at;
  }

  static WEIR_KERNEL void one(const ReduceArguments& a, uint64_t at) {
    Wide total = operand(a, 0, *source(a, 0, at));
    WEIR_ONE_BY_ONE
    for (uint32_t s = 1; s < a.source_count; ++s) {
      total = Element::template fold<kFold>(total, operand(a, s, *source(a, s, at)));
    }
    const Stored stored = finish(a, total);
    WEIR_ONE_BY_ONE
    for (uint32_t d = 0; d < a.destination_count; ++d) {
      static_cast<Stored*>(a.destinations[d])[at] = stored;
    }
  }

  static WEIR_KERNEL void one_vector(const ReduceArguments& a, uint64_t at) {
    constexpr uint32_t kLanes = Vector<Stored>::kLanes;
    Wide totals[kLanes];
    Vector<Stored> vector = load_vector(source(a, 0, at));
    WEIR_UNROLL
    for (uint32_t i = 0; i < kLanes; ++i) totals[i] = operand(a, 0, vector.lanes[i]);
    WEIR_ONE_BY_ONE
    for (uint32_t s = 1; s < a.source_count; ++s) {
      vector = load_vector(source(a, s, at));
      WEIR_UNROLL
      for (uint32_t i = 0; i < kLanes; ++i) {
        totals[i] = Element::template fold<kFold>(totals[i], operand(a, s, vector.lanes[i]));
      }
    }
    WEIR_UNROLL
    for (uint32_t i = 0; i < kLanes; ++i) {
      vector.lanes[i] = finish(a, totals[i]);
    }
    WEIR_ONE_BY_ONE
    for (uint32_t d = 0; d < a.destination_count; ++d) {
      store_vector(static_cast<Stored*>(a.destinations[d]) + at, vector);
    }
  }

  static WEIR_KERNEL void run(const ReduceArguments& a, uint64_t thread, uint64_t thread_count) {
    constexpr uint64_t kLanes = Vector<Stored>::kLanes;
    const uint64_t vector_count = (a.count - a.head_count) / kLanes;
    WEIR_ONE_BY_ONE
    for (uint64_t v = thread; v < vector_count; v += thread_count) {
      one_vector(a, a.head_count + v * kLanes);
    }
    const uint64_t in_vectors = vector_count * kLanes;
    WEIR_ONE_BY_ONE
    for (uint64_t i = thread; i < a.count - in_vectors; i += thread_count) {
      one(a, i < a.head_count ? i : i + in_vectors);
    }
  }
};

template <class Element>
WEIR_KERNEL void reduce(const ReduceArguments& a, uint64_t thread, uint64_t thread_count) {
  switch (a.fold) {
    case ReduceFold::kSum:
      return Reduction<Element, ReduceFold::kSum>::run(a, thread, thread_count);
    case ReduceFold::kProd:
      return Reduction<Element, ReduceFold::kProd>::run(a, thread, thread_count);
    case ReduceFold::kMax:
      return Reduction<Element, ReduceFold::kMax>::run(a, thread, thread_count);
    case ReduceFold::kMin:
      return Reduction<Element, ReduceFold::kMin>::run(a, thread, thread_count);
  }
}

}  // namespace weir::kernels
