/* SPDX-License-Identifier: Apache-2.0 */
/* What the examples from 04 on share: an error check, and ranks as forked processes (as 01 shows).
 */
#ifndef WEIR_EXAMPLES_EXAMPLE_H_
#define WEIR_EXAMPLES_EXAMPLE_H_

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <weir/weir.h>

/* Every call returns a result; the text says which rank, which peer and what to do. */
static inline void check(weir_result_t result, weir_comm_t comm) {
  if (result == WEIR_OK) return;
  fprintf(stderr, "%s: %s\n", weir_result_string(result), weir_last_error(comm));
  exit(1);
}

/* Runs body(comm, rank) in `rank_count` processes. Returns how many of them failed. */
static inline int run_ranks(int rank_count, int (*body)(weir_comm_t comm, int rank)) {
  weir_unique_id_t id;
  check(weir_get_unique_id(&id), NULL);
  for (int rank = 0; rank < rank_count; ++rank) {
    if (fork() == 0) {
      weir_comm_t comm = NULL;
      check(weir_comm_create(&comm, rank_count, &id, rank, NULL), NULL);
      const int status = body(comm, rank);
      check(weir_comm_destroy(comm), NULL);
      exit(status);
    }
  }
  int failed = 0;
  for (int state = 0; wait(&state) > 0;) failed += !WIFEXITED(state) || WEXITSTATUS(state) != 0;
  return failed;
}

#endif /* WEIR_EXAMPLES_EXAMPLE_H_ */
