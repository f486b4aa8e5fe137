// SPDX-License-Identifier: Apache-2.0
// The loop of the kernels of tree.h. Included once per instruction set (foreach_target).

#if defined(WEIR_TREE_LOOP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEIR_TREE_LOOP_INL_H_
#undef WEIR_TREE_LOOP_INL_H_
#else
#define WEIR_TREE_LOOP_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/engine/reduce_loop-inl.h"
#include "core/engine/tree.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace weir {
namespace HWY_NAMESPACE {
namespace {

// kIsResult: dst has the element's type, else it is a partial result.
template <class Element, Fold kFold, bool kIsResult>
class Tree {
  using Stored = typename Element::Stored;
  using Wide = typename Element::Wide;
  static constexpr bool kFloat = std::is_floating_point_v<Wide>;
  // Partial results are stored wide. Those of bytes are bytes, though their products are not.
  static constexpr bool kWidens = kFloat && sizeof(Stored) < sizeof(Wide);
  using Partial = std::conditional_t<kWidens, Wide, Stored>;
  using Result = std::conditional_t<kIsResult, Stored, Partial>;
  using DWide = hn::CappedTag<Wide, HWY_MAX_BYTES / sizeof(Wide)>;
  static constexpr size_t kLanes = hn::MaxLanes(DWide());
  static constexpr size_t kBlock = kUnroll * kLanes;  // elements

 public:
  HWY_INLINE explicit Tree(const TreeArgs& args)
      : dst_(static_cast<uint8_t*>(args.dst)),
        operands_(args.operands),
        operand_count_(args.operand_count) {
    if (kFloat && kIsResult && args.divisor != 1) {
      divisor_ = static_cast<Wide>(args.divisor);
      const bool is_power = (args.divisor & (args.divisor - 1)) == 0;
      reciprocal_ = is_power ? static_cast<Wide>(Wide{1} / divisor_) : Wide{0};
    }
  }

  void run(const TreeArgs& args) const {
    if constexpr (!kFloat && kIsResult) {
      if (args.divisor != 1) return run_and_divide(args.element_count, args.divisor);
    }
    run_range(0, args.element_count, args.streaming);
  }

 private:
  // Aligns dst, because stores that cross a line cost twice and non-temporal ones must not.
  HWY_NOINLINE void run_range(size_t at, size_t end, bool streaming) const {
    const size_t past_line = reinterpret_cast<uintptr_t>(dst_ + at * sizeof(Result)) % kLineBytes;
    const bool is_long = end - at >= 2 * kBlock + kLineBytes;
    if (is_long && past_line % sizeof(Result) == 0 && past_line != 0) {
      const size_t head = at + (kLineBytes - past_line) / sizeof(Result);
      run_ragged(at, head);
      at = head;
    }
    streaming = streaming && is_long && past_line % sizeof(Result) == 0;
    for (; at + kBlock <= end; at += kBlock) fold_block(at, streaming);
    if (streaming) hwy::FlushStream();
    run_ragged(at, end);
  }

  void run_and_divide(size_t count, uint32_t divisor) const {
    constexpr size_t kPieceCount = 4096 / sizeof(Stored);
    for (size_t at = 0; at < count; at += kPieceCount) {
      const size_t piece = std::min(kPieceCount, count - at);
      run_range(at, at + piece, false);
      divide_integers<Stored>(dst_ + at * sizeof(Stored), piece, divisor);
    }
  }

  HWY_NOINLINE void run_ragged(size_t at, size_t end) const {
    for (; end - at >= kLanes; at += kLanes) fold_some<true>(at, kLanes);
    if (at != end) fold_some<false>(at, end - at);
  }

  HWY_INLINE VecOf<DWide> load_at(const TreeOperand& operand, size_t at) const {
    const DWide dw;
    const hn::Rebind<Stored, DWide> ds;
    const auto* from = static_cast<const uint8_t*>(operand.data);
    if constexpr (kWidens) {
      if (!operand.narrow) return load(dw, from + at * sizeof(Wide));
    }
    return Element::widen(dw, load(ds, from + at * sizeof(Stored)));
  }

  template <bool kWhole>
  HWY_INLINE VecOf<DWide> load_some(const TreeOperand& operand, size_t at, size_t count) const {
    if constexpr (kWhole) return load_at(operand, at);
    const DWide dw;
    const hn::Rebind<Stored, DWide> ds;
    const auto* from = static_cast<const uint8_t*>(operand.data);
    if constexpr (kWidens) {
      if (!operand.narrow) return load_first(dw, from + at * sizeof(Wide), count);
    }
    return Element::widen(dw, load_first(ds, from + at * sizeof(Stored), count));
  }

  // The lanes of dst.
  HWY_INLINE auto finish(VecOf<DWide> total) const {
    const DWide dw;
    if constexpr (kIsResult && kFloat) {
      if (divisor_ != Wide{1}) {
        total = reciprocal_ != Wide{0} ? hn::Mul(total, hn::Set(dw, reciprocal_))
                                       : hn::Div(total, hn::Set(dw, divisor_));
      }
    }
    if constexpr (std::is_same_v<Result, Wide>) {
      return canonical(dw, total);
    } else {
      return Element::narrow(dw, canonical(dw, total));
    }
  }

  static HWY_INLINE VecOf<DWide> fold_two(VecOf<DWide> a, VecOf<DWide> b) {
    return fold<kFold, false>(DWide(), a, b);
  }

  // In both of these the loads of all operands come before any store, so that dst may be one.

  HWY_INLINE void fold_block(size_t at, bool streaming) const {
    const DWide dw;
    const hn::Rebind<Result, DWide> dr;
    HWY_ALIGN Wide stack[kTreeDepth][kBlock];
    uint32_t depth = 0;
    auto total0 = load_at(operands_[0], at);
    auto total1 = load_at(operands_[0], at + kLanes);
    auto total2 = load_at(operands_[0], at + 2 * kLanes);
    auto total3 = load_at(operands_[0], at + 3 * kLanes);
    for (uint32_t k = 1; k < operand_count_; ++k) {
      const TreeOperand& operand = operands_[k];
      const auto next0 = load_at(operand, at);
      const auto next1 = load_at(operand, at + kLanes);
      const auto next2 = load_at(operand, at + 2 * kLanes);
      const auto next3 = load_at(operand, at + 3 * kLanes);
      if (operand.folds == 0) {
        Wide* top = stack[depth++];
        hn::Store(total0, dw, top);
        hn::Store(total1, dw, top + kLanes);
        hn::Store(total2, dw, top + 2 * kLanes);
        hn::Store(total3, dw, top + 3 * kLanes);
        total0 = next0;
        total1 = next1;
        total2 = next2;
        total3 = next3;
        continue;
      }
      total0 = fold_two(total0, next0);
      total1 = fold_two(total1, next1);
      total2 = fold_two(total2, next2);
      total3 = fold_two(total3, next3);
      for (uint32_t more = operand.folds; more > 1; --more) {
        const Wide* top = stack[--depth];
        total0 = fold_two(hn::Load(dw, top), total0);
        total1 = fold_two(hn::Load(dw, top + kLanes), total1);
        total2 = fold_two(hn::Load(dw, top + 2 * kLanes), total2);
        total3 = fold_two(hn::Load(dw, top + 3 * kLanes), total3);
      }
    }
    uint8_t* to = dst_ + at * sizeof(Result);
    constexpr size_t kBytes = kLanes * sizeof(Result);
    if (streaming) {
      store_streaming(dr, finish(total0), to);
      store_streaming(dr, finish(total1), to + kBytes);
      store_streaming(dr, finish(total2), to + 2 * kBytes);
      store_streaming(dr, finish(total3), to + 3 * kBytes);
      return;
    }
    store(dr, finish(total0), to);
    store(dr, finish(total1), to + kBytes);
    store(dr, finish(total2), to + 2 * kBytes);
    store(dr, finish(total3), to + 3 * kBytes);
  }

  // The next kLanes elements (kWhole), or fewer.
  template <bool kWhole>
  HWY_INLINE void fold_some(size_t at, size_t count) const {
    const DWide dw;
    const hn::Rebind<Result, DWide> dr;
    HWY_ALIGN Wide stack[kTreeDepth][kLanes];
    uint32_t depth = 0;
    auto total = load_some<kWhole>(operands_[0], at, count);
    for (uint32_t k = 1; k < operand_count_; ++k) {
      const TreeOperand& operand = operands_[k];
      const auto next = load_some<kWhole>(operand, at, count);
      if (operand.folds == 0) {
        hn::Store(total, dw, stack[depth++]);
        total = next;
        continue;
      }
      total = fold_two(total, next);
      for (uint32_t more = operand.folds; more > 1; --more) {
        total = fold_two(hn::Load(dw, stack[--depth]), total);
      }
    }
    uint8_t* to = dst_ + at * sizeof(Result);
    if constexpr (kWhole) {
      store(dr, finish(total), to);
    } else {
      store_first(dr, finish(total), to, count);
    }
  }

  uint8_t* const dst_;
  const TreeOperand* const operands_;
  const uint32_t operand_count_;
  Wide divisor_{1};
  Wide reciprocal_{};
};

template <class Element, Fold kFold, bool kIsResult>
void fold_tree(const TreeArgs& args) {
  Tree<Element, kFold, kIsResult>(args).run(args);
}

template <class Element, Fold kFold>
TreeKernels kernels_of_fold() {
  return {&fold_tree<Element, kFold, false>, &fold_tree<Element, kFold, true>};
}

template <class Element, class Product>
TreeKernels tree_kernels_of(Fold fold) {
  switch (fold) {
    case Fold::kSum:
      return kernels_of_fold<Element, Fold::kSum>();
    case Fold::kProd:
      return kernels_of_fold<Product, Fold::kProd>();
    case Fold::kMax:
      return kernels_of_fold<Element, Fold::kMax>();
    case Fold::kMin:
      return kernels_of_fold<Element, Fold::kMin>();
  }
  return {};
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace weir
HWY_AFTER_NAMESPACE();

#endif  // WEIR_TREE_LOOP_INL_H_
