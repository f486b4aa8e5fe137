// SPDX-License-Identifier: Apache-2.0
// The twin of an exported function: pncclX is another name of ncclX, for tools that put their own
// ncclX before it. To stand in the file that defines ncclX.
#pragma once

#include "weir/nccl.h"

#define WEIR_NCCL_TWIN(name) \
  extern "C" WEIR_NCCL_API __attribute__((alias("nccl" #name))) decltype(nccl##name) pnccl##name
