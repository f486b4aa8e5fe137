// SPDX-License-Identifier: Apache-2.0
// Which capture a stream is part of. Stateless; thread-safe.
#pragma once

#include <cstdint>

#include "nccl/base/outcome.h"
#include "nccl/cuda/driver.h"

namespace weir::nccl {

struct Capture {
  bool active = false;
  uint64_t number = 0;
  cuda::Graph graph = nullptr;
};

// An error if the stream was destroyed, or its capture has failed or cannot hold operations.
Outcome capture_of(const cuda::Driver& driver, const char* function, cuda::Stream stream,
                   Capture* capture);

}  // namespace weir::nccl
