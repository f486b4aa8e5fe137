/* SPDX-License-Identifier: Apache-2.0 */
/*
 * 10: one-sided operations. Rank 0 owns a queue of tasks and a table of results. The other ranks
 * take tasks by adding to a counter in its memory and put their results there; rank 0 makes no call
 * until it waits for the signals that count them.
 *
 *   ./10_one_sided
 */
#include <stddef.h>

#include "example.h"

enum { TASKS = 1000 };

struct board {
  uint64_t next;  /* the next task that no rank has taken */
  uint64_t ready; /* results that are in the table */
  uint64_t results[TASKS];
};

static int run_rank(weir_comm_t comm, int rank) {
  struct board board = {0};

  /* Collective. Each rank provides its own memory, of any size: here rank 0 has a board, the others
   * none. */
  weir_window_t window = NULL;
  check(weir_window_create(comm, rank == 0 ? &board : NULL, rank == 0 ? sizeof board : 0, &window),
        comm);

  int wrong = 0;
  if (rank == 0) {
    /* Each signal arrives after the bytes of its put. */
    check(weir_wait_signal(window, offsetof(struct board, ready), TASKS, NULL), comm);
    for (uint64_t i = 0; i < TASKS; ++i) wrong += board.results[i] != i * i;
    printf("%d results, %d of them wrong\n", TASKS, wrong);
  } else {
    for (;;) {
      uint64_t task = 0;
      check(weir_fetch_add(window, 0, offsetof(struct board, next), 1, &task, NULL), comm);
      if (task >= TASKS) break;
      const uint64_t result = task * task;
      check(weir_put_signal(window, 0, offsetof(struct board, results) + task * sizeof result,
                            &result, sizeof result, window, offsetof(struct board, ready), 1, NULL),
            comm);
    }
  }

  /* Collective: returns when the operations of all ranks in the window are done. */
  check(weir_window_destroy(window), comm);
  return wrong != 0;
}

int main(void) { return run_ranks(3, run_rank) != 0; }
