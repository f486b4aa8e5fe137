// SPDX-License-Identifier: Apache-2.0
// ChunkStep: one step of one chunk, however its gradient is divided into ranges. Thread-safe for
// different chunks.
#pragma once

#include <cstdint>
#include <vector>

#include "offload/kernels/step_kernel.h"
#include "offload/optimizer/gradients.h"
#include "offload/optimizer/placement.h"

namespace weir::offload {

// Where the updated parameters of a group go.
struct Output {
  void* data = nullptr;
  DataType type = DataType::kFloat32;
  bool stochastic = false;
};

// What all chunks of a group share in a step.
struct GroupStep {
  StepFactors factors;
  const std::vector<GradientSegment>* gradient = nullptr;
  float gradient_factor = 1;
  const uint16_t* copy_in = nullptr;  // of the whole group
  uint16_t* copy_out = nullptr;
  Output output;
  uint64_t seed = 0;
  uint64_t first_element = 0;  // of the group
};

// source may be destination. Whether every gradient times its factor was finite.
bool step_chunk(const GroupStep& group, const StateChunk& chunk, const unsigned char* source,
                unsigned char* destination);

}  // namespace weir::offload
