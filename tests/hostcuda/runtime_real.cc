// SPDX-License-Identifier: Apache-2.0
// Compiled where CUDA's toolkit is present: the library's prototypes come after the toolkit's, and
// a function that is declared twice with two types is an error. The same facts must hold for both
// types.
#include <cuda_runtime_api.h>
//
#include "hostcuda/runtime/functions.h"
//
#include "hostcuda/runtime_facts.h"
