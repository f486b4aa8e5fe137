// SPDX-License-Identifier: Apache-2.0
// The loop of every reduction kernel: all sources are read once, folded in registers, and written
// once. Included once per instruction set (foreach_target).

#if defined(WEIR_REDUCE_LOOP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEIR_REDUCE_LOOP_INL_H_
#undef WEIR_REDUCE_LOOP_INL_H_
#else
#define WEIR_REDUCE_LOOP_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/base/check.h"
#include "core/engine/reduce.h"
#include "core/engine/reduce_elements-inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace weir {
namespace HWY_NAMESPACE {
namespace {

inline constexpr size_t kLineBytes = 64;
// Vectors in a block of the long loop: enough to cover the latency of an addition and, with 64-byte
// vectors, four lines of each source.
inline constexpr size_t kUnroll = 4;

// Pointers of any alignment: the accesses are made of bytes. Highway reads a single lane through a
// typed pointer, so that one is copied first.
template <class D>
HWY_INLINE VecOf<D> load(D d, const uint8_t* from) {
  using T = hn::TFromD<D>;
  if constexpr (hn::MaxLanes(D()) == 1) {
    T lane;
    std::memcpy(&lane, from, sizeof(T));
    return hn::Set(d, lane);
  } else {
    return hn::LoadU(d, reinterpret_cast<const T*>(from));
  }
}

template <class D>
HWY_INLINE void store(D d, VecOf<D> v, uint8_t* to) {
  using T = hn::TFromD<D>;
  if constexpr (hn::MaxLanes(D()) == 1) {
    const T lane = hn::GetLane(v);
    std::memcpy(to, &lane, sizeof(T));
  } else {
    hn::StoreU(v, d, reinterpret_cast<T*>(to));
  }
}

// Stores past the caches. Highway rounds partial vectors up to 16 bytes, so those are stored as
// usual.
template <class D>
HWY_INLINE void store_streaming(D d, VecOf<D> v, uint8_t* to) {
  using T = hn::TFromD<D>;
  if constexpr (hn::MaxLanes(D()) * sizeof(T) >= 16) {
    hn::Stream(v, d, reinterpret_cast<T*>(to));
  } else {
    store(d, v, to);
  }
}

// Stores the first `count` lanes through a buffer.
template <class D>
HWY_INLINE VecOf<D> load_first(D d, const uint8_t* from, size_t count) {
  HWY_ALIGN uint8_t lanes[hn::MaxLanes(D()) * sizeof(hn::TFromD<D>)] = {};
  std::memcpy(lanes, from, count * sizeof(hn::TFromD<D>));
  return load(d, lanes);
}

template <class D>
HWY_INLINE void store_first(D d, VecOf<D> v, uint8_t* to, size_t count) {
  HWY_ALIGN uint8_t lanes[hn::MaxLanes(D()) * sizeof(hn::TFromD<D>)];
  store(d, v, lanes);
  std::memcpy(to, lanes, count * sizeof(hn::TFromD<D>));
}

// Truncates towards zero. Of constant size, because such loops are what compilers vectorize.
template <typename T, size_t kCount>
HWY_INLINE void divide_group(T (&lanes)[kCount], uint32_t divisor) {
  // 8 bits: for a < 256 and d < 256, a / d == (a * ceil(2^16 / d)) >> 16; larger d give 0.
  const uint32_t inverse = divisor < 256 ? (65535 + divisor) / divisor : 0;
  for (T& lane : lanes) {
    if constexpr (sizeof(T) == 1) {
      const int32_t value = lane;  // a number; NOLINT(bugprone-signed-char-misuse)
      const uint32_t magnitude = static_cast<uint32_t>(value < 0 ? -value : value);
      const int32_t quotient = static_cast<int32_t>((magnitude * inverse) >> 16);
      lane = static_cast<T>(value < 0 ? -quotient : quotient);
    } else if constexpr (sizeof(T) == 4) {
      // Exact after truncation: the quotient is 2^-32 or more away from the next integer.
      lane = static_cast<T>(static_cast<double>(lane) / static_cast<double>(divisor));
    } else {
      lane = static_cast<T>(lane / static_cast<T>(divisor));
    }
  }
}

template <typename T>
HWY_NOINLINE void divide_integers(uint8_t* at, size_t count, uint32_t divisor) {
  T lanes[kLineBytes / sizeof(T)] = {};
  size_t rest = count * sizeof(T);
  for (; rest >= sizeof(lanes); rest -= sizeof(lanes), at += sizeof(lanes)) {
    std::memcpy(lanes, at, sizeof(lanes));
    divide_group(lanes, divisor);
    std::memcpy(at, lanes, sizeof(lanes));
  }
  std::memcpy(lanes, at, rest);
  divide_group(lanes, divisor);
  std::memcpy(at, lanes, rest);
}

// One call's arguments in the form that the loop needs. With kSources == 0 it handles every call;
// otherwise it is the fast path for exactly that many sources, none of them scaled, without a
// divisor.
template <class Element, Fold kFold, uint32_t kSources>
class Reduction {
  using Stored = typename Element::Stored;
  using Wide = typename Element::Wide;
  using DWide = hn::CappedTag<Wide, HWY_MAX_BYTES / sizeof(Wide)>;
  static constexpr size_t kLanes = hn::MaxLanes(DWide());
  static constexpr size_t kBlock = kUnroll * kLanes;  // elements
  static constexpr size_t kLongCount = 2 * kBlock + kLineBytes / sizeof(Stored);
  static constexpr bool kPlain = kSources != 0;
  static constexpr bool kFloat = std::is_floating_point_v<Wide>;
  // Handling the end by halves of a vector is faster than through a buffer, but takes more code.
  static constexpr bool kEndByHalves = kPlain || sizeof(Stored) >= 4;

 public:
  HWY_INLINE explicit Reduction(const ReduceArgs& args)
      : dst_(static_cast<uint8_t*>(args.dst)),
        second_dst_(static_cast<uint8_t*>(args.second_dst)),
        sources_(reinterpret_cast<const uint8_t* const*>(args.sources)),
        source_count_(args.source_count),
        scaled_source_(args.scaled_source),
        streams_second_(args.second_streaming && (reinterpret_cast<uintptr_t>(dst_) -
                                                  reinterpret_cast<uintptr_t>(second_dst_)) %
                                                         kLineBytes ==
                                                     0) {
    if constexpr (kPlain) {
      for (uint32_t s = 0; s < kSources; ++s) fixed_[s] = sources_[s];
      return;
    }
    if (scaled_source_ != kNoSource) {
      const hn::CappedTag<Wide, 1> dw;
      const hn::Rebind<Stored, decltype(dw)> ds;
      const auto* scale = static_cast<const uint8_t*>(args.scale);
      factor_ = hn::GetLane(Element::widen(dw, load(ds, scale)));
    }
    if (kFloat && args.divisor != 1) {
      divisor_ = static_cast<Wide>(args.divisor);
      // Multiplying by the reciprocal of a power of two rounds the same real number.
      const bool is_power = (args.divisor & (args.divisor - 1)) == 0;
      reciprocal_ = is_power ? static_cast<Wide>(Wide{1} / divisor_) : Wide{0};
    }
  }

  HWY_INLINE void run(const ReduceArgs& args) const {
    const size_t count = args.element_count;
    if constexpr (kPlain) {
      size_t at = 0;
      if (HWY_UNLIKELY(count >= kLongCount)) at = run_long(count, args.streaming);
      run_ragged(at, count);
    } else if (!kFloat && args.divisor != 1) {
      run_and_divide(count, args.divisor);
    } else {
      run_apart(count >= kLongCount ? run_long(count, args.streaming) : 0, count);
    }
  }

 private:
  // Aligns dst, because stores that cross a line cost twice and non-temporal ones must not; then
  // all whole blocks. Returns the first element that is left.
  HWY_NOINLINE size_t run_long(size_t count, bool streaming) const {
    const size_t past_line = reinterpret_cast<uintptr_t>(dst_) % kLineBytes;
    const bool alignable = past_line % sizeof(Stored) == 0;
    size_t at = 0;
    if (alignable && past_line != 0) {
      at = (kLineBytes - past_line) / sizeof(Stored);
      run_apart(0, at);
    }
    return run_blocks(at, count, streaming && alignable);
  }

  HWY_INLINE size_t run_blocks(size_t at, size_t count, bool streaming) const {
    for (; at + kBlock <= count; at += kBlock) fold_block(at, streaming);
    if (streaming) hwy::FlushStream();
    return at;
  }

  // Integers are divided in a separate pass, while a piece of them is in the nearest cache: no
  // instruction set has a vector instruction for it. Nothing is streamed here.
  HWY_NOINLINE void run_and_divide(size_t count, uint32_t divisor) const {
    constexpr size_t kPieceCount = 4096 / sizeof(Stored);
    for (size_t at = 0; at < count; at += kPieceCount) {
      const size_t piece = count - at < kPieceCount ? count - at : kPieceCount;
      const size_t offset = at * sizeof(Stored);
      run_apart(at, at + piece);
      divide_integers<Stored>(dst_ + offset, piece, divisor);
      if (second_dst_ != nullptr) {
        std::memcpy(second_dst_ + offset, dst_ + offset, piece * sizeof(Stored));
      }
    }
  }

  HWY_NOINLINE void run_apart(size_t at, size_t end) const { run_ragged(at, end); }

  // Any count, without touching a byte outside the arrays.
  HWY_INLINE void run_ragged(size_t at, size_t end) const {
    for (; end - at >= kLanes; at += kLanes) fold_lanes(DWide(), at);
    if constexpr (kEndByHalves) {
      run_halves<kLanes / 2>(at, end);
    } else if (at != end) {
      fold_first(at, end - at);
    }
  }

  template <size_t kTailLanes>
  HWY_INLINE void run_halves(size_t at, size_t end) const {
    if constexpr (kTailLanes != 0) {
      if (end - at >= kTailLanes) {
        fold_lanes(hn::CappedTag<Wide, kTailLanes>(), at);
        at += kTailLanes;
      }
      run_halves<kTailLanes / 2>(at, end);
    }
  }

  HWY_INLINE uint32_t source_count() const { return kPlain ? kSources : source_count_; }
  HWY_INLINE const uint8_t* source(uint32_t s) const { return kPlain ? fixed_[s] : sources_[s]; }

  // In each of these, the loads of all sources come before any store, so that dst may be one of
  // them.

  HWY_INLINE void fold_block(size_t at, bool streaming) const {
    const DWide dw;
    const hn::Rebind<Stored, DWide> ds;
    constexpr size_t kBytes = kLanes * sizeof(Stored);
    const size_t offset = at * sizeof(Stored);
    const uint8_t* from = source(0) + offset;
    auto total0 = operand(dw, 0, load(ds, from));
    auto total1 = operand(dw, 0, load(ds, from + kBytes));
    auto total2 = operand(dw, 0, load(ds, from + 2 * kBytes));
    auto total3 = operand(dw, 0, load(ds, from + 3 * kBytes));
    for (uint32_t s = 1; s < source_count(); ++s) {
      from = source(s) + offset;
      total0 = fold<kFold, Element::kIgnoresNan>(dw, total0, operand(dw, s, load(ds, from)));
      total1 =
          fold<kFold, Element::kIgnoresNan>(dw, total1, operand(dw, s, load(ds, from + kBytes)));
      total2 = fold<kFold, Element::kIgnoresNan>(dw, total2,
                                                 operand(dw, s, load(ds, from + 2 * kBytes)));
      total3 = fold<kFold, Element::kIgnoresNan>(dw, total3,
                                                 operand(dw, s, load(ds, from + 3 * kBytes)));
    }
    const auto stored0 = finish(dw, total0);
    const auto stored1 = finish(dw, total1);
    const auto stored2 = finish(dw, total2);
    const auto stored3 = finish(dw, total3);
    uint8_t* to = dst_ + offset;
    if (streaming) {
      store_streaming(ds, stored0, to);
      store_streaming(ds, stored1, to + kBytes);
      store_streaming(ds, stored2, to + 2 * kBytes);
      store_streaming(ds, stored3, to + 3 * kBytes);
    } else {
      store(ds, stored0, to);
      store(ds, stored1, to + kBytes);
      store(ds, stored2, to + 2 * kBytes);
      store(ds, stored3, to + 3 * kBytes);
    }
    if (second_dst_ == nullptr) return;
    to = second_dst_ + offset;
    if (streaming && streams_second_) {
      store_streaming(ds, stored0, to);
      store_streaming(ds, stored1, to + kBytes);
      store_streaming(ds, stored2, to + 2 * kBytes);
      store_streaming(ds, stored3, to + 3 * kBytes);
      return;
    }
    store(ds, stored0, to);
    store(ds, stored1, to + kBytes);
    store(ds, stored2, to + 2 * kBytes);
    store(ds, stored3, to + 3 * kBytes);
  }

  template <class DW>
  HWY_INLINE void fold_lanes(DW dw, size_t at) const {
    const hn::Rebind<Stored, DW> ds;
    const size_t offset = at * sizeof(Stored);
    auto total = operand(dw, 0, load(ds, source(0) + offset));
    for (uint32_t s = 1; s < source_count(); ++s) {
      total = fold<kFold, Element::kIgnoresNan>(dw, total,
                                                operand(dw, s, load(ds, source(s) + offset)));
    }
    const auto stored = finish(dw, total);
    store(ds, stored, dst_ + offset);
    if (second_dst_ != nullptr) store(ds, stored, second_dst_ + offset);
  }

  HWY_INLINE void fold_first(size_t at, size_t count) const {
    const DWide dw;
    const hn::Rebind<Stored, DWide> ds;
    const size_t offset = at * sizeof(Stored);
    auto total = operand(dw, 0, load_first(ds, source(0) + offset, count));
    for (uint32_t s = 1; s < source_count(); ++s) {
      total = fold<kFold, Element::kIgnoresNan>(
          dw, total, operand(dw, s, load_first(ds, source(s) + offset, count)));
    }
    const auto stored = finish(dw, total);
    store_first(ds, stored, dst_ + offset, count);
    if (second_dst_ != nullptr) store_first(ds, stored, second_dst_ + offset, count);
  }

  template <class DW>
  HWY_INLINE VecOf<DW> operand(DW dw, uint32_t s, VecOf<hn::Rebind<Stored, DW>> lanes) const {
    const auto wide = Element::widen(dw, lanes);
    if constexpr (!kPlain) {
      if (HWY_UNLIKELY(s == scaled_source_)) {
        const auto scaled = Element::scale(dw, wide, hn::Set(dw, factor_));
        // The same value as when it is scaled in a separate call.
        if constexpr (kFloat && sizeof(Stored) < sizeof(Wide)) {
          return Element::widen(dw, Element::narrow(dw, canonical(dw, scaled)));
        }
        return scaled;
      }
    }
    return wide;
  }

  template <class DW>
  HWY_INLINE VecOf<hn::Rebind<Stored, DW>> finish(DW dw, VecOf<DW> total) const {
    if constexpr (!kPlain && kFloat) {
      if (divisor_ != Wide{1}) {
        total = reciprocal_ != Wide{0} ? hn::Mul(total, hn::Set(dw, reciprocal_))
                                       : hn::Div(total, hn::Set(dw, divisor_));
      }
    }
    return Element::narrow(dw, canonical(dw, total));
  }

  uint8_t* const dst_;
  uint8_t* const second_dst_;
  const uint8_t* const* const sources_;
  const uint32_t source_count_;
  const uint32_t scaled_source_;
  const bool streams_second_;
  const uint8_t* fixed_[kPlain ? kSources : 1] = {};
  Wide factor_{};
  Wide divisor_{1};  // of floating point
  Wide reciprocal_{};
};

// The fold of a single source is a copy of its bytes.
template <typename Stored>
HWY_NOINLINE void copy_source(const ReduceArgs& args) {
  const size_t bytes = args.element_count * sizeof(Stored);
  copy_bytes(args.dst, args.sources[0], bytes, args.streaming);
  if (args.second_dst != nullptr) copy_bytes(args.second_dst, args.sources[0], bytes, false);
}

// Two plain sources are folded as `Pair` where that is not void, all else as `General`.
template <class Pair, class General, Fold kFold>
void reduce(const ReduceArgs& args) {
  const bool plain = args.scaled_source == kNoSource && args.divisor == 1;
  if constexpr (!std::is_void_v<Pair>) {
    if (HWY_LIKELY(args.source_count == 2 && plain)) {
      return Reduction<Pair, kFold, 2>(args).run(args);
    }
  }
  WEIR_CHECK(args.source_count != 0 && args.divisor != 0, "a reduction has a source and a divisor");
  if (args.source_count == 1 && plain) return copy_source<typename General::Stored>(args);
  Reduction<General, kFold, 0>(args).run(args);
}

template <class PairSum, class PairProd, class General>
ReduceKernel kernel_of(Fold fold) {
  switch (fold) {
    case Fold::kSum:
      return &reduce<PairSum, General, Fold::kSum>;
    case Fold::kProd:
      return &reduce<PairProd, General, Fold::kProd>;
    case Fold::kMax:
      return &reduce<PairSum, General, Fold::kMax>;
    case Fold::kMin:
      return &reduce<PairSum, General, Fold::kMin>;
  }
  return nullptr;
}

// Whether the result of the fold is one of its operands.
constexpr bool chooses(Fold fold) { return fold == Fold::kMax || fold == Fold::kMin; }

// For the folds that choose.
template <class Element>
ReduceKernel choice_of(Fold fold) {
  return fold == Fold::kMax ? &reduce<Element, Element, Fold::kMax>
                            : &reduce<Element, Element, Fold::kMin>;
}

template <class Element>
ReduceKernel kernel_of(Fold fold) {
  return kernel_of<Element, Element, Element>(fold);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace weir
HWY_AFTER_NAMESPACE();

#endif  // WEIR_REDUCE_LOOP_INL_H_
