// SPDX-License-Identifier: Apache-2.0
// The facts hold for the project's header.
#include "weir/nccl.h"

static_assert(NCCL_VERSION_CODE == 23203);

#include "nccl/entry/abi_facts.h"
