/* SPDX-License-Identifier: Apache-2.0 */
/*
 * 12: messages with tags. Rank 0 hands out work: the others ask for it in whatever order they
 * finish, and each asks with a tag of its own for the next item or for the end.
 *
 *   ./12_tags
 */
#include "example.h"

enum { RANK_COUNT = 4, ITEM_COUNT = 20, ASK = 1, ITEM = 2, END = 3 };

static void hand_out(weir_comm_t comm) {
  int next = 0;
  int working = RANK_COUNT - 1;
  while (working > 0) {
    long done = 0;
    weir_tag_info_t info;
    check(weir_tag_recv(comm, &done, 1, WEIR_INT64, WEIR_ANY_SOURCE, ASK, &info, NULL), comm);
    if (next < ITEM_COUNT) {
      check(weir_tag_send(comm, &next, 1, WEIR_INT32, info.source, ITEM, NULL), comm);
      ++next;
    } else {
      check(weir_tag_send(comm, NULL, 0, WEIR_INT32, info.source, END, NULL), comm);
      printf("rank %d did %ld items\n", info.source, done);
      --working;
    }
  }
}

static int run_rank(weir_comm_t comm, int rank) {
  long done = 0;
  if (rank == 0) {
    hand_out(comm);
  } else {
    for (;;) {
      int item = -1;
      weir_tag_info_t info;
      check(weir_tag_send(comm, &done, 1, WEIR_INT64, 0, ASK, NULL), comm);
      check(weir_tag_recv(comm, &item, 1, WEIR_INT32, 0, WEIR_ANY_TAG, &info, NULL), comm);
      if (info.tag == END) break;
      ++done; /* a program would work on the item */
    }
  }
  long all = 0;
  check(weir_all_reduce(comm, &done, &all, 1, WEIR_INT64, WEIR_SUM, NULL), comm);
  return all == ITEM_COUNT ? 0 : 1;
}

int main(void) { return run_ranks(RANK_COUNT, run_rank) != 0; }
