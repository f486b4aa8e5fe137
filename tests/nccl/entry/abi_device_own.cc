// SPDX-License-Identifier: Apache-2.0
// The facts of nccl_device.h hold for the project's header.
#include "nccl/entry/abi_device_facts.h"
#include "weir/nccl_device.h"
