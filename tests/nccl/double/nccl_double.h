/* SPDX-License-Identifier: Apache-2.0 */
/* What tests ask of the double of the real NCCL (nccl_double.cc). Its communicators begin with
 * NCCL's mark. It calls its own exports by name, as NCCL does. Its exports that do nothing come
 * from the table of functions.
 *
 * Its operations are of one of two kinds, each a library of its own:
 *   marked    an all-reduce of ints writes NCCL_DOUBLE_SUM + rank and waits for nobody, so that a
 *             test sees who worked; any other operation is only counted
 *   computed  operations compute on the memory of Weir's stand-in for CUDA, in stream order */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

/* Calls of a function since the start, by its name. */
int nccl_double_calls(const char* name);

/* From now on `rank` fails to start with `code`, and the others wait: for ever, with `hang` 1. No
 * rank fails with rank -1. */
void nccl_double_fail(int rank, int code, int hang);

/* The same for the start of communicators that are made from another, by the rank in that one, or,
 * of one that is new, in the one that is made. */
void nccl_double_fail_making(int rank, int code, int hang);

/* Operations that the outermost ncclGroupEnd of a thread, or a call outside a group, has
 * started. */
int nccl_double_started(void);

/* 1 when this library's calls of its own exports find its own. */
int nccl_double_binds_to_itself(void);

/* The device that was chosen when a communicator was made; the name in its configuration. */
int nccl_double_device_of(void* comm);
const char* nccl_double_name_of(void* comm);

/* Communicators that are alive. */
int nccl_double_alive(void);

#define NCCL_DOUBLE_SUM 1000

#ifdef __cplusplus
}
#endif
