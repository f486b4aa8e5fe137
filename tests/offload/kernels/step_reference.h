// SPDX-License-Identifier: Apache-2.0
// The scalar reference of a step on f32 state, in double, straight from the formulas of method.h.
//
// What it rounds to float, because the contract does: the factors of the step (of which another
// test says that they are right), the gradient after scaling and after weight decay, and the new
// moments, which it takes as the kernel stored them when it comes to the parameter; and Lion's sign
// is that of a float. It flushes subnormal floats to zero there and in the operands, and lets the
// quotient overflow as a float would. Everything else is double, the square root too.
//
// The error is in units in the last place at the magnitude of the largest term of the final sum
// (a sum that cancels cannot be known better), not below the smallest normal float.
#pragma once

#include "offload/kernels/method.h"

namespace weir::offload::test {

struct ReferenceTerm {
  double value = 0;  // what the sum should be
  double scale = 0;  // its largest term, by magnitude
};

struct ReferenceStep {
  float gradient = 0;
  ReferenceTerm first_moment;
  ReferenceTerm second_moment;
};

// The new moments of (parameter, gradient, first and second moment).
ReferenceStep reference_moments(const StepFactors& factors, float parameter, double stored_gradient,
                                float gradient_factor, float first_moment, float second_moment);

// The new parameter, with the new moments as stored (Lion: the old first moment).
ReferenceTerm reference_parameter(const StepFactors& factors, float parameter, float gradient,
                                  float first_moment, float second_moment);

// How far `actual` is from the term, in such units; 0 when both are NaN, or the same infinity.
double error_in_ulp(float actual, const ReferenceTerm& expected);

}  // namespace weir::offload::test
