/* SPDX-License-Identifier: Apache-2.0 */
/* What a C program does with programs of its own. */
#pragma once

#include "weir/weir.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Adds the programs of `text`, which perform an all-reduce, and compares the results of several
 * all-reduces with what they must be. NULL, or what went wrong; valid until the next call. */
const char* add_and_reduce(weir_comm_t comm, const char* name, const char* text, size_t bytes,
                           uint32_t flags);

#ifdef __cplusplus
}
#endif
