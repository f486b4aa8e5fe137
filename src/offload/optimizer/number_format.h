// SPDX-License-Identifier: Apache-2.0
// Converts arrays of parameters and gradients between f32 and the 16-bit types, element by element,
// where speed does not matter (the kernels convert for themselves, to the same bits). Thread-safe.
#pragma once

#include <cstdint>

#include "core/base/types.h"

namespace weir::offload {

constexpr bool is_number_format(DataType type) {
  return type == DataType::kFloat32 || type == DataType::kBfloat16 || type == DataType::kFloat16;
}

// Exact. `from` in f32, bf16 or f16, at any alignment.
void to_float(const void* from, DataType type, uint64_t count, float* to);

// How a 16-bit output is rounded: to nearest even, or stochastically as the step kernels do it for
// that step and those elements.
struct Rounding {
  bool stochastic = false;
  uint64_t seed = 0;
  uint64_t step = 0;
  uint64_t first_index = 0;  // of the first element, in the whole group
};

// NaN becomes the type's canonical one. `to` at any alignment.
void from_float(const float* from, uint64_t count, const Rounding& rounding, DataType type,
                void* to);

}  // namespace weir::offload
