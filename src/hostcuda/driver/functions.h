// SPDX-License-Identifier: Apache-2.0
// The functions of CUDA 13's driver API that this library provides, under the names of the symbols
// and with CUDA's prototypes, from the project's one table of them. Included after the toolkit's
// header, it uses the types of that header: tests/hostcuda compiles it so, and then the prototypes
// must agree. CUDA's documentation says what each does, docs/hostcuda.md where this library
// differs.
#pragma once

#ifndef CUDA_VERSION  // the toolkit's header is not there
#include "hostcuda/driver/types.h"
#endif

#include "cuda/functions.h"

extern "C" {

#define WEIR_CUDA_PROTOTYPE(name, symbol, since, caller, parameters) CUresult symbol parameters;
WEIR_CUDA_FUNCTIONS(WEIR_CUDA_PROTOTYPE)
#ifndef CUDA_VERSION
WEIR_CUDA_OLDER_FUNCTIONS(WEIR_CUDA_PROTOTYPE)
#endif
#undef WEIR_CUDA_PROTOTYPE

}  // extern "C"
