// SPDX-License-Identifier: Apache-2.0
// Optimizer methods: which there are, their hyperparameters, and the factors of one step. All that
// depends on the step number alone is computed here in double and rounded to float once, so that
// the kernels multiply by constants. Values; thread-safe.
//
// With g the scaled gradient, p the parameter, m and v the moments, t the step (from 1), c = lr:
//   AdamW       p -= c wd p;  m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g g;
//               p -= c (m / (1-b1^t)) / (sqrt(v / (1-b2^t)) + eps)      (Loshchilov, Hutter 2019)
//   Adam        g += wd p, then as AdamW without decay                  (Kingma, Ba 2015)
//   SgdMomentum g += wd p;  m = mu m + g;  p -= c m
//   Adagrad     g += wd p;  v += g g;  p -= c g / (sqrt(v) + eps)       (Duchi et al. 2011)
//   Lion        p -= c wd p;  p -= c sign(b1 m + (1-b1) g);  m = b2 m + (1-b2) g
//                                                                       (Chen et al. 2023)
#pragma once

#include <cstdint>

#include "core/base/status.h"

namespace weir::offload {

// The numbers are part of the store's format.
enum class Method : uint8_t {
  kAdamW = 0,
  kAdam = 1,
  kSgdMomentum = 2,
  kAdagrad = 3,
  kLion = 4,
};
inline constexpr uint32_t kMethodCount = 5;

const char* name_of(Method method);  // "adamw", "adam", "sgd_momentum", "adagrad", "lion"

constexpr bool has_first_moment(Method method) { return method != Method::kAdagrad; }
constexpr bool has_second_moment(Method method) {
  return method == Method::kAdamW || method == Method::kAdam || method == Method::kAdagrad;
}

// The hyperparameters, which a caller may change between steps. A field that the method does not
// name is ignored.
struct Hyper {
  double learning_rate = 1e-3;
  double beta1 = 0.9;         // [0, 1)
  double beta2 = 0.999;       // [0, 1)
  double eps = 1e-8;          // added outside the root
  double weight_decay = 0.0;  // decoupled (AdamW, Lion) or in the gradient (the others)
  double momentum = 0.9;      // SgdMomentum, [0, 1)
};

// kInvalidArgument names the field, its value and what is allowed.
Status validate(Method method, const Hyper& hyper);

// The constants of the kernels; each is rounded to float once. The bias corrections are folded in:
//   c m^ / (sqrt(v^) + eps) = step_size m / (sqrt(v) + eps),
//   with step_size = c sqrt(1-b2^t) / (1-b1^t) and eps here = the caller's eps sqrt(1-b2^t).
struct StepFactors {
  Method method = Method::kAdamW;
  uint64_t step = 1;      // also a key of stochastic rounding
  float decay = 0;        // c wd: p -= decay p before the update
  float l2 = 0;           // wd: g += l2 p
  float beta1 = 0;        // SgdMomentum: mu
  float beta1_other = 0;  // 1 - beta1
  float beta2 = 0;
  float beta2_other = 0;  // 1 - beta2
  float step_size = 0;
  float eps = 0;
};

// `step` counts from 1. The hyperparameters must be valid.
StepFactors step_factors(Method method, const Hyper& hyper, uint64_t step);

}  // namespace weir::offload
