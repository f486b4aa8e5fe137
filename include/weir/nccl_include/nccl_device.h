/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For programs that say #include <nccl_device.h>: put this folder on the include path. It is a
 * folder of its own, so that NCCL's header is never replaced by accident.
 */
#ifndef WEIR_NCCL_INCLUDE_NCCL_DEVICE_H_
#define WEIR_NCCL_INCLUDE_NCCL_DEVICE_H_

#include "../nccl_device.h"

#endif /* WEIR_NCCL_INCLUDE_NCCL_DEVICE_H_ */
