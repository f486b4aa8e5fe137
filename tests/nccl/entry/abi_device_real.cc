// SPDX-License-Identifier: Apache-2.0
// The facts of nccl_device.h hold for NCCL's own header.

// It does not stand alone.
#include <nccl.h>
#include <nccl_device.h>

#ifdef WEIR_NCCL_DEVICE_H_
#error "this is the project's header: nothing would be compared"
#endif

#include "nccl/entry/abi_device_facts.h"
