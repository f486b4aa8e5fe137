/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a communicator through PMIx before or within the time in which the program uses MPI, which
 * uses PMIx as well. The argument says when. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "weir/weir.h"

static void check(weir_result_t result, const char* what) {
  if (result == WEIR_OK) return;
  fprintf(stderr, "%s: %s\n", what, weir_last_error(NULL));
  exit(1);
}

static void use_weir(void) {
  weir_comm_t comm = NULL;
  int rank = 0;
  int count = 0;
  int sum = 1;
  check(weir_comm_create_from_env(&comm, NULL), "weir_comm_create_from_env");
  check(weir_comm_rank(comm, &rank), "weir_comm_rank");
  check(weir_comm_size(comm, &count), "weir_comm_size");
  check(weir_all_reduce(comm, &sum, &sum, 1, WEIR_INT32, WEIR_SUM, NULL), "weir_all_reduce");
  if (sum != count || rank >= count) exit(2);
  weir_comm_destroy(comm);
}

int main(int argc, char** argv) {
  const char* when = argc > 1 ? argv[1] : "";
  int size = 0;
  if (strcmp(when, "before") == 0) use_weir();
  if (MPI_Init(&argc, &argv) != MPI_SUCCESS) return 3;
  if (strcmp(when, "within") == 0) use_weir();
  if (MPI_Barrier(MPI_COMM_WORLD) != MPI_SUCCESS) return 3;
  if (MPI_Comm_size(MPI_COMM_WORLD, &size) != MPI_SUCCESS || size != 3) return 4;
  MPI_Finalize();
  return 0;
}
