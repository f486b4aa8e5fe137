// SPDX-License-Identifier: Apache-2.0
// PyTorch's OffsetCalculator, which kernels for tensors that are not contiguous have among their
// arguments; the layout is that of PyTorch's header ATen/cuda/detail/OffsetCalculator.cuh.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace weir::hostcuda::kernels {

// From the number of an element to its offset in bytes in each of kArrays arrays.
template <size_t kArrays>
struct Offsets {
  static constexpr size_t kDimensionsMax = 25;

  int32_t dimension_count;
  struct {
    uint32_t size, magic, shift;
  } sizes[kDimensionsMax];
  uint32_t strides[kDimensionsMax][kArrays];

  std::array<uint32_t, kArrays> of(uint32_t element) const {
    std::array<uint32_t, kArrays> offsets{};
    for (size_t i = 0; i < kDimensionsMax && static_cast<int32_t>(i) < dimension_count; ++i) {
      const uint32_t place = element % sizes[i].size;
      element /= sizes[i].size;
      for (size_t k = 0; k < kArrays; ++k) offsets[k] += place * strides[i][k];
    }
    return offsets;
  }
};

}  // namespace weir::hostcuda::kernels
