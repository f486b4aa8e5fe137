/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The benchmark of perf/compare, perf/tcp_compare and perf/shaped_compare. One source, compiled
 * against MPI with each package's mpicc, with -DCOMPARE_WEIR against weir.h, and with
 * -DCOMPARE_LAYER against one of perf/compare_tcp: the same buffers, first touch, rotation,
 * warm-up, number of iterations per time, clock and verification on all sides; only the functions
 * of the layer differ.
 *
 * For each operation and size rank 0 prints
 *   result,<op>,<bytes>,<iterations>,<microseconds>,<wrong elements>
 * where bytes are those of the whole operation, and the time is that of one iteration of a loop
 * between two clock readings, the largest over the ranks. With --loops N it is the time below which
 * one in twenty of N such loops stays: the time without other load of the machine. With --apart
 * ranks meet before each iteration, outside of the time, so that iterations do not overlap.
 *
 * With --turns (Weir, with --ranks) a group of ranks is launched for each given value of
 * WEIR_ALGORITHM. Each group measures one loop and then sleeps until all others have measured
 * theirs: what the machine does to one, it does to the others. Rank 0 of each prints
 *   turns,<group>,<op>,<bytes>,<wrong elements>,<microseconds>,...
 * with the time of each loop, in the order of the turns.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static int rank_index;
static int rank_count;
static int apart; /* ranks meet before each iteration */

static void die(const char* what, const char* why) {
  fprintf(stderr, "mpi_perf: rank %d: %s: %s\n", rank_index, what, why);
  exit(3);
}

#ifndef COMPARE_LAYER
enum { RANKS_MAX = 1024 };

/* Of all_to_all_v: between half and one and a half times the mean, more the farther `to` is after
 * `from`. */
static size_t count_between(size_t mean, int from, int to) {
  if (rank_count == 1) return mean;
  const size_t distance = (size_t)((to - from + rank_count) % rank_count);
  return mean / 2 + mean * distance / (size_t)(rank_count - 1);
}
static int next_rank(void) { return (rank_index + 1) % rank_count; }
static int previous_rank(void) { return (rank_index + rank_count - 1) % rank_count; }
#endif

/* ---- The layer: float32 sum on every side --------------------------------------------------- */

#ifdef COMPARE_WEIR

#include <sys/prctl.h>
#include <sys/wait.h>

#include <weir/weir.h>

static weir_comm_t world;

static void check(weir_result_t result, const char* call) {
  if (result != WEIR_OK) die(call, weir_last_error(world));
}
static void layer_start(int* argc, char*** argv) {
  (void)argc;
  (void)argv;
  check(weir_comm_create_from_env(&world, NULL), "weir_comm_create_from_env");
  check(weir_comm_rank(world, &rank_index), "weir_comm_rank");
  check(weir_comm_size(world, &rank_count), "weir_comm_size");
}
static void layer_end(void) {
  weir_comm_destroy(world);
  int state = 0;
  while (rank_index == 0 && wait(&state) > 0) {
    if (state != 0) exit(3); /* of fork_ranks; under a launcher there is nobody to wait for */
  }
}
static void layer_barrier(void) { check(weir_barrier(world, NULL), "weir_barrier"); }
static double layer_max(double mine) {
  /* An algorithm that is forced for another operation may not take 8 bytes. */
  static double sent[RANKS_MAX], got[RANKS_MAX];
  static size_t counts[RANKS_MAX];
  for (int p = 0; p < rank_count; ++p) {
    sent[p] = mine;
    counts[p] = 1;
  }
  check(weir_all_to_all_v(world, sent, counts, NULL, got, counts, NULL, WEIR_FLOAT64, NULL),
        "weir_all_to_all_v");
  for (int p = 0; p < rank_count; ++p) mine = got[p] > mine ? got[p] : mine;
  return mine;
}
static void* layer_window(size_t bytes) {
  void* memory = NULL;
  check(weir_mem_alloc(world, bytes, &memory), "weir_mem_alloc");
  return memory;
}
static void all_reduce(const float* s, float* r, size_t n) {
  check(weir_all_reduce(world, s, r, n, WEIR_FLOAT32, WEIR_SUM, NULL), "weir_all_reduce");
}
static void reduce_scatter(const float* s, float* r, size_t n) {
  check(weir_reduce_scatter(world, s, r, n, WEIR_FLOAT32, WEIR_SUM, NULL), "weir_reduce_scatter");
}
static void all_gather(const float* s, float* r, size_t n) {
  check(weir_all_gather(world, s, r, n, WEIR_FLOAT32, NULL), "weir_all_gather");
}
static void all_to_all(const float* s, float* r, size_t n) {
  check(weir_all_to_all(world, s, r, n, WEIR_FLOAT32, NULL), "weir_all_to_all");
}
static void broadcast(const float* s, float* r, size_t n) {
  (void)s; /* in place, as MPI has it */
  check(weir_broadcast(world, r, r, n, WEIR_FLOAT32, 0, NULL), "weir_broadcast");
}
static void reduce(const float* s, float* r, size_t n) {
  check(weir_reduce(world, s, r, n, WEIR_FLOAT32, WEIR_SUM, 0, NULL), "weir_reduce");
}
static void gather(const float* s, float* r, size_t n) {
  check(weir_gather(world, s, r, n, WEIR_FLOAT32, 0, NULL), "weir_gather");
}
static void scatter(const float* s, float* r, size_t n) {
  check(weir_scatter(world, s, r, n, WEIR_FLOAT32, 0, NULL), "weir_scatter");
}
static void all_to_all_v(const float* s, float* r, size_t n) {
  static size_t of = SIZE_MAX, send_counts[RANKS_MAX], recv_counts[RANKS_MAX];
  for (int p = 0; of != n && p < rank_count; ++p) {
    send_counts[p] = count_between(n, rank_index, p);
    recv_counts[p] = count_between(n, p, rank_index);
  }
  of = n;
  check(weir_all_to_all_v(world, s, send_counts, NULL, r, recv_counts, NULL, WEIR_FLOAT32, NULL),
        "weir_all_to_all_v");
}
static void messages(const float* s, float* r, size_t n) {
  check(weir_group_start(), "weir_group_start");
  check(weir_send(world, s, n, WEIR_FLOAT32, next_rank(), NULL), "weir_send");
  check(weir_recv(world, r, n, WEIR_FLOAT32, previous_rank(), NULL), "weir_recv");
  check(weir_group_end(), "weir_group_end");
}

#elif defined(COMPARE_LAYER)

#include "../compare_tcp/layer.h"

static void layer_start(int* argc, char*** argv) {
  (void)argc;
  (void)argv;
  const char* rank = getenv("WEIR_RANK");
  const char* size = getenv("WEIR_SIZE");
  if (rank == NULL || size == NULL) die("start", "WEIR_RANK and WEIR_SIZE are not set");
  rank_index = atoi(rank);
  rank_count = atoi(size);
  compare_start(rank_index, rank_count);
}
static void layer_end(void) { compare_end(); }
static void layer_barrier(void) { compare_barrier(); }
static double layer_max(double mine) { return compare_max(mine); }
static void* layer_window(size_t bytes) {
  (void)bytes;
  die("--windows", "only Weir has them");
  return NULL;
}
static void all_reduce(const float* s, float* r, size_t n) { compare_all_reduce(s, r, n); }
static void exchange(const float* s, float* r, size_t n) { compare_exchange(s, r, n); }

#else

#include <mpi.h>

static void check(int result, const char* call) {
  if (result != MPI_SUCCESS) die(call, "failed");
}
static void layer_start(int* argc, char*** argv) {
  check(MPI_Init(argc, argv), "MPI_Init");
  check(MPI_Comm_rank(MPI_COMM_WORLD, &rank_index), "MPI_Comm_rank");
  check(MPI_Comm_size(MPI_COMM_WORLD, &rank_count), "MPI_Comm_size");
}
static void layer_end(void) { MPI_Finalize(); }
static void layer_barrier(void) { check(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier"); }
static double layer_max(double mine) {
  double all = 0;
  check(MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD), "MPI_Allreduce");
  return all;
}
static void* layer_window(size_t bytes) {
  (void)bytes;
  die("--windows", "only Weir has them");
  return NULL;
}
static void all_reduce(const float* s, float* r, size_t n) {
  check(MPI_Allreduce(s, r, (int)n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD), "MPI_Allreduce");
}
static void reduce_scatter(const float* s, float* r, size_t n) {
  check(MPI_Reduce_scatter_block(s, r, (int)n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD),
        "MPI_Reduce_scatter_block");
}
static void all_gather(const float* s, float* r, size_t n) {
  check(MPI_Allgather(s, (int)n, MPI_FLOAT, r, (int)n, MPI_FLOAT, MPI_COMM_WORLD), "MPI_Allgather");
}
static void all_to_all(const float* s, float* r, size_t n) {
  check(MPI_Alltoall(s, (int)n, MPI_FLOAT, r, (int)n, MPI_FLOAT, MPI_COMM_WORLD), "MPI_Alltoall");
}
static void broadcast(const float* s, float* r, size_t n) {
  (void)s;
  check(MPI_Bcast(r, (int)n, MPI_FLOAT, 0, MPI_COMM_WORLD), "MPI_Bcast");
}
static void reduce(const float* s, float* r, size_t n) {
  check(MPI_Reduce(s, r, (int)n, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD), "MPI_Reduce");
}
static void gather(const float* s, float* r, size_t n) {
  check(MPI_Gather(s, (int)n, MPI_FLOAT, r, (int)n, MPI_FLOAT, 0, MPI_COMM_WORLD), "MPI_Gather");
}
static void scatter(const float* s, float* r, size_t n) {
  check(MPI_Scatter(s, (int)n, MPI_FLOAT, r, (int)n, MPI_FLOAT, 0, MPI_COMM_WORLD), "MPI_Scatter");
}
static void all_to_all_v(const float* s, float* r, size_t n) {
  static size_t of = SIZE_MAX;
  static int send_counts[RANKS_MAX], recv_counts[RANKS_MAX], send_at[RANKS_MAX], recv_at[RANKS_MAX];
  for (int p = 0; of != n && p < rank_count; ++p) {
    send_counts[p] = (int)count_between(n, rank_index, p);
    recv_counts[p] = (int)count_between(n, p, rank_index);
    send_at[p] = p == 0 ? 0 : send_at[p - 1] + send_counts[p - 1];
    recv_at[p] = p == 0 ? 0 : recv_at[p - 1] + recv_counts[p - 1];
  }
  of = n;
  check(MPI_Alltoallv(s, send_counts, send_at, MPI_FLOAT, r, recv_counts, recv_at, MPI_FLOAT,
                      MPI_COMM_WORLD),
        "MPI_Alltoallv");
}
static void messages(const float* s, float* r, size_t n) {
  check(MPI_Sendrecv(s, (int)n, MPI_FLOAT, next_rank(), 0, r, (int)n, MPI_FLOAT, previous_rank(), 0,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE),
        "MPI_Sendrecv");
}

#endif

/* Weir has no launcher to compare with: with --ranks this program launches the ranks. Like
 * mpirun's, they share one session, which some kernels use for scheduling. */
static void fork_ranks(int count) {
#ifdef COMPARE_WEIR
  char text[32];
  snprintf(text, sizeof(text), "%d", count);
  setenv("WEIR_SIZE", text, 1);
  snprintf(text, sizeof(text), "mpi_perf-%ld-%ld", (long)getpid(), (long)time(NULL));
  setenv("WEIR_ID", text, 1);
  setenv("WEIR_RANK", "0", 1);
  const pid_t parent = getpid();
  for (int rank = 1; rank < count; ++rank) {
    const pid_t child = fork();
    if (child < 0) die("fork", "failed");
    if (child > 0) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(3);
    snprintf(text, sizeof(text), "%d", rank);
    setenv("WEIR_RANK", text, 1);
    return;
  }
#else
  (void)count;
  die("--ranks", "start the ranks with mpirun");
#endif
}

/* ---- Turns ----------------------------------------------------------------------------------- */

enum { GROUPS_MAX = 16, TURN_SECONDS_MAX = 60 };

static int group_index;
static int group_count; /* 0: without turns */
static int ranks_of_group;
static sem_t* turns; /* of each rank of each group; shared */

/* Forks a process for each group; each forks its ranks then. `values`: of WEIR_ALGORITHM, separated
 * by ';'. */
static void fork_groups(const char* values, int ranks) {
#ifdef COMPARE_WEIR
  group_count = 1;
  for (const char* p = values; *p != '\0'; ++p) group_count += *p == ';';
  if (group_count > GROUPS_MAX) die("--turns", "more than 16 groups");
  ranks_of_group = ranks;
  const size_t count = (size_t)group_count * (size_t)ranks;
  turns =
      mmap(NULL, count * sizeof(sem_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (turns == MAP_FAILED) die("mmap", "failed");
  for (size_t i = 0; i < count; ++i) {
    if (sem_init(&turns[i], 1, i < (size_t)ranks) != 0) die("sem_init", "failed");
  }
  const pid_t parent = getpid();
  for (int group = 0; group < group_count; ++group) {
    const size_t length = strcspn(values, ";");
    if (group == group_count - 1 || fork() == 0) {
      group_index = group;
      if (getpid() != parent) prctl(PR_SET_PDEATHSIG, SIGKILL);
      char* value = strndup(values, length);
      if (value == NULL) die("strndup", "no memory");
      if (length > 0) setenv("WEIR_ALGORITHM", value, 1);
      free(value);
      return;
    }
    values += length + 1;
  }
#else
  (void)values;
  (void)ranks;
  die("--turns", "only Weir has it");
#endif
}

static void await_turn(void) {
  if (group_count == 0) return;
  struct timespec end;
  clock_gettime(CLOCK_REALTIME, &end);
  end.tv_sec += TURN_SECONDS_MAX;
  if (sem_timedwait(&turns[group_index * ranks_of_group + rank_index], &end) != 0) {
    die("--turns", "another group does not end its turn");
  }
}

static void pass_turn(void) {
  if (group_count == 0 || rank_index != 0) return;
  const int next = (group_index + 1) % group_count;
  for (int r = 0; r < ranks_of_group; ++r) sem_post(&turns[next * ranks_of_group + r]);
}

/* ---- Operations ------------------------------------------------------------------------------ */

/* `count` elements of the receive buffer are those from `offset` on of the input of rank `source`,
 * or of the sum of all inputs. */
struct part {
  size_t count;
  int source;
  size_t offset;
};
enum { SUM = -1 };

struct operation {
  const char* name;
  void (*call)(const float* send, float* recv, size_t count);
  int send_blocks; /* the send buffer holds 1 or rank_count blocks of count; 0: none */
  int recv_blocks;
  int to_root;                                 /* only rank 0 receives */
  struct part (*part)(size_t count, int from); /* the result, in order */
  int all_parts;                               /* a part from each rank; else one */
};
enum { ONE = 1, ALL = 2 };

static struct part from_previous(size_t count, int from) {
  (void)from;
  return (struct part){count, (rank_index + rank_count - 1) % rank_count, 0};
}
static struct part sum(size_t count, int from) {
  (void)from;
  return (struct part){count, SUM, 0};
}
#ifndef COMPARE_LAYER
static struct part own_block_of_sum(size_t count, int from) {
  (void)from;
  return (struct part){count, SUM, (size_t)rank_index * count};
}
static struct part of_root(size_t count, int from) {
  (void)from;
  return (struct part){count, 0, 0};
}
static struct part own_block_of_root(size_t count, int from) {
  (void)from;
  return (struct part){count, 0, (size_t)rank_index * count};
}
static struct part whole(size_t count, int from) { return (struct part){count, from, 0}; }
static struct part own_block(size_t count, int from) {
  return (struct part){count, from, (size_t)rank_index * count};
}
static struct part own_uneven_block(size_t count, int from) {
  struct part part = {count_between(count, from, rank_index), from, 0};
  for (int to = 0; to < rank_index; ++to) part.offset += count_between(count, from, to);
  return part;
}
#endif

static const struct operation operations[] = {
    {"all_reduce", all_reduce, ONE, ONE, 0, sum, 0},
#ifdef COMPARE_LAYER
    {"exchange", exchange, ONE, ONE, 0, from_previous, 0}, /* of two ranks, each other's buffer */
#else
    {"reduce_scatter", reduce_scatter, ALL, ONE, 0, own_block_of_sum, 0},
    {"all_gather", all_gather, ONE, ALL, 0, whole, 1},
    {"all_to_all", all_to_all, ALL, ALL, 0, own_block, 1},
    {"all_to_all_v", all_to_all_v, ALL, ALL, 0, own_uneven_block, 1},
    {"broadcast", broadcast, 0, ONE, 0, of_root, 0},
    {"reduce", reduce, ONE, ONE, 1, sum, 0},
    {"gather", gather, ONE, ALL, 1, whole, 1},
    {"scatter", scatter, ALL, ONE, 0, own_block_of_root, 0},
    {"messages", messages, ONE, ONE, 0, from_previous, 0}, /* to the next rank, all at once */
#endif
};
enum { OPERATION_COUNT = sizeof(operations) / sizeof(operations[0]) };

static size_t blocks(int code) { return code == ALL ? (size_t)rank_count : (size_t)code; }

/* At least one element per rank: 8 bytes over four ranks become 16. */
static size_t block_count(const struct operation* op, size_t bytes) {
  const int is_whole = op->send_blocks != ALL && op->recv_blocks != ALL;
  const size_t count = bytes / sizeof(float) / (is_whole ? 1 : (size_t)rank_count);
  return count > 0 ? count : 1;
}

/* Element i of a rank's input: small integers, so that sums are exact. It repeats. */
enum { PERIOD = 13, PERIODS = 512 };
static float input(int rank, size_t i) { return (float)((i * 3 + (size_t)rank * 7) % PERIOD); }

static void fill(float* to, size_t count, int rank) {
  const size_t some = PERIOD * PERIODS;
  for (size_t i = 0; i < count && i < some; ++i) to[i] = input(rank, i);
  for (size_t i = some; i < count; i += some) {
    memcpy(to + i, to, (count - i < some ? count - i : some) * sizeof(float));
  }
}

static long wrong_elements(const float* at, struct part part) {
  float wanted[PERIOD * PERIODS];
  const size_t some = PERIOD * PERIODS;
  for (size_t i = 0; i < PERIOD; ++i) {
    wanted[i] = part.source == SUM ? 0 : input(part.source, part.offset + i);
    for (int r = 0; part.source == SUM && r < rank_count; ++r) {
      wanted[i] += input(r, part.offset + i);
    }
  }
  for (size_t i = PERIOD; i < some; ++i) wanted[i] = wanted[i - PERIOD];
  long wrong = 0;
  for (size_t i = 0; i < part.count; i += some) {
    const size_t length = part.count - i < some ? part.count - i : some;
    if (memcmp(at + i, wanted, length * sizeof(float)) == 0) continue;
    for (size_t k = 0; k < length; ++k) wrong += at[i + k] != wanted[k];
  }
  return wrong;
}

static long wrong_in(const struct operation* op, size_t count, const float* recv) {
  if (op->to_root && rank_index != 0) return 0;
  long wrong = 0;
  for (int from = 0; from < (op->all_parts ? rank_count : 1); ++from) {
    const struct part part = op->part(count, from);
    wrong += wrong_elements(recv, part);
    recv += part.count;
  }
  return wrong;
}

/* ---- Buffers --------------------------------------------------------------------------------- */

struct settings {
  const char* ops;
  const char* sizes;
  double target_ms;
  long iterations_min;
  int loops;
  int fixed;
  int pin;       /* by local rank */
  int pin_world; /* by rank, where one machine stands for several hosts */
  int windows;
  size_t cache_bytes;
  int ranks;         /* to fork; 0: a launcher has started them */
  const char* turns; /* of WEIR_ALGORITHM, one for each group; NULL: one group */
};

enum { PAGE = 4096, LINE = 64, LOOPS_MAX = 1000 };

struct slots {
  size_t count;
  size_t send_stride; /* bytes */
  size_t recv_stride;
};

static size_t round_up(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

static size_t stride_of(size_t bytes) {
  return round_up(bytes + LINE, bytes >= PAGE ? PAGE : LINE);
}

static struct slots plan_slots(const struct operation* op, size_t bytes, const struct settings* s) {
  const size_t count = block_count(op, bytes);
  struct slots plan;
  plan.send_stride = stride_of(count * blocks(op->send_blocks) * sizeof(float));
  plan.recv_stride = stride_of(count * blocks(op->recv_blocks) * sizeof(float));
  plan.count = 1;
  if (!s->fixed) {
    const size_t round = (plan.send_stride + plan.recv_stride) * (size_t)rank_count;
    plan.count = (2 * s->cache_bytes + round - 1) / round;
  }
  return plan;
}

static char* allocate(size_t bytes, const struct settings* s) {
  void* memory = NULL;
  if (s->windows) {
    memory = layer_window(bytes);
  } else if (posix_memalign(&memory, PAGE, bytes) != 0) {
    die("posix_memalign", "no memory");
  }
  memset(memory, 0, bytes);
  return memory;
}

/* ---- Measuring ------------------------------------------------------------------------------- */

static double now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int compare_times(const void* a, const void* b) {
  const double x = *(const double*)a;
  const double y = *(const double*)b;
  return (x > y) - (x < y);
}

/* Microseconds of one iteration, the largest over the ranks. */
static double time_loop(const struct operation* op, size_t count, long iterations, char* send,
                        char* recv, const struct slots* plan, size_t* slot) {
  size_t at = *slot;
  layer_barrier();
  const double begin = now_us();
  double met_us = 0;
  for (long i = 0; i < iterations; ++i) {
    if (++at >= plan->count) at = 0;
    if (apart) {
      const double before = now_us();
      layer_barrier();
      met_us += now_us() - before;
    }
    op->call((const float*)(const void*)(send + at * plan->send_stride),
             (float*)(void*)(recv + at * plan->recv_stride), count);
  }
  const double mine = (now_us() - begin - met_us) / (double)iterations;
  *slot = at;
  return layer_max(mine);
}

static const float* result_at(const char* recv, size_t slot, const struct slots* plan) {
  return (const float*)(const void*)(recv + slot * plan->recv_stride);
}

static void print_turns(const struct operation* op, size_t bytes, int loops, const double* times,
                        long wrong) {
  if (rank_index != 0) return;
  printf("turns,%d,%s,%zu,%ld", group_index, op->name, bytes, wrong);
  for (int i = 0; i < loops; ++i) printf(",%.6f", times[i]);
  printf("\n");
  fflush(stdout);
}

static void measure(const struct operation* op, size_t bytes, const struct settings* s, char* send,
                    char* recv) {
  const size_t count = block_count(op, bytes);
  const size_t send_count = count * blocks(op->send_blocks);
  const size_t recv_count = count * blocks(op->recv_blocks);
  const struct slots plan = plan_slots(op, bytes, s);
  for (size_t k = 0; k < plan.count; ++k) {
    float* out = (float*)(void*)(send + k * plan.send_stride);
    float* in = (float*)(void*)(recv + k * plan.recv_stride);
    fill(out, send_count, rank_index);
    /* An operation without a send buffer has its input in the receive buffer. */
    if (op->send_blocks == 0 && rank_index == 0) {
      fill(in, recv_count, 0);
    } else {
      for (size_t i = 0; i < recv_count; ++i) in[i] = -1;
    }
  }

  /* Warm-up, twice as long each time until the fastest loop would fill a tenth of the target: an
   * interrupted loop must not decide how many iterations are enough. All ranks see the same times
   * and so run the same loops. */
  await_turn();
  size_t slot = 0;
  long iterations = 2;
  double us = time_loop(op, count, iterations, send, recv, &plan, &slot);
  while (us * (double)iterations < s->target_ms * 100 && iterations < 1000000) {
    iterations *= 2;
    const double now = time_loop(op, count, iterations, send, recv, &plan, &slot);
    if (now < us) us = now;
  }
  iterations = (long)(s->target_ms * 1000 / us);
  if (iterations < s->iterations_min) iterations = s->iterations_min;
  pass_turn();
  double times[LOOPS_MAX];
  for (int i = 0; i < s->loops; ++i) {
    await_turn();
    if (group_count > 0) time_loop(op, count, 1, send, recv, &plan, &slot); /* fills caches */
    times[i] = time_loop(op, count, iterations, send, recv, &plan, &slot);
    pass_turn();
  }
  if (group_count > 0) {
    await_turn();
    print_turns(op, bytes, s->loops, times,
                (long)layer_max((double)wrong_in(op, count, result_at(recv, slot, &plan))));
    pass_turn();
    return;
  }
  qsort(times, (size_t)s->loops, sizeof(times[0]), compare_times);
  us = times[s->loops / 20];

  const long wrong_most =
      (long)layer_max((double)wrong_in(op, count, result_at(recv, slot, &plan)));
  if (rank_index == 0) {
    printf("result,%s,%zu,%ld,%.6f,%ld\n", op->name, bytes, iterations, us, wrong_most);
    fflush(stdout);
  }
}

/* ---- Command line ---------------------------------------------------------------------------- */

static int listed(const char* list, const char* name) {
  const size_t length = strlen(name);
  for (const char* p = list; (p = strstr(p, name)) != NULL; p += length) {
    const int begins = p == list || p[-1] == ',';
    const int ends = p[length] == '\0' || p[length] == ',';
    if (begins && ends) return 1;
  }
  return 0;
}

/* Before the library starts, so that it sees the final affinity. */
static void pin(int world) {
  const char* names[] = {world ? "OMPI_COMM_WORLD_RANK" : "OMPI_COMM_WORLD_LOCAL_RANK",
                         world ? "PMI_RANK" : "MPI_LOCALRANKID", "PMI_RANK", "WEIR_RANK"};
  const char* text = NULL;
  for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && text == NULL; ++i) {
    text = getenv(names[i]);
  }
  if (text == NULL) die("--pin", "no rank in the environment");
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) die("sched_getaffinity", "failed");
  int left = atoi(text) % CPU_COUNT(&allowed);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || left-- > 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    if (sched_setaffinity(0, sizeof(one), &one) != 0) die("sched_setaffinity", "failed");
    return;
  }
}

static void parse(int argc, char** argv, struct settings* s) {
  for (int i = 1; i < argc; ++i) {
    const char* value = i + 1 < argc ? argv[i + 1] : NULL;
    if (strcmp(argv[i], "--fixed") == 0) {
      s->fixed = 1;
    } else if (strcmp(argv[i], "--pin") == 0) {
      s->pin = 1;
    } else if (strcmp(argv[i], "--pin-world") == 0) {
      s->pin_world = 1;
    } else if (strcmp(argv[i], "--windows") == 0) {
      s->windows = 1;
    } else if (strcmp(argv[i], "--apart") == 0) {
      apart = 1;
    } else if (value == NULL) {
      die(argv[i], "unknown option, or its value is missing");
    } else if (strcmp(argv[i], "--ops") == 0) {
      s->ops = argv[++i];
    } else if (strcmp(argv[i], "--sizes") == 0) {
      s->sizes = argv[++i];
    } else if (strcmp(argv[i], "--target-ms") == 0) {
      s->target_ms = atof(argv[++i]);
    } else if (strcmp(argv[i], "--min-iterations") == 0) {
      s->iterations_min = atol(argv[++i]);
    } else if (strcmp(argv[i], "--loops") == 0) {
      s->loops = atoi(argv[++i]);
      if (s->loops < 1 || s->loops > LOOPS_MAX) die("--loops", "from 1 to 1000");
    } else if (strcmp(argv[i], "--ranks") == 0) {
      s->ranks = atoi(argv[++i]);
    } else if (strcmp(argv[i], "--turns") == 0) {
      s->turns = argv[++i];
    } else if (strcmp(argv[i], "--cache-bytes") == 0) {
      s->cache_bytes = strtoull(argv[++i], NULL, 10);
    } else {
      die(argv[i], "unknown option");
    }
  }
}

int main(int argc, char** argv) {
  struct settings s = {.ops =
                           "all_reduce,reduce_scatter,all_gather,all_to_all,all_to_all_v,"
                           "broadcast,reduce,gather,scatter,messages",
                       .sizes = "8,1024,16384,262144,1048576,16777216,67108864",
                       .target_ms = 75,
                       .iterations_min = 4,
                       .loops = 1,
                       .cache_bytes = 32u << 20};
  parse(argc, argv, &s);
  if (s.turns != NULL && s.ranks < 1) die("--turns", "--ranks is missing");
  if (s.turns != NULL) fork_groups(s.turns, s.ranks);
  if (s.ranks > 0) fork_ranks(s.ranks);
  if (s.pin || s.pin_world) pin(s.pin_world);
  layer_start(&argc, &argv);

  size_t send_bytes = 0;
  size_t recv_bytes = 0;
  for (int pass = 0; pass < 2; ++pass) { /* first the largest arenas, then the measurements */
    char* send = pass == 0 ? NULL : allocate(send_bytes, &s);
    char* recv = pass == 0 ? NULL : allocate(recv_bytes, &s);
    for (int k = 0; k < OPERATION_COUNT; ++k) {
      const struct operation* op = &operations[k];
      if (!listed(s.ops, op->name)) continue;
      for (const char* p = s.sizes; *p != '\0';) {
        char* end = NULL;
        const size_t bytes = strtoull(p, &end, 10);
        if (end == p) die("--sizes", "not a number");
        p = *end == ',' ? end + 1 : end;
        if (pass == 0) {
          const struct slots plan = plan_slots(op, bytes, &s);
          if (plan.count * plan.send_stride > send_bytes)
            send_bytes = plan.count * plan.send_stride;
          if (plan.count * plan.recv_stride > recv_bytes)
            recv_bytes = plan.count * plan.recv_stride;
        } else {
          measure(op, bytes, &s, send, recv);
        }
      }
    }
  }
  layer_end();
  return 0;
}
