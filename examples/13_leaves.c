/* SPDX-License-Identifier: Apache-2.0 */
/*
 * 13: a sum over a fixed number of leaves. A batch of 16 examples is summed by 1, 2, 3, 4 and 8
 * ranks, each of which computes its share of them, one after the other. The bits of the sum are the
 * same; those of an ordinary all-reduce need not be.
 *
 *   ./13_leaves
 */
#include <stdint.h>
#include <string.h>

#include "example.h"

enum { LEAF_COUNT = 16, ELEMENT_COUNT = 1000 };

/* Stands for the gradient of one example. */
static void compute_leaf(int leaf, float* out) {
  for (int i = 0; i < ELEMENT_COUNT; ++i) {
    out[i] = 1.0f / (float)(1 + (leaf * 7919 + i * 104729) % 1009) - 0.004f;
  }
}

static uint32_t hash_of(const float* values) {
  uint32_t hash = 2166136261u;
  for (int i = 0; i < ELEMENT_COUNT; ++i) {
    uint32_t bits;
    memcpy(&bits, &values[i], sizeof bits);
    hash = (hash ^ bits) * 16777619u;
  }
  return hash;
}

/* The sum over all leaves, of which this rank computes its share. */
static void sum_leaves(weir_comm_t comm, int rank_count, int rank, float* sum) {
  weir_leaf_share_t share = WEIR_LEAF_SHARE_INIT;
  check(weir_leaf_share(LEAF_COUNT, rank_count, rank, &share), comm);
  float* nodes = malloc((size_t)share.node_capacity * ELEMENT_COUNT * sizeof *nodes);
  float* leaf = malloc(ELEMENT_COUNT * sizeof *leaf);
  weir_tree_fold_t fold = WEIR_TREE_FOLD_INIT;
  fold.leaf_count = LEAF_COUNT;
  fold.rank_count = rank_count;
  fold.rank = rank;
  fold.count = ELEMENT_COUNT;
  fold.nodes = nodes;
  for (int i = 0; i < share.leaf_count; ++i) {
    compute_leaf(share.first_leaf + i, leaf);
    const void* next[] = {leaf}; /* NULL instead of `leaf`: it is absent */
    check(weir_tree_fold(&fold, next, 1, WEIR_FLOAT32), comm);
  }
  check(weir_all_reduce_leaves(comm, nodes, sum, ELEMENT_COUNT, LEAF_COUNT, WEIR_FLOAT32, WEIR_AVG,
                               NULL),
        comm);
  free(leaf);
  free(nodes);
}

static uint32_t expected; /* the hash that one rank gets */

static int run_rank(weir_comm_t comm, int rank) {
  int rank_count = 0;
  check(weir_comm_size(comm, &rank_count), comm);
  float sum[ELEMENT_COUNT];
  sum_leaves(comm, rank_count, rank, sum);
  if (rank == 0) printf("%d ranks: %08x\n", rank_count, (unsigned)hash_of(sum));
  return expected != 0 && hash_of(sum) != expected;
}

int main(void) {
  /* Once in this process, alone. */
  weir_unique_id_t id;
  weir_comm_t alone = NULL;
  float sum[ELEMENT_COUNT];
  check(weir_get_unique_id(&id), NULL);
  check(weir_comm_create(&alone, 1, &id, 0, NULL), NULL);
  sum_leaves(alone, 1, 0, sum);
  check(weir_comm_destroy(alone), NULL);
  expected = hash_of(sum);

  const int rank_counts[] = {1, 2, 3, 4, 8};
  int failed = 0;
  for (int i = 0; i < 5; ++i) failed += run_ranks(rank_counts[i], run_rank);
  return failed != 0;
}
