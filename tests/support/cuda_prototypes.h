// SPDX-License-Identifier: Apache-2.0
// CUDA's driver functions as prototypes in the project's types, from its one table of them: for
// stand-ins of tests, whose definitions must agree, and for tests that are linked with one.
#pragma once

#include "cuda/abi.h"
#include "cuda/functions.h"

namespace weir::cuda {
extern "C" {

#define WEIR_CUDA_PROTOTYPE(name, symbol, since, caller, parameters) \
  __attribute__((visibility("default"))) CUresult symbol parameters;
WEIR_CUDA_FUNCTIONS(WEIR_CUDA_PROTOTYPE)
#undef WEIR_CUDA_PROTOTYPE

}  // extern "C"
}  // namespace weir::cuda

using namespace weir::cuda;  // NOLINT: CUDA's functions have no namespace
