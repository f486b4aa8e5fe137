/* SPDX-License-Identifier: Apache-2.0 */
#include "collectives/programs.h"

#include <stdio.h>
#include <stdlib.h>

static char problem[1000];

/* What element `i` of rank `rank` is. */
static int64_t value_of(int rank, size_t i) { return (int64_t)(i % 977) * (rank + 1) + rank; }

static const char* reduce(weir_comm_t comm, size_t count, int in_place, weir_redop_t op) {
  int rank, rank_count;
  if (weir_comm_rank(comm, &rank) != WEIR_OK || weir_comm_size(comm, &rank_count) != WEIR_OK) {
    return "the communicator does not know its rank";
  }
  int64_t* const input = malloc((count + 1) * sizeof *input);
  int64_t* const output = in_place ? input : malloc((count + 1) * sizeof *output);
  const char* wrong = NULL;
  for (size_t i = 0; i < count; ++i) input[i] = value_of(rank, i);
  if (weir_all_reduce(comm, input, output, count, WEIR_INT64, op, NULL) != WEIR_OK) {
    wrong = weir_last_error(comm);
  }
  for (size_t i = 0; wrong == NULL && i < count; ++i) {
    int64_t sum = 0;
    for (int r = 0; r < rank_count; ++r) sum += value_of(r, i);
    const int64_t expected = op == WEIR_AVG ? sum / rank_count : sum;
    if (output[i] == expected) continue;
    snprintf(problem, sizeof problem, "element %zu of %zu is %lld, not %lld%s", i, count,
             (long long)output[i], (long long)expected, in_place ? ", in place" : "");
    wrong = problem;
  }
  if (output != input) free(output);
  free(input);
  return wrong;
}

const char* add_and_reduce(weir_comm_t comm, const char* name, const char* text, size_t bytes,
                           uint32_t flags) {
  static const size_t counts[] = {1, 5, 64, 1000, 100003, 1000000};
  if (weir_comm_add_program(comm, name, text, bytes, flags) != WEIR_OK) {
    return weir_last_error(comm);
  }
  for (size_t i = 0; i < sizeof counts / sizeof *counts; ++i) {
    for (int way = 0; way < 4; ++way) {
      const char* const wrong =
          reduce(comm, counts[i], way % 2, way < 2 ? (weir_redop_t)WEIR_SUM : WEIR_AVG);
      if (wrong != NULL) return wrong;
    }
  }
  return NULL;
}
