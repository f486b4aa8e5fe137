/* SPDX-License-Identifier: Apache-2.0 */
/*
 * 06: a rank is lost; the others go on. Rank 1 of 3 dies in the middle of the work. The call that
 * was waiting for it returns an error that names it; the survivors shrink the communicator and
 * repeat the step without it.
 *
 *   ./06_recovery
 */
#include <signal.h>

#include "example.h"

enum { RANK_COUNT = 3, DOOMED = 1, STEPS = 6, FATAL_STEP = 3 };

static int run_rank(weir_comm_t first, int rank) {
  weir_comm_t comm = first;
  /* Every operation has a deadline; a rank that only hangs is detected when it passes. */
  check(weir_comm_set_timeout(comm, 5000), comm);

  int alive = 0;
  for (int step = 0; step < STEPS; ++step) {
    if (rank == DOOMED && step == FATAL_STEP) raise(SIGKILL);

    const int one = 1;
    const weir_result_t result = weir_all_reduce(comm, &one, &alive, 1, WEIR_INT32, WEIR_SUM, NULL);
    if (result == WEIR_OK) {
      if (rank == 0) printf("step %d: %d ranks\n", step, alive);
      continue;
    }
    /* PEER_LOST, or ABORTED when another survivor detected it first. Others are not expected. */
    printf("rank %d, step %d: %s: %s\n", rank, step, weir_result_string(result),
           weir_last_error(comm));
    if (result != WEIR_ERROR_PEER_LOST && result != WEIR_ERROR_TIMEOUT &&
        result != WEIR_ERROR_ABORTED) {
      exit(1);
    }
    /* All survivors get the same list and make the same call. The old communicator is not used
     * any more. */
    int lost[RANK_COUNT];
    int lost_count = 0;
    check(weir_comm_lost_ranks(comm, lost, RANK_COUNT, &lost_count), comm);
    weir_comm_t smaller = NULL;
    check(weir_comm_shrink(comm, lost, lost_count, NULL, &smaller), comm);
    if (comm != first) check(weir_comm_destroy(comm), NULL);
    comm = smaller;
    --step; /* again, without the lost rank */
  }
  if (comm != first) check(weir_comm_destroy(comm), NULL);
  return alive == RANK_COUNT - 1 ? 0 : 1;
}

/* Exactly one process must fail, the one that is killed. */
int main(void) { return run_ranks(RANK_COUNT, run_rank) == 1 ? 0 : 1; }
