// SPDX-License-Identifier: Apache-2.0
// What an optimizer is told and what it says of a step; the C++ side of weir/offload.h, which has
// the meaning of each field. Values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "offload/kernels/method.h"
#include "offload/kernels/state_format.h"

namespace weir::offload {

class Disk;

struct ParameterGroup {
  std::string name;
  uint64_t element_count = 0;
  uint64_t first_element = 0;
  Method method = Method::kAdamW;
  StateFormat format = StateFormat::kFloat32;
  Hyper hyper;
};

struct OptimizerOptions {
  std::string model = "model";
  uint32_t rank = 0;
  uint32_t rank_count = 1;
  std::vector<std::string> directories;
  uint64_t memory_bytes = 0;
  uint64_t chunk_bytes = 0;
  uint32_t thread_count = 0;
  uint32_t durable_every = 0;
  uint64_t seed = 0;
  uint64_t timeout_ms = 0;
  std::string trace_file;
  bool undo_in_memory = false;
  bool read_only = false;
  // Of a test: outlives the optimizer. Otherwise the disk that the machine allows.
  Disk* disk = nullptr;
};

struct StepOptions {
  double loss_scale = 1;
  double norm_max = 0;
  double sum_of_squares = -1;
  bool hold = false;
};

struct StepReport {
  uint64_t step = 0;
  bool skipped = false;
  bool committed = false;
  double norm = -1;
  uint64_t parameter_count = 0;
  uint64_t read_bytes = 0;
  uint64_t written_bytes = 0;
  double seconds = 0;
  double disk_wait_seconds = 0;
  double compute_seconds = 0;
  double compute_hidden = 1;
};

}  // namespace weir::offload
