// SPDX-License-Identifier: Apache-2.0
// A program as a user of NCCL writes it: device memory, streams, events, a graph that is captured
// once and launched many times. It knows nothing of Weir.
//
//   nccl_program one|threads|processes RANKS
//
// one: a thread that holds all ranks, in groups. The exit status is 0 when every number was right.
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define COUNT 300000
#define RANKS_MAX 8
#define LAUNCHES 4

static int check_cuda(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return 1;
  fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(error));
  exit(1);
}
static int check_nccl(ncclResult_t result, const char* call) {
  if (result == ncclSuccess) return 1;
  fprintf(stderr, "%s: %s: %s\n", call, ncclGetErrorString(result), ncclGetLastError(NULL));
  exit(1);
}
#define CUDA(call) (void)check_cuda(call, #call)
#define NCCL(call) (void)check_nccl(call, #call)

typedef struct Rank {
  int rank, count;
  ncclUniqueId id;
  ncclComm_t comm;
  cudaStream_t stream, second;
  cudaEvent_t reduced;
  cudaGraph_t graph;
  cudaGraphExec_t launchable;
  float *host, *result;  // pinned
  float *device, *gathered;
} Rank;

static void open_rank(Rank* r) {
  CUDA(cudaStreamCreateWithFlags(&r->stream, cudaStreamNonBlocking));
  CUDA(cudaStreamCreateWithFlags(&r->second, cudaStreamNonBlocking));
  CUDA(cudaEventCreateWithFlags(&r->reduced, cudaEventDisableTiming));
  CUDA(cudaMallocHost((void**)&r->host, COUNT * sizeof(float)));
  CUDA(cudaMallocHost((void**)&r->result, COUNT * sizeof(float)));
  CUDA(cudaMalloc((void**)&r->device, COUNT * sizeof(float)));
  CUDA(cudaMalloc((void**)&r->gathered, (size_t)r->count * COUNT * sizeof(float)));
}

static void close_rank(Rank* r) {
  CUDA(cudaFree(r->device));
  CUDA(cudaFree(r->gathered));
  CUDA(cudaFreeHost(r->host));
  CUDA(cudaFreeHost(r->result));
  CUDA(cudaEventDestroy(r->reduced));
  CUDA(cudaStreamDestroy(r->stream));
  CUDA(cudaStreamDestroy(r->second));
  NCCL(ncclCommDestroy(r->comm));
}

static float value(int rank, int round, size_t i) {
  return (float)((rank + 1) * (round + 1)) + (float)(i % 7);
}

static void fill(Rank* r, int round) {
  for (size_t i = 0; i < COUNT; ++i) r->host[i] = value(r->rank, round, i);
}

static void check(const Rank* r, int round, const char* what) {
  for (size_t i = 0; i < COUNT; ++i) {
    float sum = 0;
    for (int peer = 0; peer < r->count; ++peer) sum += value(peer, round, i);
    if (r->result[i] == sum) continue;
    fprintf(stderr, "rank %d, %s, round %d: element %zu is %g and should be %g\n", r->rank, what,
            round, i, (double)r->result[i], (double)sum);
    exit(1);
  }
}

// Every step of the ranks that this thread holds, in a group.
static void all(Rank* ranks, int held, void (*step)(Rank*)) {
  NCCL(ncclGroupStart());
  for (int i = 0; i < held; ++i) step(&ranks[i]);
  NCCL(ncclGroupEnd());
}

static void reduce(Rank* r) {
  NCCL(ncclAllReduce(r->device, r->device, COUNT, ncclFloat, ncclSum, r->comm, r->stream));
}
static void gather(Rank* r) {
  NCCL(ncclAllGather(r->device, r->gathered, COUNT, ncclFloat, r->comm, r->second));
}
static void copy_in(Rank* r) {
  CUDA(cudaMemcpyAsync(r->device, r->host, COUNT * sizeof(float), cudaMemcpyHostToDevice,
                       r->stream));
}
static void copy_out(Rank* r) {
  CUDA(cudaMemcpyAsync(r->result, r->device, COUNT * sizeof(float), cudaMemcpyDeviceToHost,
                       r->stream));
}

static void play(Rank* ranks, int held) {
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < held; ++i) fill(&ranks[i], round);
    for (int i = 0; i < held; ++i) copy_in(&ranks[i]);
    all(ranks, held, reduce);
    for (int i = 0; i < held; ++i) copy_out(&ranks[i]);
    for (int i = 0; i < held; ++i) CUDA(cudaStreamSynchronize(ranks[i].stream));
    for (int i = 0; i < held; ++i) check(&ranks[i], round, "all-reduce");
  }
  // Another stream goes on when an event says so: what it gathers is the sum, once from each rank.
  for (int i = 0; i < held; ++i) fill(&ranks[i], 5);
  for (int i = 0; i < held; ++i) copy_in(&ranks[i]);
  all(ranks, held, reduce);
  for (int i = 0; i < held; ++i) {
    CUDA(cudaEventRecord(ranks[i].reduced, ranks[i].stream));
    CUDA(cudaStreamWaitEvent(ranks[i].second, ranks[i].reduced, 0));
  }
  all(ranks, held, gather);
  for (int i = 0; i < held; ++i) {
    Rank* r = &ranks[i];
    CUDA(cudaMemcpyAsync(r->result, r->gathered + (size_t)(r->count - 1) * COUNT,
                         COUNT * sizeof(float), cudaMemcpyDeviceToHost, r->second));
  }
  for (int i = 0; i < held; ++i) CUDA(cudaStreamSynchronize(ranks[i].second));
  for (int i = 0; i < held; ++i) check(&ranks[i], 5, "all-gather behind an event");

  for (int i = 0; i < held; ++i)
    CUDA(cudaStreamBeginCapture(ranks[i].stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < held; ++i) copy_in(&ranks[i]);
  all(ranks, held, reduce);
  for (int i = 0; i < held; ++i) copy_out(&ranks[i]);
  for (int i = 0; i < held; ++i) {
    CUDA(cudaStreamEndCapture(ranks[i].stream, &ranks[i].graph));
    CUDA(cudaGraphInstantiate(&ranks[i].launchable, ranks[i].graph, 0));
  }
  for (int launch = 0; launch < LAUNCHES; ++launch) {
    for (int i = 0; i < held; ++i) fill(&ranks[i], 10 + launch);
    for (int i = 0; i < held; ++i) CUDA(cudaGraphLaunch(ranks[i].launchable, ranks[i].stream));
    for (int i = 0; i < held; ++i) CUDA(cudaStreamSynchronize(ranks[i].stream));
    for (int i = 0; i < held; ++i) check(&ranks[i], 10 + launch, "graph");
  }
  for (int i = 0; i < held; ++i) {
    CUDA(cudaGraphExecDestroy(ranks[i].launchable));
    CUDA(cudaGraphDestroy(ranks[i].graph));
  }
}

static void* play_rank(void* argument) {
  Rank* r = argument;
  CUDA(cudaSetDevice(0));
  NCCL(ncclCommInitRank(&r->comm, r->count, r->id, r->rank));
  open_rank(r);
  play(r, 1);
  close_rank(r);
  return NULL;
}

int main(int argc, char** argv) {
  const int count = argc == 3 ? atoi(argv[2]) : 0;
  if (count < 1 || count > RANKS_MAX) {
    fprintf(stderr, "usage: nccl_program one|threads|processes RANKS\n");
    return 2;
  }
  Rank ranks[RANKS_MAX];
  memset(ranks, 0, sizeof ranks);
  ncclUniqueId id;
  NCCL(ncclGetUniqueId(&id));
  for (int i = 0; i < count; ++i) {
    ranks[i].rank = i;
    ranks[i].count = count;
    ranks[i].id = id;
  }
  if (strcmp(argv[1], "one") == 0) {
    ncclComm_t comms[RANKS_MAX];
    int devices[RANKS_MAX] = {0};
    CUDA(cudaSetDevice(0));
    NCCL(ncclCommInitAll(comms, count, devices));
    for (int i = 0; i < count; ++i) ranks[i].comm = comms[i];
    for (int i = 0; i < count; ++i) open_rank(&ranks[i]);
    play(ranks, count);
    for (int i = 0; i < count; ++i) close_rank(&ranks[i]);
  } else if (strcmp(argv[1], "threads") == 0) {
    pthread_t threads[RANKS_MAX];
    for (int i = 0; i < count; ++i) {
      if (pthread_create(&threads[i], NULL, play_rank, &ranks[i]) != 0) return 1;
    }
    for (int i = 0; i < count; ++i) pthread_join(threads[i], NULL);
  } else {
    for (int i = 0; i < count; ++i) {
      const pid_t child = fork();
      if (child < 0) return 1;
      if (child == 0) {
        play_rank(&ranks[i]);
        return 0;
      }
    }
    for (int i = 0; i < count; ++i) {
      int status = 0;
      if (wait(&status) < 0 || status != 0) return 1;
    }
  }
  printf("%d ranks, %s: all numbers are right\n", count, argv[1]);
  return 0;
}
