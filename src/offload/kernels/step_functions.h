// SPDX-License-Identifier: Apache-2.0
// The kernels behind step_range(), a file for each method or two so that each compiles quickly.
// Thread-safe.
#pragma once

#include "offload/kernels/step_kernel.h"

namespace weir::offload {

// As step_range().
using StepFunction = bool (*)(const StepFactors& factors, const StepRange& range);

StepFunction adamw_step(StateFormat format);
StepFunction adam_step(StateFormat format);
StepFunction sgd_momentum_step(StateFormat format);
StepFunction adagrad_step(StateFormat format);
StepFunction lion_step(StateFormat format);

}  // namespace weir::offload
