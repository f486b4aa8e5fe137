// SPDX-License-Identifier: Apache-2.0
// The arithmetic of each method on one vector (step_kernel.h says it in formulas). Included once
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

// p - decay p - step m / (root + eps). The roundings of the sum and of the quotient are found again
// by fused operations and put right to first order: without that, an update that is larger than the
// parameter can be off by more than two units. 1 / sum to a percent is enough for it. A residual that
// is not finite (zero or infinite sum, infinite quotient) is none.
template <bool kDecay>
HWY_INLINE VFloat updated(const Factors& f, VFloat p, VFloat m, VFloat root) {
  const DFloat df;
  const DUint du;
  const auto sum = hn::Add(root, f.eps);
  const auto quotient = hn::Div(m, sum);
  const auto minus_quotient = hn::Neg(quotient);
  const auto rest = fused(minus_quotient, f.eps, fused(minus_quotient, root, m));
  const auto guess =
      hn::BitCast(df, hn::Sub(hn::Set(du, uint32_t{0x7ef311c3}), hn::BitCast(du, sum)));
  const auto inverse = hn::Mul(guess, fused(hn::Neg(sum), guess, hn::Set(df, 2.0f)));
  const auto finite = hn::Lt(hn::Abs(rest), hn::Set(df, std::numeric_limits<float>::infinity()));
  const auto correction = hn::IfThenElseZero(finite, hn::Mul(rest, inverse));
  const auto small =
      kDecay ? fused(f.step, correction, hn::Mul(f.decay, p)) : hn::Mul(f.step, correction);
  return fused(f.minus_step, quotient, hn::Sub(p, small));
}

// Parameter, first and second moment of one vector: in and out.
struct Element {
  VFloat p, m, v;
};

template <bool kDecoupled>
struct AdamRule {
  static constexpr Method kMethod = kDecoupled ? Method::kAdamW : Method::kAdam;
  static HWY_INLINE void apply(const Factors& f, VFloat g, Element& e) {
    if constexpr (!kDecoupled) g = fused(f.l2, e.p, g);
    e.m = fused(f.beta1_other, g, hn::Mul(f.beta1, e.m));
    e.v = fused(hn::Mul(f.beta2_other, g), g, hn::Mul(f.beta2, e.v));
    e.p = updated<kDecoupled>(f, e.p, e.m, hn::Sqrt(e.v));
  }
};

struct SgdMomentumRule {
  static constexpr Method kMethod = Method::kSgdMomentum;
  static HWY_INLINE void apply(const Factors& f, VFloat g, Element& e) {
    g = fused(f.l2, e.p, g);
    e.m = fused(f.beta1, e.m, g);
    e.p = fused(f.minus_step, e.m, e.p);
  }
};

struct AdagradRule {
  static constexpr Method kMethod = Method::kAdagrad;
  static HWY_INLINE void apply(const Factors& f, VFloat g, Element& e) {
    g = fused(f.l2, e.p, g);
    e.v = fused(g, g, e.v);
    e.p = updated<false>(f, e.p, g, hn::Sqrt(e.v));
  }
};

struct LionRule {
  static constexpr Method kMethod = Method::kLion;
  static HWY_INLINE void apply(const Factors& f, VFloat g, Element& e) {
    const DFloat df;
    const auto p = fused(f.minus_decay, e.p, e.p);
    const auto c = fused(f.beta1_other, g, hn::Mul(f.beta1, e.m));
    const auto zero = hn::Zero(df);
    // Zero and NaN are their own sign.
    auto sign = hn::IfThenElse(hn::Gt(c, zero), hn::Set(df, 1.0f), c);
    sign = hn::IfThenElse(hn::Lt(c, zero), hn::Set(df, -1.0f), sign);
    e.p = fused(f.minus_step, sign, p);
    e.m = fused(f.beta2_other, g, hn::Mul(f.beta2, e.m));
  }
};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace weir::offload
HWY_AFTER_NAMESPACE();

#endif  // WEIR_OFFLOAD_STEP_RULES_INL_H_
