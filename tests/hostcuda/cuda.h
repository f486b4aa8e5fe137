// SPDX-License-Identifier: Apache-2.0
// CUDA as the tests of src/hostcuda see it: the toolkit's headers where they are found
// (WEIR_TEST_REAL_CUDA), as a user's program would be compiled, and the project's declarations
// elsewhere.
#pragma once

#ifdef WEIR_TEST_REAL_CUDA
#include <cuda.h>
#include <cuda_runtime_api.h>
#else
#include "hostcuda/driver/functions.h"
#include "hostcuda/runtime/functions.h"
#endif
