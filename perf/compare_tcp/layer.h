/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interface that perf/compare_mpi/mpi_perf.c measures when it is compiled with -DCOMPARE_LAYER:
 * another library's collectives between two ranks over TCP. One thread. A layer ends the process
 * with a message when something fails, and when nothing moves for COMPARE_SECONDS_MAX.
 *
 * Environment: COMPARE_ADDRESS, the address of this rank's interface; COMPARE_FOLDER, an empty
 * folder that both ranks see, where they find each other.
 */
#pragma once

#include <stddef.h>

#define COMPARE_SECONDS_MAX 60

#ifdef __cplusplus
extern "C" {
#endif

void compare_start(int rank, int rank_count);
void compare_end(void);
void compare_barrier(void);
double compare_max(double mine);
/* The sum over the ranks of `count` floats. */
void compare_all_reduce(const float* send, float* recv, size_t count);
/* The other rank's floats. */
void compare_exchange(const float* send, float* recv, size_t count);

#ifdef __cplusplus
}
#endif
