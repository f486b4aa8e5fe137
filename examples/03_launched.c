/* SPDX-License-Identifier: Apache-2.0 */
/*
 * 03: processes that a launcher started. Rank, size and meeting point come from its environment;
 * the program is the same under all launchers and needs no MPI.
 *
 *   mpirun -n 4 ./03_launched
 *   srun -n 4 ./03_launched
 *   torchrun --nproc-per-node 4 --no-python ./03_launched
 *   for r in 0 1; do WEIR_RANK=$r WEIR_SIZE=2 WEIR_ID=try ./03_launched & done; wait
 */
#include <stdio.h>
#include <stdlib.h>

#include <weir/weir.h>

static void check(weir_result_t result, weir_comm_t comm) {
  if (result == WEIR_OK) return;
  fprintf(stderr, "%s: %s\n", weir_result_string(result), weir_last_error(comm));
  exit(1);
}

int main(void) {
  weir_comm_t comm = NULL;
  check(weir_comm_create_from_env(&comm, NULL), NULL);
  int rank = 0;
  int size = 0;
  check(weir_comm_rank(comm, &rank), comm);
  check(weir_comm_size(comm, &size), comm);

  /* Rank 0 decides something and sends it to all ranks. */
  double step = rank == 0 ? 0.125 : 0;
  check(weir_broadcast(comm, &step, &step, 1, WEIR_FLOAT64, 0, NULL), comm);

  /* Every rank integrates its share of 4 / (1 + x^2) over [0, 1]; the shares add up to pi. */
  const long intervals = 1000000;
  double mine = 0;
  for (long i = rank; i < intervals; i += size) {
    const double x = ((double)i + 0.5) / (double)intervals;
    mine += 4 / (1 + x * x) / (double)intervals;
  }
  double pi = 0;
  check(weir_reduce(comm, &mine, &pi, 1, WEIR_FLOAT64, WEIR_SUM, 0, NULL), comm);

  if (rank == 0) printf("%d ranks, step %g: pi is about %.9f\n", size, step, pi);
  check(weir_barrier(comm, NULL), comm);
  check(weir_comm_destroy(comm), NULL);
  const int right = step == 0.125 && (rank != 0 || (pi > 3.14159265 && pi < 3.14159266));
  return right ? 0 : 1;
}
