/* SPDX-License-Identifier: Apache-2.0 */
/*
 * 01: the first all-reduce. Two processes start with different numbers; afterwards both have the
 * sums.
 *
 *   ./01_first_all_reduce
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <weir/weir.h>

enum { RANK_COUNT = 2, COUNT = 4 };

static void check(weir_result_t result, weir_comm_t comm) {
  if (result == WEIR_OK) return;
  /* The text names the rank, the peer, the operation and the remedy. */
  fprintf(stderr, "%s: %s\n", weir_result_string(result), weir_last_error(comm));
  exit(1);
}

static void run_rank(int rank, const weir_unique_id_t* id) {
  /* A communicator is a group of ranks. The call blocks until all of them have joined. */
  weir_comm_t comm = NULL;
  check(weir_comm_create(&comm, RANK_COUNT, id, rank, NULL), NULL);

  float mine[COUNT];
  float sum[COUNT];
  for (int i = 0; i < COUNT; ++i) mine[i] = (float)(10 * rank + i);

  /* All ranks make the same call. With NULL as the last argument it returns when it is complete. */
  check(weir_all_reduce(comm, mine, sum, COUNT, WEIR_FLOAT32, WEIR_SUM, NULL), comm);

  printf("rank %d: %g %g %g %g\n", rank, sum[0], sum[1], sum[2], sum[3]);
  for (int i = 0; i < COUNT; ++i) {
    if (sum[i] != (float)(10 + 2 * i)) exit(1);
  }
  check(weir_comm_destroy(comm), NULL);
}

int main(void) {
  /* The ranks meet through the id. One process creates it and sends it to the others by any means:
   * here the children inherit it. */
  weir_unique_id_t id;
  check(weir_get_unique_id(&id), NULL);

  for (int rank = 0; rank < RANK_COUNT; ++rank) {
    if (fork() == 0) {
      run_rank(rank, &id);
      exit(0);
    }
  }
  int failed = 0;
  for (int state = 0; wait(&state) > 0;) failed |= state;
  return failed != 0;
}
