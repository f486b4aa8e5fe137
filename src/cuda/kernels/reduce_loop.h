// SPDX-License-Identifier: Apache-2.0
// The loop of one thread of a reduction kernel. Elements are folded over the sources in their
// order; a vector of 16 bytes at a time where all buffers allow it, so that neighbouring threads
// read neighbouring vectors. All sources of an element are read before it is stored.
//
// Compiled by nvcc and by the host's compiler. Threads of one launch share nothing.
#pragma once

#include "cuda/kernels/reduce_pairs.h"

#ifdef __CUDACC__
#define WEIR_UNROLL _Pragma("unroll")
#define WEIR_ONE_BY_ONE _Pragma("unroll 1")
#else
#define WEIR_UNROLL
#define WEIR_ONE_BY_ONE
#endif

namespace weir::kernels {

template <class T>
struct alignas(kVectorBytes) Vector {
  using Lane = T;
  static constexpr uint32_t kLanes = kVectorBytes / sizeof(T);
  T lanes[kLanes];
};

template <class T>
WEIR_KERNEL Vector<T> load_vector(const void* from) {
#ifdef __CUDA_ARCH__
  return bits_as<Vector<T>>(*static_cast<const uint4*>(from));
#else
  Vector<T> vector;
  memcpy(&vector, from, sizeof vector);
  return vector;
#endif
}

template <class T>
WEIR_KERNEL void store_vector(void* to, const Vector<T>& vector) {
#ifdef __CUDA_ARCH__
  // A plain assignment would become four stores.
  __stwb(static_cast<uint4*>(to), bits_as<uint4>(vector));
#else
  memcpy(to, &vector, sizeof vector);
#endif
}

// A vector of elements: words of several of them where these are converted in pairs.
template <class Element>
using VectorOf = Vector<std::conditional_t<Element::kInPairs, uint32_t, typename Element::Stored>>;

template <class Element>
WEIR_KERNEL void widen_vector(const VectorOf<Element>& vector, typename Element::Wide* wide) {
  WEIR_UNROLL
  for (uint32_t i = 0; i < VectorOf<Element>::kLanes; ++i) {
    if constexpr (Element::kInPairs) {
      Element::widen_word(vector.lanes[i], wide + i * Element::kOfWord);
    } else {
      wide[i] = Element::widen(vector.lanes[i]);
    }
  }
}

template <class Element>
WEIR_KERNEL VectorOf<Element> narrow_vector(const typename Element::Wide* wide) {
  constexpr uint32_t kLanes = VectorOf<Element>::kLanes;
  VectorOf<Element> vector;
  if constexpr (Element::kInPairs) {
    constexpr uint32_t kOfWord = Element::kOfWord;
    bool any_nan = false;
    WEIR_UNROLL
    for (uint32_t i = 0; i < kLanes; ++i) {
      vector.lanes[i] = Element::narrow_word(wide + i * kOfWord);
    }
    WEIR_UNROLL
    for (uint32_t i = 0; i < kLanes * kOfWord; i += 2) {
      any_nan |= is_nan(wide[i]) | is_nan(wide[i + 1]);
    }
    if (any_nan) {
      WEIR_UNROLL
      for (uint32_t i = 0; i < kLanes * kOfWord; ++i) {
        uint32_t& word = vector.lanes[i / kOfWord];
        if (is_nan(wide[i])) word = Element::with_nan(word, i % kOfWord);
      }
    }
  } else {
    WEIR_UNROLL
    for (uint32_t i = 0; i < kLanes; ++i) vector.lanes[i] = Element::narrow(wide[i]);
  }
  return vector;
}

template <class Element, ReduceFold kFold>
struct Reduction {
  using Stored = typename Element::Stored;
  using Wide = typename Element::Wide;
  using Lane = typename VectorOf<Element>::Lane;
  static constexpr uint32_t kLanes = Vector<Stored>::kLanes;

  static WEIR_KERNEL Wide factor(const ReduceArguments& a, uint32_t source) {
    Stored scale;
    if (a.scaled == kScaledByMemory) {
      scale = *reinterpret_cast<const Stored*>(static_cast<uintptr_t>(a.scales[source]));
    } else {
      memcpy(&scale, &a.scales[source], sizeof scale);
    }
    return Element::widen(scale);
  }

  static WEIR_KERNEL const Stored* source(const ReduceArguments& a, uint32_t s, uint64_t at) {
    return static_cast<const Stored*>(a.sources[s]) + at;
  }

  static WEIR_KERNEL Wide operand(const ReduceArguments& a, uint32_t s, uint64_t at) {
    const Wide wide = Element::widen(*source(a, s, at));
    if constexpr (kFold == ReduceFold::kSum) {
      if (a.scaled != 0) {
        return Element::widen(Element::narrow(Element::multiply(wide, factor(a, s))));
      }
    }
    return wide;
  }

  static WEIR_KERNEL void operands(const ReduceArguments& a, uint32_t s, uint64_t at, Wide* wide) {
    widen_vector<Element>(load_vector<Lane>(source(a, s, at)), wide);
    if constexpr (kFold == ReduceFold::kSum) {
      if (a.scaled == 0) return;
      const Wide scale = factor(a, s);
      WEIR_UNROLL
      for (uint32_t i = 0; i < kLanes; ++i) wide[i] = Element::multiply(wide[i], scale);
      widen_vector<Element>(narrow_vector<Element>(wide), wide);
    }
  }

  static WEIR_KERNEL void one(const ReduceArguments& a, uint64_t at) {
    Wide total = operand(a, 0, at);
    WEIR_ONE_BY_ONE
    for (uint32_t s = 1; s < a.source_count; ++s) {
      total = Element::template fold<kFold>(total, operand(a, s, at));
    }
    if constexpr (kFold == ReduceFold::kSum) {
      if (a.divisor != 1) total = Element::divide(total, a.divisor);
    }
    const Stored stored = Element::narrow(total);
    WEIR_ONE_BY_ONE
    for (uint32_t d = 0; d < a.destination_count; ++d) {
      static_cast<Stored*>(a.destinations[d])[at] = stored;
    }
  }

  static WEIR_KERNEL void one_vector(const ReduceArguments& a, uint64_t at) {
    Wide totals[kLanes];
    operands(a, 0, at, totals);
    WEIR_ONE_BY_ONE
    for (uint32_t s = 1; s < a.source_count; ++s) {
      Wide next[kLanes];
      operands(a, s, at, next);
      WEIR_UNROLL
      for (uint32_t i = 0; i < kLanes; ++i) {
        totals[i] = Element::template fold<kFold>(totals[i], next[i]);
      }
    }
    if constexpr (kFold == ReduceFold::kSum) {
      if (a.divisor != 1) {
        WEIR_UNROLL
        for (uint32_t i = 0; i < kLanes; ++i) totals[i] = Element::divide(totals[i], a.divisor);
      }
    }
    const VectorOf<Element> vector = narrow_vector<Element>(totals);
    WEIR_ONE_BY_ONE
    for (uint32_t d = 0; d < a.destination_count; ++d) {
      store_vector(static_cast<Stored*>(a.destinations[d]) + at, vector);
    }
  }

  static WEIR_KERNEL void run(const ReduceArguments& a, uint64_t thread, uint64_t thread_count) {
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
