/* SPDX-License-Identifier: Apache-2.0 */
/*
 * 15: ranks with a GPU and ranks without one, in one communicator of libnccl.so.2. Ranks 0 and 1
 * hold the parameters in the memory of their devices and compute gradients there. Ranks 2 and 3 are
 * processes on processors alone; each keeps the optimizer's state of one half of the model. In each
 * step
 *
 *   all-reduce    adds the gradients of the devices, and so brings them to the processors
 *   broadcast     of each half brings the new parameters from its processor to the devices
 *   all-gather    tells every rank the loss of every rank
 *
 * A rank with a device passes a stream, and a call returns when it is in the stream. A rank without
 * passes plain memory and NULL, and a call returns when it is done. Nothing else differs. This
 * source is built twice: with WITH_DEVICE for ranks 0 and 1, which link CUDA's runtime, and
 * without, for ranks 2 and 3, which need neither CUDA's libraries nor its headers.
 *
 *   rm -f id
 *   for r in 0 1; do ./15_mixed_ranks_device $r id & done
 *   for r in 2 3; do ./15_mixed_ranks_host $r id & done; wait
 */
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifdef WITH_DEVICE
#include <cuda_runtime_api.h>
#endif

enum { DEVICES = 2, RANKS = 4, COUNT = 1 << 20, HALF = COUNT / 2, STEPS = 40 };

static void check(ncclResult_t result, const char* call) {
  if (result == ncclSuccess) return;
  fprintf(stderr, "%s: %s: %s\n", call, ncclGetErrorString(result), ncclGetLastError(NULL));
  exit(1);
}
#define NCCL(call) check(call, #call)

/* Rank 0 writes the id of the communicator into a file, and the others wait for it. */
static ncclUniqueId share_id(int rank, const char* path) {
  ncclUniqueId id;
  char hidden[4096];
  snprintf(hidden, sizeof hidden, "%s.new", path);
  if (rank == 0) {
    NCCL(ncclGetUniqueId(&id));
    FILE* file = fopen(hidden, "wb");
    if (file == NULL || fwrite(&id, sizeof id, 1, file) != 1 || fclose(file) != 0 ||
        rename(hidden, path) != 0) {
      perror(path);
      exit(1);
    }
    return id;
  }
  for (int tries = 0; tries < 3000; ++tries) {
    FILE* file = fopen(path, "rb");
    if (file != NULL) {
      const size_t whole = fread(&id, sizeof id, 1, file);
      fclose(file);
      if (whole == 1) return id;
    }
    const struct timespec pause = {0, 10000000};
    nanosleep(&pause, NULL);
  }
  fprintf(stderr, "rank %d: %s has not appeared\n", rank, path);
  exit(1);
}

#ifdef WITH_DEVICE

static void check_cuda(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(error));
  exit(1);
}
#define CUDA(call) check_cuda(call, #call)

/* What rank `rank` wants parameter i to be; the best for both devices is the mean. */
static float wanted(int rank, int i) { return (float)(i % 7 + rank); }

/* A program of yours has kernels here. This one computes on the processor, so that it also runs on
   Weir's stand-in for CUDA, which has no device code. */
static float compute(int rank, const float* parameters, float* gradient, float* on_host,
                     cudaStream_t stream) {
  CUDA(cudaMemcpyAsync(on_host, parameters, COUNT * sizeof(float), cudaMemcpyDeviceToHost, stream));
  CUDA(cudaStreamSynchronize(stream));
  double loss = 0;
  for (int i = 0; i < COUNT; ++i) {
    on_host[i] -= wanted(rank, i);
    loss += (double)on_host[i] * on_host[i] / COUNT;
  }
  CUDA(cudaMemcpyAsync(gradient, on_host, COUNT * sizeof(float), cudaMemcpyHostToDevice, stream));
  return (float)loss;
}

static int run(int rank, ncclUniqueId id) {
  int devices = 0;
  CUDA(cudaGetDeviceCount(&devices));
  CUDA(cudaSetDevice(rank % devices));
  cudaStream_t stream;
  float *parameters, *gradient, *losses, *on_host;
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CUDA(cudaMalloc((void**)&parameters, COUNT * sizeof(float)));
  CUDA(cudaMalloc((void**)&gradient, COUNT * sizeof(float)));
  CUDA(cudaMalloc((void**)&losses, RANKS * sizeof(float)));
  CUDA(cudaMallocHost((void**)&on_host, COUNT * sizeof(float)));
  CUDA(cudaMemsetAsync(parameters, 0, COUNT * sizeof(float), stream));
  ncclComm_t comm;
  NCCL(ncclCommInitRank(&comm, RANKS, id, rank));
  for (int step = 0; step < STEPS; ++step) {
    const float loss = compute(rank, parameters, gradient, on_host, stream);
    NCCL(ncclAllReduce(gradient, gradient, COUNT, ncclFloat, ncclSum, comm, stream));
    NCCL(ncclGroupStart());
    for (int i = 0; i < RANKS - DEVICES; ++i) {
      float* const half = parameters + i * HALF;
      NCCL(ncclBroadcast(half, half, HALF, ncclFloat, DEVICES + i, comm, stream));
    }
    NCCL(ncclGroupEnd());
    CUDA(cudaMemcpyAsync(losses + rank, &loss, sizeof loss, cudaMemcpyHostToDevice, stream));
    NCCL(ncclAllGather(losses + rank, losses, 1, ncclFloat, comm, stream));
  }
  CUDA(cudaMemcpyAsync(on_host, parameters, COUNT * sizeof(float), cudaMemcpyDeviceToHost, stream));
  CUDA(cudaStreamSynchronize(stream));
  NCCL(ncclCommDestroy(comm));
  int wrong = 0;
  for (int i = 0; i < COUNT; ++i) {
    const float off = on_host[i] - (wanted(0, i) + wanted(1, i)) / 2;
    wrong += !(off > -1e-3f && off < 1e-3f);
  }
  printf("rank %d, on device %d: %d of %d parameters are wrong\n", rank, rank % devices, wrong,
         COUNT);
  return wrong == 0 ? 0 : 1;
}

#else

static int run(int rank, ncclUniqueId id) {
  float* const gradient = malloc(COUNT * sizeof(float));
  float* const parameters = calloc(COUNT, sizeof(float));
  float* const momentum = calloc(HALF, sizeof(float)); /* of this rank's half */
  float losses[RANKS];
  if (gradient == NULL || parameters == NULL || momentum == NULL) return 1;
  ncclComm_t comm;
  NCCL(ncclCommInitRank(&comm, RANKS, id, rank));
  float* const mine = parameters + (rank - DEVICES) * HALF;
  for (int step = 0; step < STEPS; ++step) {
    memset(gradient, 0, COUNT * sizeof(float)); /* this rank adds nothing */
    NCCL(ncclAllReduce(gradient, gradient, COUNT, ncclFloat, ncclSum, comm, NULL));
    const float* const sum = gradient + (rank - DEVICES) * HALF;
    for (int i = 0; i < HALF; ++i) {
      momentum[i] = 0.3f * momentum[i] + sum[i] / DEVICES;
      mine[i] -= 0.5f * momentum[i];
    }
    NCCL(ncclGroupStart());
    for (int i = 0; i < RANKS - DEVICES; ++i) {
      float* const half = parameters + i * HALF;
      NCCL(ncclBroadcast(half, half, HALF, ncclFloat, DEVICES + i, comm, NULL));
    }
    NCCL(ncclGroupEnd());
    losses[rank] = 0;
    NCCL(ncclAllGather(losses + rank, losses, 1, ncclFloat, comm, NULL));
    if (rank == DEVICES && step % 10 == 0) {
      printf("step %d: losses %.4f and %.4f\n", step, losses[0], losses[1]);
    }
  }
  NCCL(ncclCommDestroy(comm));
  /* The mean is half a unit from what either device wants. */
  const int right =
      losses[0] > 0.2499f && losses[0] < 0.2501f && losses[1] > 0.2499f && losses[1] < 0.2501f;
  printf("rank %d, without a device: losses %.4f and %.4f\n", rank, losses[0], losses[1]);
  free(gradient);
  free(parameters);
  free(momentum);
  return right ? 0 : 1;
}

#endif

int main(int argc, char** argv) {
  const int rank = argc == 3 ? atoi(argv[1]) : -1;
#ifdef WITH_DEVICE
  const int fits = rank >= 0 && rank < DEVICES;
#else
  const int fits = rank >= DEVICES && rank < RANKS;
#endif
  if (!fits) {
    fprintf(stderr, "%s RANK FILE: ranks 0 and 1 have devices, 2 and 3 have none\n", argv[0]);
    return 2;
  }
  return run(rank, share_id(rank, argv[2]));
}
