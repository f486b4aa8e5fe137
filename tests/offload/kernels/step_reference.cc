// SPDX-License-Identifier: Apache-2.0
#include "offload/kernels/step_reference.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>

namespace weir::offload::test {
namespace {

float flushed(float value) {
  return std::fabs(value) < FLT_MIN ? std::copysign(0.0f, value) : value;
}

ReferenceTerm sum(double a, double b) {
  const double value = a + b;
  return {value, std::max({std::fabs(a), std::fabs(b), std::fabs(value)})};
}

// What is left of a quotient that a float could not hold.
double limited(double value) {
  return std::fabs(value) > FLT_MAX ? std::copysign(HUGE_VAL, value) : value;
}

}  // namespace

ReferenceStep reference_moments(const StepFactors& factors, float parameter, double stored_gradient,
                                float gradient_factor, float first_moment, float second_moment) {
  const double m = flushed(first_moment);
  const double v = flushed(second_moment);
  ReferenceStep r;
  r.gradient = flushed(static_cast<float>(
      static_cast<double>(flushed(static_cast<float>(stored_gradient))) * gradient_factor));
  if (factors.method != Method::kAdamW && factors.method != Method::kLion) {
    r.gradient = flushed(std::fma(factors.l2, flushed(parameter), r.gradient));
  }
  const double g = r.gradient;
  switch (factors.method) {
    case Method::kAdamW:
    case Method::kAdam:
      r.first_moment = sum(factors.beta1 * m, factors.beta1_other * g);
      r.second_moment = sum(factors.beta2 * v, factors.beta2_other * g * g);
      break;
    case Method::kSgdMomentum:
      r.first_moment = sum(factors.beta1 * m, g);
      break;
    case Method::kAdagrad:
      r.second_moment = sum(v, g * g);
      break;
    case Method::kLion:
      r.first_moment = sum(factors.beta2 * m, factors.beta2_other * g);
      break;
  }
  return r;
}

ReferenceTerm reference_parameter(const StepFactors& factors, float parameter, float gradient,
                                  float first_moment, float second_moment) {
  const double p = flushed(parameter);
  const double m = flushed(first_moment);
  const double root = std::sqrt(static_cast<double>(flushed(second_moment))) + factors.eps;
  const double decayed = p - static_cast<double>(factors.decay) * p;
  const double rate = factors.step_size;
  switch (factors.method) {
    case Method::kAdamW:
      return sum(decayed, -rate * limited(m / root));
    case Method::kAdam:
      return sum(p, -rate * limited(m / root));
    case Method::kSgdMomentum:
      return sum(p, -rate * m);
    case Method::kAdagrad:
      return sum(p, -rate * limited(gradient / root));
    case Method::kLion: {
      const float c = flushed(
          std::fma(factors.beta1_other, gradient, flushed(factors.beta1 * flushed(first_moment))));
      const double sign = std::isnan(c) ? double{c} : c > 0 ? 1 : c < 0 ? -1 : 0;
      return sum(decayed, -rate * sign);
    }
  }
  return {};
}

double error_in_ulp(float actual, const ReferenceTerm& expected) {
  if (std::isnan(actual) || std::isnan(expected.value)) {
    return std::isnan(actual) && std::isnan(expected.value) ? 0 : HUGE_VAL;
  }
  const auto nearest = static_cast<float>(expected.value);
  if (actual == nearest) return 0;
  // From within two units of the largest float, infinity is as good.
  const double largest = static_cast<double>(FLT_MAX) * (1 - 3e-7);
  if (std::isinf(actual) || std::isinf(nearest)) {
    const bool both = std::fabs(actual) >= largest && std::fabs(expected.value) >= largest;
    return both && std::signbit(actual) == std::signbit(nearest) ? 0 : HUGE_VAL;
  }
  const double scale = std::clamp(expected.scale, double{FLT_MIN}, double{FLT_MAX});
  const double unit = std::ldexp(1.0, std::ilogb(scale) - 23);
  double error = std::fabs(actual - expected.value);
  // Each of up to four flushed terms is below the smallest normal float.
  if (error < 4 * double{FLT_MIN}) error = 0;
  return error / unit;
}

}  // namespace weir::offload::test
