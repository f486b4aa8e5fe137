// SPDX-License-Identifier: Apache-2.0
// The arithmetic of each method on one vector (step_kernel.h says it in formulas), in three phases:
// begin to the square root, divide, finish. The loop takes several vectors through each phase
// before the next, so that roots and divisions of one hide the latency of another's. Included once
// per instruction set (foreach_target).

#if defined(WEIR_OFFLOAD_STEP_RULES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEIR_OFFLOAD_STEP_RULES_INL_H_
#undef WEIR_OFFLOAD_STEP_RULES_INL_H_
#else
#define WEIR_OFFLOAD_STEP_RULES_INL_H_
#endif

#include "offload/kernels/elements-inl.h"
#include "offload/kernels/method.h"

HWY_BEFORE_NAMESPACE();
namespace weir::offload {
namespace HWY_NAMESPACE {
namespace {

// StepFactors in every lane.
struct Factors {
  explicit HWY_INLINE Factors(const StepFactors& f)
      : decay(hn::Set(DFloat(), f.decay)),
        minus_decay(hn::Set(DFloat(), -f.decay)),
        l2(hn::Set(DFloat(), f.l2)),
        beta1(hn::Set(DFloat(), f.beta1)),
        beta1_other(hn::Set(DFloat(), f.beta1_other)),
        beta2(hn::Set(DFloat(), f.beta2)),
        beta2_other(hn::Set(DFloat(), f.beta2_other)),
        step(hn::Set(DFloat(), f.step_size)),
        minus_step(hn::Set(DFloat(), -f.step_size)),
        eps(hn::Set(DFloat(), f.eps)) {}
  VFloat decay, minus_decay, l2, beta1, beta1_other, beta2, beta2_other, step, minus_step, eps;
};

// Parameter, first and second moment of one vector: in and out; and between the phases the
// numerator, the square root and the quotient of the update.
struct Element {
  HWY_INLINE Element() {}  // an implicit one would be compiled without the instruction set (NEON)
  VFloat p, m, v;
  VFloat top, root, quotient;
};

// A sum of zeros, which a value that is not finite turns into NaN for good.
HWY_INLINE VFloat plus_nothing(VFloat sum, VFloat v) {
#if HWY_NATIVE_FMA
  return hn::MulAdd(v, hn::Zero(DFloat()), sum);
#else
  return hn::Add(sum, hn::Sub(v, v));
#endif
}

template <size_t kCount>
HWY_INLINE auto parameter_is_nan(const Element* e) {
  auto nan = hn::IsNaN(e[0].p);
  unrolled<kCount - 1>([&](auto i) HWY_ATTR { nan = hn::Or(nan, hn::IsNaN(e[i + 1].p)); });
  return nan;
}

HWY_INLINE void divide_by_root(const Factors& f, Element& e) {
  e.quotient = hn::Div(e.top, hn::Add(e.root, f.eps));
}

// p - decay p - step top / (root + eps). Fused operations recover the roundings of the sum and of
// the quotient and correct them to first order: without that, an update that is larger than the
// parameter can be off by more than two units. An approximation of 1 / sum to a percent is enough.
// A residual that is not finite (zero or infinite sum, infinite quotient) is ignored.
template <bool kDecay>
HWY_INLINE VFloat updated(const Factors& f, const Element& e) {
  const DFloat df;
  const DUint du;
  const auto sum = hn::Add(e.root, f.eps);
  const auto rest = fused_minus(e.quotient, f.eps, fused_minus(e.quotient, e.root, e.top));
  const auto guess =
      hn::BitCast(df, hn::Sub(hn::Set(du, uint32_t{0x7ef311c3}), hn::BitCast(du, sum)));
  const auto inverse = hn::Mul(guess, fused_minus(sum, guess, hn::Set(df, 2.0f)));
#if HWY_TARGET == HWY_AVX3
  const auto finite = hn::IsFinite(rest);
#else
  const auto finite = hn::Lt(hn::Abs(rest), hn::Set(df, std::numeric_limits<float>::infinity()));
#endif
  const auto correction = hn::IfThenElseZero(finite, hn::Mul(rest, inverse));
  const auto small =
      kDecay ? fused(f.step, correction, hn::Mul(f.decay, e.p)) : hn::Mul(f.step, correction);
  return fused(f.minus_step, e.quotient, hn::Sub(e.p, small));
}

// doubtful: the lanes in which the gradient of one of kCount vectors may not have been finite, or
// one of the vectors may hold a NaN. It misses no such lane.

template <bool kDecoupled>
struct AdamRule {
  static constexpr Method kMethod = kDecoupled ? Method::kAdamW : Method::kAdam;
  static HWY_INLINE void begin(const Factors& f, VFloat g, Element& e) {
    if constexpr (!kDecoupled) g = fused(f.l2, e.p, g);
    e.m = fused(f.beta1_other, g, hn::Mul(f.beta1, e.m));
    e.v = fused(hn::Mul(f.beta2_other, g), g, hn::Mul(f.beta2, e.v));
    e.top = e.m;
    e.root = hn::Sqrt(e.v);
  }
  static HWY_INLINE void divide(const Factors& f, Element& e) { divide_by_root(f, e); }
  static HWY_INLINE void finish(const Factors& f, Element& e) { e.p = updated<kDecoupled>(f, e); }
  // An infinite gradient makes both moments infinite, and their quotient NaN.
  template <size_t kCount>
  static HWY_INLINE auto doubtful(const Element* e) {
    return parameter_is_nan<kCount>(e);
  }
};

struct SgdMomentumRule {
  static constexpr Method kMethod = Method::kSgdMomentum;
  static HWY_INLINE void begin(const Factors& f, VFloat g, Element& e) {
    g = fused(f.l2, e.p, g);
    e.m = fused(f.beta1, e.m, g);
    e.p = fused(f.minus_step, e.m, e.p);
  }
  static HWY_INLINE void divide(const Factors&, Element&) {}
  static HWY_INLINE void finish(const Factors&, Element&) {}
  template <size_t kCount>
  static HWY_INLINE auto doubtful(const Element* e) {
    auto sum = hn::Zero(DFloat());
    unrolled<kCount>([&](auto i) HWY_ATTR { sum = plus_nothing(sum, e[i].p); });
    return hn::IsNaN(sum);
  }
};

struct AdagradRule {
  static constexpr Method kMethod = Method::kAdagrad;
  static HWY_INLINE void begin(const Factors& f, VFloat g, Element& e) {
    g = fused(f.l2, e.p, g);
    e.v = fused(g, g, e.v);
    e.top = g;
    e.root = hn::Sqrt(e.v);
  }
  static HWY_INLINE void divide(const Factors& f, Element& e) { divide_by_root(f, e); }
  static HWY_INLINE void finish(const Factors& f, Element& e) { e.p = updated<false>(f, e); }
  template <size_t kCount>
  static HWY_INLINE auto doubtful(const Element* e) {
    return parameter_is_nan<kCount>(e);
  }
};

struct LionRule {
  static constexpr Method kMethod = Method::kLion;
  static HWY_INLINE void begin(const Factors& f, VFloat g, Element& e) {
    const DFloat df;
    const auto p = fused(f.minus_decay, e.p, e.p);
    const auto c = fused(f.beta1_other, g, hn::Mul(f.beta1, e.m));
    const auto zero = hn::Zero(df);
    // The sign of zero is zero, that of NaN is NaN.
    auto sign = hn::IfThenElse(hn::Gt(c, zero), hn::Set(df, 1.0f), c);
    sign = hn::IfThenElse(hn::Lt(c, zero), hn::Set(df, -1.0f), sign);
    e.p = fused(f.minus_step, sign, p);
    e.m = fused(f.beta2_other, g, hn::Mul(f.beta2, e.m));
  }
  static HWY_INLINE void divide(const Factors&, Element&) {}
  static HWY_INLINE void finish(const Factors&, Element&) {}
  // Only the sign reaches the parameter, so the moments are looked at too.
  template <size_t kCount>
  static HWY_INLINE auto doubtful(const Element* e) {
    auto sum = hn::Zero(DFloat());
    unrolled<kCount>([&](auto i)
                         HWY_ATTR { sum = plus_nothing(plus_nothing(sum, e[i].m), e[i].p); });
    return hn::IsNaN(sum);
  }
};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace weir::offload
HWY_AFTER_NAMESPACE();

#endif  // WEIR_OFFLOAD_STEP_RULES_INL_H_
