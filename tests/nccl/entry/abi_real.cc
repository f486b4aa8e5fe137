// SPDX-License-Identifier: Apache-2.0
// The same facts hold for NCCL's own header.
#include <nccl.h>

#ifdef WEIR_NCCL_H_
#error "this is the project's header: nothing would be compared"
#endif

#include "nccl/entry/abi_facts.h"
