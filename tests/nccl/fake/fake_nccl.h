/* SPDX-License-Identifier: Apache-2.0 */
/* What tests ask of the library that plays the real NCCL (fake_nccl.c). Its communicators begin with
 * NCCL's mark; an all-reduce of ints writes fake_sum(rank), so that a test sees who worked. It calls
 * its own exports by name, as NCCL does. Its exports that do nothing come from symbols.txt. */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

/* Calls of a function since the start, by its name. */
int fake_calls(const char* name);

/* From now on `rank` fails to start with `code`, and the others wait: for ever, with `hang` 1. No rank
 * fails with rank -1. */
void fake_fail(int rank, int code, int hang);

/* The same for the start of communicators that are made from another, by the rank in that one, or, of
 * one that is new, in the one that is made. */
void fake_fail_making(int rank, int code, int hang);

/* Operations that the outermost ncclGroupEnd of a thread, or a call outside a group, has started. */
int fake_started(void);

/* 1 when this library's calls of its own exports find its own. */
int fake_binds_to_itself(void);

/* The device that was chosen when a communicator was made; the name in its configuration. */
int fake_device_of(void* comm);
const char* fake_name_of(void* comm);

/* Communicators that are alive. */
int fake_alive(void);

#define FAKE_SUM 1000

#ifdef __cplusplus
}
#endif
