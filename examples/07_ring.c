/* SPDX-License-Identifier: Apache-2.0 */
/*
 * 07: point to point, in groups. Every rank sends a block to the next rank and receives one from
 * the previous rank, until every rank has had each block. Send and receive are in one group: they
 * start together, so their order cannot deadlock.
 *
 *   ./07_ring
 */
#include "example.h"

enum { RANK_COUNT = 3, COUNT = 1000 };

static int run_rank(weir_comm_t comm, int rank) {
  const int next = (rank + 1) % RANK_COUNT;
  const int previous = (rank + RANK_COUNT - 1) % RANK_COUNT;

  int block[COUNT];
  int incoming[COUNT];
  long total[COUNT];
  for (int i = 0; i < COUNT; ++i) total[i] = block[i] = 1000 * rank + i;

  for (int step = 0; step < RANK_COUNT - 1; ++step) {
    check(weir_group_start(), comm);
    check(weir_send(comm, block, COUNT, WEIR_INT32, next, NULL), comm);
    check(weir_recv(comm, incoming, COUNT, WEIR_INT32, previous, NULL), comm);
    check(weir_group_end(), comm); /* with NULL requests, both are complete here */

    for (int i = 0; i < COUNT; ++i) {
      block[i] = incoming[i];
      total[i] += incoming[i];
    }
  }

  for (int i = 0; i < COUNT; ++i) {
    if (total[i] != 3000 + 3L * i) return 1;
  }
  printf("rank %d has seen every block\n", rank);
  return 0;
}

int main(void) { return run_ranks(RANK_COUNT, run_rank) != 0; }
