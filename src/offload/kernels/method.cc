// SPDX-License-Identifier: Apache-2.0
#include "offload/kernels/method.h"

#include <cmath>
#include <string>

#include "core/base/check.h"
#include "offload/kernels/float_environment.h"

namespace weir::offload {
namespace {

// By squaring, not by std::pow, whose last bit differs between libraries.
double power(double base, uint64_t exponent) {
  double result = 1;
  for (; exponent != 0; exponent >>= 1, base *= base) {
    if (exponent & 1) result *= base;
  }
  return result;
}

Status bad(const char* field, double value, const char* allowed) {
  return invalid_argument("optimizer: " + std::string(field) + " is " + std::to_string(value) +
                          "; allowed: " + allowed);
}

bool in_unit(double value) { return value >= 0 && value < 1; }
bool in_float(double value) { return value >= 0 && value <= 3.0e38; }

// Not inlined, so that no operation moves out of the environment.
[[gnu::noinline]] StepFactors factors_of(Method method, const Hyper& hyper, uint64_t step) {
  StepFactors f;
  f.method = method;
  f.step = step;
  f.step_size = static_cast<float>(hyper.learning_rate);
  f.eps = static_cast<float>(hyper.eps);
  if (method == Method::kAdamW || method == Method::kLion) {
    f.decay = static_cast<float>(hyper.learning_rate * hyper.weight_decay);
  } else {
    f.l2 = static_cast<float>(hyper.weight_decay);
  }
  if (method == Method::kSgdMomentum) {
    f.beta1 = static_cast<float>(hyper.momentum);
    f.beta1_other = 1;
    return f;
  }
  f.beta1 = static_cast<float>(hyper.beta1);
  f.beta1_other = static_cast<float>(1 - hyper.beta1);
  f.beta2 = static_cast<float>(hyper.beta2);
  f.beta2_other = static_cast<float>(1 - hyper.beta2);
  if (method == Method::kAdamW || method == Method::kAdam) {
    const double correction1 = 1 - power(hyper.beta1, step);
    const double correction2 = std::sqrt(1 - power(hyper.beta2, step));
    f.step_size = static_cast<float>(hyper.learning_rate * correction2 / correction1);
    f.eps = static_cast<float>(hyper.eps * correction2);
  }
  return f;
}

}  // namespace

const char* name_of(Method method) {
  switch (method) {
    case Method::kAdamW:
      return "adamw";
    case Method::kAdam:
      return "adam";
    case Method::kSgdMomentum:
      return "sgd_momentum";
    case Method::kAdagrad:
      return "adagrad";
    case Method::kLion:
      return "lion";
  }
  return "unknown";
}

Status validate(Method method, const Hyper& hyper) {
  if (static_cast<uint32_t>(method) >= kMethodCount) {
    return invalid_argument("optimizer: method number " +
                            std::to_string(static_cast<uint32_t>(method)) + "; allowed: 0 to 4");
  }
  const char* const kNonNegative = "0 to 3e38";
  const char* const kFraction = "0 <= value < 1";
  if (!in_float(hyper.learning_rate)) {
    return bad("learning_rate", hyper.learning_rate, kNonNegative);
  }
  if (!in_float(hyper.weight_decay)) return bad("weight_decay", hyper.weight_decay, kNonNegative);
  if (method == Method::kSgdMomentum) {
    if (!in_unit(hyper.momentum)) return bad("momentum", hyper.momentum, kFraction);
    return Status();
  }
  if (method != Method::kLion && !(hyper.eps >= 0 && hyper.eps <= 1e30)) {
    return bad("eps", hyper.eps, "0 to 1e30");
  }
  if (method == Method::kAdagrad) return Status();
  if (!in_unit(hyper.beta1)) return bad("beta1", hyper.beta1, kFraction);
  if (!in_unit(hyper.beta2)) return bad("beta2", hyper.beta2, kFraction);
  return Status();
}

StepFactors step_factors(Method method, const Hyper& hyper, uint64_t step) {
  WEIR_CHECK(step >= 1, "steps count from 1");
  const FloatEnvironment environment;
  return factors_of(method, hyper, step);
}

}  // namespace weir::offload
