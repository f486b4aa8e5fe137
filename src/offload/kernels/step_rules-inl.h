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

using VWide = VecOf<DWide>;

// StepFactors in every lane; what is subtracted from a float is negated.
struct Factors {
  explicit HWY_INLINE Factors(const StepFactors& f)
      : minus_decay(hn::Set(DFloat(), -f.decay)),
        l2(hn::Set(DFloat(), f.l2)),
        beta1(hn::Set(DFloat(), f.beta1)),
        beta1_other(hn::Set(DFloat(), f.beta1_other)),
        beta2(hn::Set(DFloat(), f.beta2)),
        beta2_other(hn::Set(DFloat(), f.beta2_other)),
        minus_step(hn::Set(DFloat(), -f.step_size)),
        decay(hn::Set(DWide(), static_cast<double>(f.decay))),
        step(hn::Set(DWide(), static_cast<double>(f.step_size))),
        eps(hn::Set(DWide(), static_cast<double>(f.eps))) {}
  VFloat minus_decay, l2, beta1, beta1_other, beta2, beta2_other, minus_step;
  VWide decay, step, eps;
};

// (p - decay p) - step (m / (root + eps)) in double: four roundings to float there would be more
// than two units where the update is larger than the parameter. decay p is exact.
template <bool kDecay>
HWY_INLINE VFloat updated(const Factors& f, VFloat parameter, VFloat moment, VFloat square_root) {
  const auto update = [&](VWide p, VWide m, VWide root) HWY_ATTR {
    if constexpr (kDecay) p = hn::Sub(p, hn::Mul(f.decay, p));
    return hn::Sub(p, hn::Mul(f.step, hn::Div(m, hn::Add(root, f.eps))));
  };
  return in_double(update, parameter, moment, square_root);
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
