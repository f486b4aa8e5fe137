/* SPDX-License-Identifier: Apache-2.0 */
/*
 * 04: windows. Memory from weir_mem_alloc is reachable by every rank of the communicator, so a
 * collective reads its peers' data in place and moves it once. The calls and the results are the
 * same, and any buffer may still be ordinary memory.
 *
 *   ./04_windows
 */
#include <time.h>

#include "example.h"

enum { COUNT = 1 << 22, ROUNDS = 20 }; /* 16 MiB */

static double seconds(void) {
  struct timespec t;
  timespec_get(&t, TIME_UTC);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Milliseconds of one all-reduce. */
static double measure(weir_comm_t comm, float* send, float* recv, int rank) {
  for (int i = 0; i < COUNT; ++i) send[i] = (float)(rank + 1);
  for (int i = 0; i < COUNT; ++i) recv[i] = 0;
  check(weir_all_reduce(comm, send, recv, COUNT, WEIR_FLOAT32, WEIR_SUM, NULL), comm);
  const double begin = seconds();
  for (int i = 0; i < ROUNDS; ++i) {
    check(weir_all_reduce(comm, send, recv, COUNT, WEIR_FLOAT32, WEIR_SUM, NULL), comm);
  }
  const double ms = (seconds() - begin) * 1e3 / ROUNDS;
  return recv[0] == 3 && recv[COUNT - 1] == 3 ? ms : -1;
}

static int run_rank(weir_comm_t comm, int rank) {
  const size_t bytes = COUNT * sizeof(float);

  float* send = malloc(bytes);
  float* recv = malloc(bytes);
  if (send == NULL || recv == NULL) return 1;
  const double ordinary_ms = measure(comm, send, recv, rank);
  free(send);
  free(recv);

  /* Collective: every rank allocates the same size, in the same order. */
  void* window_send = NULL;
  void* window_recv = NULL;
  check(weir_mem_alloc(comm, bytes, &window_send), comm);
  check(weir_mem_alloc(comm, bytes, &window_recv), comm);
  const double window_ms = measure(comm, window_send, window_recv, rank);
  check(weir_mem_free(comm, window_recv), comm);
  check(weir_mem_free(comm, window_send), comm);

  /* weir_register makes a window of existing memory, where the transport supports it. */
  if (rank == 0) printf("16 MiB: ordinary %.2f ms, windows %.2f ms\n", ordinary_ms, window_ms);
  return ordinary_ms > 0 && window_ms > 0 ? 0 : 1;
}

int main(void) { return run_ranks(2, run_rank) != 0; }
