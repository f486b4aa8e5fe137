/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program written against NCCL's documentation and nothing else: no header and no function of
 * Weir's. It runs every collective with every data type and reduction, messages, groups, split and
 * the config calls between N ranks, and checks every value.
 *
 *   program all N        one thread holds all communicators (ncclCommInitAll)
 *   program threads N    a thread for each rank
 *   program processes N  a process for each rank
 *
 * Host memory, and the NULL stream: a call is complete when it, or its group's end, returns.
 */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <nccl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { kRanksMax = 16, kCountMax = 3000 };

#define CHECK(call)                                                     \
  do {                                                                  \
    ncclResult_t result_ = (call);                                      \
    if (result_ != ncclSuccess) {                                       \
      fprintf(stderr, "%s:%d: %s: %s: %s\n", __FILE__, __LINE__, #call, \
              ncclGetErrorString(result_), ncclGetLastError(NULL));     \
      exit(1);                                                          \
    }                                                                   \
  } while (0)

#define EXPECT(condition)                                                       \
  do {                                                                          \
    if (!(condition)) {                                                         \
      fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                                  \
    }                                                                           \
  } while (0)

/* The ranks that one thread drives. */
struct part {
  int ranks;      /* of the whole communicator */
  int mine;       /* driven here */
  int first_rank; /* theirs are first_rank, first_rank + 1, ... */
  ncclComm_t comms[kRanksMax];
};

enum kind {
  kAllReduce,
  kReduce,
  kBroadcast,
  kBcast,
  kReduceScatter,
  kAllGather,
  kAlltoAll,
  kGather,
  kScatter,
  kKinds
};
static const char* const kind_names[kKinds] = {"AllReduce", "Reduce",        "Broadcast",
                                               "Bcast",     "ReduceScatter", "AllGather",
                                               "AlltoAll",  "Gather",        "Scatter"};

/* ---- Elements: small whole numbers, which every type holds exactly --------------------------- */

static size_t element_bytes(ncclDataType_t type) {
  static const size_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return bytes[type];
}

static unsigned pack_float(double value, int exponent_bits, int mantissa_bits) {
  int exponent;
  const double fraction = frexp(value, &exponent);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  if (value == 0) return 0;
  return (unsigned)((exponent - 1 + bias) << mantissa_bits) +
         (unsigned)((2 * fraction - 1) * (1 << mantissa_bits));
}

static void store(void* buffer, size_t index, ncclDataType_t type, double value) {
  unsigned char* at = (unsigned char*)buffer + index * element_bytes(type);
  unsigned bits;
  unsigned short half;
  long long wide = (long long)value;
  int narrow = (int)value;
  float single = (float)value;
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      *at = (unsigned char)narrow;
      break;
    case ncclInt32:
    case ncclUint32:
      memcpy(at, &narrow, 4);
      break;
    case ncclInt64:
    case ncclUint64:
      memcpy(at, &wide, 8);
      break;
    case ncclFloat32:
      memcpy(at, &single, 4);
      break;
    case ncclFloat64:
      memcpy(at, &value, 8);
      break;
    case ncclFloat16:
    case ncclBfloat16:
      bits = type == ncclFloat16 ? pack_float(value, 5, 10) : pack_float(value, 8, 7);
      half = (unsigned short)bits;
      memcpy(at, &half, 2);
      break;
    default:
      bits = type == ncclFloat8e4m3 ? pack_float(value, 4, 3) : pack_float(value, 5, 2);
      *at = (unsigned char)bits;
      break;
  }
}

/* What rank `rank` puts in at `index`: sums of four ranks stay below 8, products are powers of
 * 2. */
static double input(ncclRedOp_t op, int ranks, int rank, size_t index) {
  if (op == ncclProd) return ((size_t)rank + index) % 2 == 0 ? 1 : 2;
  if (op == ncclAvg) return (double)(index % 3) + (rank == 0 ? ranks : 0);
  return (double)(((size_t)rank * 2 + index) % 3);
}

static double reduced(ncclRedOp_t op, int ranks, size_t index) {
  double result = input(op, ranks, 0, index);
  for (int rank = 1; rank < ranks; ++rank) {
    const double value = input(op, ranks, rank, index);
    if (op == ncclProd) {
      result *= value;
    } else if (op == ncclMax) {
      result = value > result ? value : result;
    } else if (op == ncclMin) {
      result = value < result ? value : result;
    } else {
      result += value;
    }
  }
  return op == ncclAvg ? result / ranks : result;
}

/* ---- One collective -------------------------------------------------------------------------- */

struct sizes {
  size_t send, recv;
};

static struct sizes sizes_of(enum kind kind, size_t count, int ranks) {
  const size_t all = count * (size_t)ranks;
  struct sizes sizes = {count, count};
  if (kind == kReduceScatter || kind == kAlltoAll || kind == kScatter) sizes.send = all;
  if (kind == kAllGather || kind == kAlltoAll || kind == kGather) sizes.recv = all;
  return sizes;
}

static void call(enum kind kind, const void* send, void* recv, size_t count, ncclDataType_t type,
                 ncclRedOp_t op, int root, ncclComm_t comm) {
  switch (kind) {
    case kAllReduce:
      CHECK(ncclAllReduce(send, recv, count, type, op, comm, NULL));
      break;
    case kReduce:
      CHECK(ncclReduce(send, recv, count, type, op, root, comm, NULL));
      break;
    case kBroadcast:
      CHECK(ncclBroadcast(send, recv, count, type, root, comm, NULL));
      break;
    case kBcast:
      CHECK(ncclBcast(recv, count, type, root, comm, NULL));
      break;
    case kReduceScatter:
      CHECK(ncclReduceScatter(send, recv, count, type, op, comm, NULL));
      break;
    case kAllGather:
      CHECK(ncclAllGather(send, recv, count, type, comm, NULL));
      break;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 3)
    case kAlltoAll:
      CHECK(ncclAlltoAll(send, recv, count, type, comm, NULL));
      break;
    case kGather:
      CHECK(ncclGather(send, recv, count, type, root, comm, NULL));
      break;
    case kScatter:
      CHECK(ncclScatter(send, recv, count, type, root, comm, NULL));
      break;
#endif
    default:
      break;
  }
}

/* The value that belongs at `index` of rank's recv buffer. */
static double expected(enum kind kind, ncclRedOp_t op, int ranks, int rank, int root, size_t count,
                       size_t index) {
  const int block = (int)(index / (count > 0 ? count : 1));
  const size_t within = count > 0 ? index % count : 0;
  switch (kind) {
    case kAllReduce:
    case kReduce:
      return reduced(op, ranks, index);
    case kBroadcast:
    case kBcast:
      return input(op, ranks, root, index);
    case kReduceScatter:
      return reduced(op, ranks, (size_t)rank * count + index);
    case kAllGather:
    case kGather:
      return input(op, ranks, block, within);
    case kAlltoAll:
      return input(op, ranks, block, (size_t)rank * count + within);
    default:
      return input(op, ranks, root, (size_t)rank * count + index);
  }
}

static int has_result(enum kind kind, int rank, int root) {
  return (kind != kReduce && kind != kGather) || rank == root;
}

/* in_place: the buffers overlap as NCCL allows it. */
static void check_collective(const struct part* part, enum kind kind, ncclDataType_t type,
                             ncclRedOp_t op, size_t count, int root, int in_place) {
  const int ranks = part->ranks;
  const struct sizes sizes = sizes_of(kind, count, ranks);
  const size_t bytes = element_bytes(type);
  unsigned char* send[kRanksMax];
  unsigned char* recv[kRanksMax];
  unsigned char* memory[kRanksMax];
  for (int i = 0; i < part->mine; ++i) {
    const int rank = part->first_rank + i;
    memory[i] = malloc((sizes.send + sizes.recv) * bytes + 1);
    EXPECT(memory[i] != NULL);
    memset(memory[i], 0x55, (sizes.send + sizes.recv) * bytes + 1);
    send[i] = memory[i];
    recv[i] = memory[i] + sizes.send * bytes;
    if (in_place) {
      recv[i] = memory[i];
      if (kind == kAllGather) send[i] = recv[i] + (size_t)rank * count * bytes;
      if (kind == kGather && rank == root) send[i] = recv[i] + (size_t)rank * count * bytes;
      if (kind == kGather && rank != root) recv[i] = memory[i] + sizes.send * bytes;
      if (kind == kReduceScatter) recv[i] = send[i] + (size_t)rank * count * bytes;
      if (kind == kScatter && rank == root) recv[i] = send[i] + (size_t)rank * count * bytes;
      if (kind == kScatter && rank != root) recv[i] = memory[i] + sizes.send * bytes;
    }
    for (size_t k = 0; k < sizes.send; ++k) store(send[i], k, type, input(op, ranks, rank, k));
    if (kind == kBcast) memcpy(recv[i], send[i], sizes.recv * bytes);
  }
  CHECK(ncclGroupStart());
  for (int i = 0; i < part->mine; ++i) {
    const int rank = part->first_rank + i;
    void* to = has_result(kind, rank, root) ? recv[i] : NULL;
    call(kind, send[i], to, count, type, op, root, part->comms[i]);
  }
  CHECK(ncclGroupEnd());
  for (int i = 0; i < part->mine; ++i) {
    const int rank = part->first_rank + i;
    if (has_result(kind, rank, root)) {
      for (size_t k = 0; k < sizes.recv; ++k) {
        unsigned char want[8];
        store(want, 0, type, expected(kind, op, ranks, rank, root, count, k));
        if (memcmp(want, recv[i] + k * bytes, bytes) != 0) {
          fprintf(stderr,
                  "%s type %d op %d count %zu root %d in place %d: rank %d of %d: element %zu is "
                  "wrong\n",
                  kind_names[kind], (int)type, (int)op, count, root, in_place, rank, ranks, k);
          exit(1);
        }
      }
    }
    free(memory[i]);
  }
}

static int reduces(enum kind kind) {
  return kind == kAllReduce || kind == kReduce || kind == kReduceScatter;
}

static void check_all_collectives(const struct part* part) {
  static const size_t counts[] = {0, 1, 17, kCountMax};
  const int kinds = NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 3) ? kKinds : kAlltoAll;
  for (int kind = 0; kind < kinds; ++kind) {
    for (int type = 0; type < ncclNumTypes; ++type) {
      for (int op = 0; op < (reduces((enum kind)kind) ? ncclNumOps : 1); ++op) {
        for (size_t c = 0; c < sizeof counts / sizeof counts[0]; ++c) {
          const int root = (type + op) % part->ranks;
          for (int in_place = 0; in_place < (kind == kBcast ? 1 : 2); ++in_place) {
            /* NCCL has no all-to-all in place. */
            if (kind == kAlltoAll && in_place) continue;
            check_collective(part, (enum kind)kind, (ncclDataType_t)type, (ncclRedOp_t)op,
                             counts[c], root, in_place);
          }
        }
      }
    }
  }
}

/* ---- Messages, groups, factors, split -------------------------------------------------------- */

/* A ring, an exchange of everybody with everybody (also with oneself), and a collective, in one
 * group and in an order that would deadlock outside of one. */
static void check_group(const struct part* part) {
  enum { kEach = 500 };
  const int n = part->ranks;
  static const int kSum = 1000;
  int* out[kRanksMax];
  int* in[kRanksMax];
  long long* sum[kRanksMax];
  CHECK(ncclGroupStart());
  for (int i = 0; i < part->mine; ++i) {
    const int rank = part->first_rank + i;
    out[i] = malloc(sizeof(int) * kEach * (size_t)n);
    in[i] = calloc((size_t)n * kEach, sizeof(int));
    sum[i] = malloc(sizeof(long long) * (size_t)kSum);
    EXPECT(out[i] != NULL && in[i] != NULL && sum[i] != NULL);
    for (int k = 0; k < n * kEach; ++k) out[i][k] = rank * 1000000 + k;
    for (int k = 0; k < kSum; ++k) sum[i][k] = rank + k;
    CHECK(ncclGroupStart());
    for (int peer = 0; peer < n; ++peer) {
      CHECK(ncclRecv(in[i] + peer * kEach, kEach, ncclInt, peer, part->comms[i], NULL));
    }
    CHECK(ncclAllReduce(sum[i], sum[i], (size_t)kSum, ncclInt64, ncclSum, part->comms[i], NULL));
    for (int peer = 0; peer < n; ++peer) {
      CHECK(ncclSend(out[i] + peer * kEach, kEach, ncclInt, peer, part->comms[i], NULL));
    }
    CHECK(ncclGroupEnd());
  }
  CHECK(ncclGroupEnd());
  for (int i = 0; i < part->mine; ++i) {
    const int rank = part->first_rank + i;
    for (int peer = 0; peer < n; ++peer) {
      for (int k = 0; k < kEach; ++k) {
        EXPECT(in[i][peer * kEach + k] == peer * 1000000 + rank * kEach + k);
      }
    }
    for (int k = 0; k < kSum; ++k) EXPECT(sum[i][k] == (long long)n * k + n * (n - 1) / 2);
    free(out[i]);
    free(in[i]);
    free(sum[i]);
  }
}

/* Rank r weighs its input by r + 1. The operation is destroyed before the group ends. */
static void check_factor(const struct part* part) {
  float data[kRanksMax][64];
  float scalars[kRanksMax];
  const int n = part->ranks;
  for (int residence = 0; residence < 2; ++residence) {
    CHECK(ncclGroupStart());
    for (int i = 0; i < part->mine; ++i) {
      ncclRedOp_t op;
      scalars[i] = (float)(part->first_rank + i + 1);
      for (int k = 0; k < 64; ++k) data[i][k] = (float)k;
      CHECK(ncclRedOpCreatePreMulSum(&op, &scalars[i], ncclFloat,
                                     residence ? ncclScalarHostImmediate : ncclScalarDevice,
                                     part->comms[i]));
      EXPECT(op >= ncclNumOps);
      CHECK(ncclAllReduce(data[i], data[i], 64, ncclFloat, op, part->comms[i], NULL));
      CHECK(ncclRedOpDestroy(op, part->comms[i]));
      if (residence) scalars[i] = -1; /* an immediate scalar has been read */
    }
    CHECK(ncclGroupEnd());
    for (int i = 0; i < part->mine; ++i) {
      for (int k = 0; k < 64; ++k) EXPECT(data[i][k] == (float)(k * n * (n + 1) / 2));
    }
  }
}

/* Even ranks, in reverse order; odd ones take no part. */
static void check_split(const struct part* part) {
  struct part half = *part;
  for (int i = 0; i < part->mine; ++i) half.comms[i] = (ncclComm_t)&half;
  CHECK(ncclGroupStart());
  for (int i = 0; i < part->mine; ++i) {
    const int rank = part->first_rank + i;
    const int color = rank % 2 == 0 ? 7 : NCCL_SPLIT_NOCOLOR;
    CHECK(ncclCommSplit(part->comms[i], color, -rank, &half.comms[i], NULL));
  }
  CHECK(ncclGroupEnd());
  const int evens = (part->ranks + 1) / 2;
  int value[kRanksMax];
  CHECK(ncclGroupStart());
  for (int i = 0; i < part->mine; ++i) {
    const int rank = part->first_rank + i;
    EXPECT((half.comms[i] == NULL) == (rank % 2 == 1));
    if (half.comms[i] == NULL) continue;
    int count = 0;
    int new_rank = -1;
    CHECK(ncclCommCount(half.comms[i], &count));
    CHECK(ncclCommUserRank(half.comms[i], &new_rank));
    EXPECT(count == evens);
    EXPECT(new_rank == evens - 1 - rank / 2);
    value[i] = rank;
    CHECK(ncclAllReduce(&value[i], &value[i], 1, ncclInt, ncclSum, half.comms[i], NULL));
  }
  CHECK(ncclGroupEnd());
  for (int i = 0; i < part->mine; ++i) {
    if (half.comms[i] == NULL) continue;
    EXPECT(value[i] == evens * (evens - 1));
    CHECK(ncclCommDestroy(half.comms[i]));
  }
}

static void check_everything(const struct part* part) {
  for (int i = 0; i < part->mine; ++i) {
    int count = 0;
    int rank = -1;
    ncclResult_t error = ncclInternalError;
    CHECK(ncclCommCount(part->comms[i], &count));
    CHECK(ncclCommUserRank(part->comms[i], &rank));
    CHECK(ncclCommGetAsyncError(part->comms[i], &error));
    EXPECT(count == part->ranks && rank == part->first_rank + i && error == ncclSuccess);
  }
  check_all_collectives(part);
  check_group(part);
  check_factor(part);
  check_split(part);
  for (int i = 0; i < part->mine; ++i) CHECK(ncclCommFinalize(part->comms[i]));
  for (int i = 0; i < part->mine; ++i) CHECK(ncclCommDestroy(part->comms[i]));
}

/* ---- Ways to run ----------------------------------------------------------------------------- */

static ncclUniqueId shared_id;
static int shared_ranks;

static void run_rank(int rank) {
  struct part part = {0};
  part.ranks = shared_ranks;
  part.mine = 1;
  part.first_rank = rank;
  CHECK(ncclCommInitRank(&part.comms[0], shared_ranks, shared_id, rank));
  check_everything(&part);
}

static void* run_thread(void* rank) {
  run_rank((int)(size_t)rank);
  return NULL;
}

static int run_processes(int ranks) {
  pid_t children[kRanksMax];
  int failed = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    children[rank] = fork();
    if (children[rank] == 0) {
      run_rank(rank);
      _exit(0);
    }
  }
  for (int rank = 0; rank < ranks; ++rank) {
    int status = 0;
    EXPECT(waitpid(children[rank], &status, 0) == children[rank]);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) failed = 1;
  }
  return failed;
}

int main(int argc, char** argv) {
  int version = 0;
  shared_ranks = argc == 3 ? atoi(argv[2]) : 0;
  if (shared_ranks < 1 || shared_ranks > 4) {
    fprintf(stderr, "usage: %s all|threads|processes RANKS, 1 to 4 of them\n", argv[0]);
    return 2;
  }
  CHECK(ncclGetVersion(&version));
  EXPECT(version >= NCCL_VERSION_CODE);
  CHECK(ncclGetUniqueId(&shared_id));
  if (strcmp(argv[1], "processes") == 0) {
    if (run_processes(shared_ranks) != 0) return 1;
  } else if (strcmp(argv[1], "threads") == 0) {
    pthread_t threads[kRanksMax];
    for (int rank = 0; rank < shared_ranks; ++rank) {
      EXPECT(pthread_create(&threads[rank], NULL, run_thread, (void*)(size_t)rank) == 0);
    }
    for (int rank = 0; rank < shared_ranks; ++rank) pthread_join(threads[rank], NULL);
  } else if (strcmp(argv[1], "all") == 0) {
    struct part part = {0};
    part.ranks = part.mine = shared_ranks;
    CHECK(ncclCommInitAll(part.comms, shared_ranks, NULL));
    check_everything(&part);
  } else {
    return 2;
  }
  printf("%s %d: OK, NCCL %d, header %d\n", argv[1], shared_ranks, version, NCCL_VERSION_CODE);
  return 0;
}
