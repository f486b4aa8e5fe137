/* SPDX-License-Identifier: Apache-2.0 */
/*
 * 14: an arena. Each rank takes buffers from it by itself, of any size and in any order; calls read
 * them in place, wherever they lie on each rank. Here: the steps of a model whose parameters are
 * split over the ranks. The layers' buffers come and go as they are needed.
 *
 *   ./14_arena
 */
#include <string.h>

#include "example.h"

enum { RANKS = 2, LAYERS = 4, SHARD = 1 << 16, STEPS = 3 };

static float* take(weir_arena_t arena, size_t count) {
  void* memory = NULL;
  check(weir_arena_alloc(arena, count * sizeof(float), &memory), NULL);
  return memory;
}

static int run_rank(weir_comm_t comm, int rank) {
  /* Collective. Address space; memory is taken when it is touched. */
  weir_arena_t arena = NULL;
  check(weir_arena_create(comm, (size_t)1 << 30, &arena), comm);

  float* shards[LAYERS]; /* of the parameters, ordinary memory */
  for (int layer = 0; layer < LAYERS; ++layer) {
    shards[layer] = malloc(SHARD * sizeof(float));
    if (shards[layer] == NULL) return 1;
    for (int i = 0; i < SHARD; ++i) shards[layer][i] = 1;
  }
  for (int step = 0; step < STEPS; ++step) {
    for (int layer = 0; layer < LAYERS; ++layer) {
      /* The whole layer, gathered in place. */
      float* parameters = take(arena, (size_t)RANKS * SHARD);
      float* own = parameters + (size_t)rank * SHARD;
      memcpy(own, shards[layer], SHARD * sizeof(float));
      check(weir_all_gather(comm, own, parameters, SHARD, WEIR_FLOAT32, NULL), comm);

      /* "Computing", and the sum of the gradients for this rank's shard. */
      float* gradients = take(arena, (size_t)RANKS * SHARD);
      float* reduced = take(arena, SHARD);
      for (int i = 0; i < RANKS * SHARD; ++i) gradients[i] = parameters[i] * (float)(rank + 1);
      /* The call is complete, so no other rank reads the buffer any more. */
      check(weir_arena_free(arena, parameters), NULL);
      check(weir_reduce_scatter(comm, gradients, reduced, SHARD, WEIR_FLOAT32, WEIR_SUM, NULL),
            comm);
      check(weir_arena_free(arena, gradients), NULL);
      for (int i = 0; i < SHARD; ++i) shards[layer][i] += reduced[i];
      check(weir_arena_free(arena, reduced), NULL);
    }
  }
  weir_arena_usage_t info = WEIR_ARENA_USAGE_INIT;
  check(weir_arena_info(arena, &info), NULL);
  /* 1 + (1 + 2) times itself, in each step. */
  const int good = shards[0][0] == 64 && shards[LAYERS - 1][SHARD - 1] == 64;
  if (rank == 0) {
    printf("%d steps of %d layers; %.1f MiB were read and written by rank 0\n", STEPS, LAYERS,
           (double)info.touched_bytes / 1048576);
  }
  for (int layer = 0; layer < LAYERS; ++layer) free(shards[layer]);
  check(weir_arena_destroy(arena), NULL);
  return good ? 0 : 1;
}

int main(void) { return run_ranks(RANKS, run_rank) != 0; }
