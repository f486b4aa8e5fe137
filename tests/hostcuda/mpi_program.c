/* SPDX-License-Identifier: Apache-2.0 */
/* A process for each rank, started by mpirun, as NCCL's documentation has it: MPI hands the unique
 * id around and is not used for data. Device memory and streams throughout: a collective, a group
 * of messages, communicators that are made without blocking, by split and by shrink, and an abort.
 * It knows nothing of Weir; every number is checked. */
#include <cuda_runtime_api.h>
#include <mpi.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>

#define COUNT 20000

static int rank, ranks;

#define CUDA(call)                                                      \
  do {                                                                  \
    cudaError_t error_ = (call);                                        \
    if (error_ != cudaSuccess) fail(#call, cudaGetErrorString(error_)); \
  } while (0)
#define NCCL(call)                                                   \
  do {                                                               \
    ncclResult_t result_ = (call);                                   \
    if (result_ != ncclSuccess) fail(#call, ncclGetLastError(NULL)); \
  } while (0)

static void fail(const char* what, const char* why) {
  fprintf(stderr, "rank %d: %s: %s\n", rank, what, why);
  MPI_Abort(MPI_COMM_WORLD, 1);
  exit(1);
}

static ncclUniqueId common_id(void) {
  ncclUniqueId id;
  if (rank == 0) NCCL(ncclGetUniqueId(&id));
  if (MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD) != MPI_SUCCESS) fail("MPI_Bcast", "");
  return id;
}

typedef struct Buffers {
  float *host, *in, *out;
  cudaStream_t stream;
} Buffers;

static Buffers open_buffers(void) {
  Buffers b;
  CUDA(cudaMallocHost((void**)&b.host, COUNT * sizeof(float)));
  CUDA(cudaMalloc((void**)&b.in, COUNT * sizeof(float)));
  CUDA(cudaMalloc((void**)&b.out, COUNT * sizeof(float)));
  CUDA(cudaStreamCreateWithFlags(&b.stream, cudaStreamNonBlocking));
  return b;
}

static void close_buffers(Buffers* b) {
  CUDA(cudaFreeHost(b->host));
  CUDA(cudaFree(b->in));
  CUDA(cudaFree(b->out));
  CUDA(cudaStreamDestroy(b->stream));
}

static void give(Buffers* b, float value) {
  for (int i = 0; i < COUNT; ++i) b->host[i] = value + (float)(i % 5);
  CUDA(cudaMemcpyAsync(b->in, b->host, COUNT * sizeof(float), cudaMemcpyHostToDevice, b->stream));
  CUDA(cudaStreamSynchronize(b->stream));
}

/* Element i is base + times * (i % 5). */
static void expect(Buffers* b, float base, float times, const char* what) {
  CUDA(cudaMemcpyAsync(b->host, b->out, COUNT * sizeof(float), cudaMemcpyDeviceToHost, b->stream));
  CUDA(cudaStreamSynchronize(b->stream));
  for (int i = 0; i < COUNT; ++i) {
    if (b->host[i] != base + times * (float)(i % 5)) fail(what, "a wrong number");
  }
}

/* Each rank gives its number in the communicator plus one. */
static void sum_over(ncclComm_t comm, Buffers* b, const char* what) {
  int mine, n;
  NCCL(ncclCommUserRank(comm, &mine));
  NCCL(ncclCommCount(comm, &n));
  give(b, (float)(mine + 1));
  NCCL(ncclAllReduce(b->in, b->out, COUNT, ncclFloat, ncclSum, comm, b->stream));
  expect(b, (float)(n * (n + 1)) / 2, (float)n, what);
}

static void ring(ncclComm_t comm, Buffers* b) {
  const int after = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
  give(b, (float)rank);
  NCCL(ncclGroupStart());
  NCCL(ncclSend(b->in, COUNT, ncclFloat, after, comm, b->stream));
  NCCL(ncclRecv(b->out, COUNT, ncclFloat, before, comm, b->stream));
  NCCL(ncclGroupEnd());
  expect(b, (float)before, 1, "ring of messages");
}

static void wait_for(ncclComm_t comm) {
  ncclResult_t state = ncclInProgress;
  while (state == ncclInProgress) NCCL(ncclCommGetAsyncError(comm, &state));
  if (state != ncclSuccess) fail("a nonblocking call", ncclGetLastError(comm));
}

static void nonblocking(Buffers* b) {
  const ncclUniqueId id = common_id();
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclComm_t comm = NULL;
  config.blocking = 0;
  ncclResult_t result = ncclCommInitRankConfig(&comm, ranks, id, rank, &config);
  if (result != ncclSuccess && result != ncclInProgress)
    fail("nonblocking", ncclGetLastError(NULL));
  wait_for(comm);
  give(b, (float)(rank + 1));
  result = ncclAllReduce(b->in, b->out, COUNT, ncclFloat, ncclSum, comm, b->stream);
  if (result != ncclSuccess && result != ncclInProgress)
    fail("nonblocking", ncclGetLastError(comm));
  wait_for(comm);
  expect(b, (float)(ranks * (ranks + 1)) / 2, (float)ranks, "nonblocking all-reduce");
  result = ncclCommFinalize(comm);
  if (result != ncclSuccess && result != ncclInProgress) fail("finalize", ncclGetLastError(comm));
  wait_for(comm);
  NCCL(ncclCommDestroy(comm));
}

/* The last rank never calls: the others are stuck until each aborts its communicator, and what its
 * stream waits for is let go. */
static void aborted(Buffers* b) {
  const ncclUniqueId id = common_id();
  ncclComm_t comm = NULL;
  NCCL(ncclCommInitRank(&comm, ranks, id, rank));
  MPI_Barrier(MPI_COMM_WORLD);  // who is still at it would be told of the abort
  if (rank != ranks - 1) {
    NCCL(ncclAllReduce(b->in, b->out, COUNT, ncclFloat, ncclSum, comm, b->stream));
  }
  NCCL(ncclCommAbort(comm));
  (void)cudaStreamSynchronize(b->stream);
}

int main(int argc, char** argv) {
  if (MPI_Init(&argc, &argv) != MPI_SUCCESS) return 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  int devices;
  CUDA(cudaGetDeviceCount(&devices));
  CUDA(cudaSetDevice(rank % devices));
  Buffers b = open_buffers();
  ncclComm_t comm, part, rest = NULL;
  NCCL(ncclCommInitRank(&comm, ranks, common_id(), rank));
  sum_over(comm, &b, "all-reduce");
  ring(comm, &b);

  NCCL(ncclCommSplit(comm, rank % 2, -rank, &part, NULL));
  sum_over(part, &b, "all-reduce of a part");
  NCCL(ncclCommDestroy(part));

  int lost = 0;
  if (rank != lost) NCCL(ncclCommShrink(comm, &lost, 1, &rest, NULL, NCCL_SHRINK_DEFAULT));
  if (rest != NULL) {
    sum_over(rest, &b, "all-reduce of the rest");
    NCCL(ncclCommDestroy(rest));
  }
  NCCL(ncclCommDestroy(comm));

  nonblocking(&b);
  aborted(&b);
  close_buffers(&b);
  MPI_Finalize();
  if (rank == 0) printf("%d ranks under MPI: all numbers are right\n", ranks);
  return 0;
}
