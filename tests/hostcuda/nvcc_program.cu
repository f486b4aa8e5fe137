// SPDX-License-Identifier: Apache-2.0
// A program as nvcc compiles it, with the shared runtime: a kernel with a host function, alone and
// in a graph, and one without.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstring>

#include <weir/hostcuda.h>

#define CHECK(condition)                                          \
  do {                                                            \
    if (!(condition)) {                                           \
      std::printf("line %d: not so: %s\n", __LINE__, #condition); \
      return 1;                                                   \
    }                                                             \
  } while (false)

__global__ void add(int* data, int count, int value) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) data[i] += value;
}

__global__ void without_host_function() {}

static void add_on_host(const weir_hostcuda_launch* launch, void*) {
  int* const data = *static_cast<int**>(launch->arguments[0]);
  const int count = *static_cast<int*>(launch->arguments[1]);
  const int value = *static_cast<int*>(launch->arguments[2]);
  for (int i = 0; i < count; ++i) data[i] += value;
}

int main() {
  constexpr int kCount = 100;
  const size_t sizes[] = {sizeof(int*), sizeof(int), sizeof(int)};
  CHECK(weir_hostcuda_register_kernel("add", add_on_host, nullptr, sizes, 3) == 0);
  int* data = nullptr;
  cudaStream_t stream = nullptr;
  CHECK(cudaMalloc(&data, kCount * sizeof(int)) == cudaSuccess);
  CHECK(cudaStreamCreate(&stream) == cudaSuccess);
  CHECK(cudaMemsetAsync(data, 0, kCount * sizeof(int), stream) == cudaSuccess);
  add<<<2, 64, 0, stream>>>(data, kCount, 3);
  CHECK(cudaGetLastError() == cudaSuccess);

  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
  add<<<2, 64, 0, stream>>>(data, kCount, 10);
  CHECK(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
  CHECK(cudaGraphInstantiate(&executable, graph, 0) == cudaSuccess);
  for (int i = 0; i < 4; ++i) CHECK(cudaGraphLaunch(executable, stream) == cudaSuccess);

  without_host_function<<<1, 1, 0, stream>>>();
  CHECK(cudaGetLastError() == cudaErrorInvalidDeviceFunction);

  int result[kCount];
  CHECK(cudaMemcpyAsync(result, data, sizeof result, cudaMemcpyDeviceToHost, stream) ==
        cudaSuccess);
  CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
  for (const int value : result) CHECK(value == 43);
  CHECK(cudaGraphExecDestroy(executable) == cudaSuccess);
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  CHECK(cudaStreamDestroy(stream) == cudaSuccess);
  CHECK(cudaFree(data) == cudaSuccess);
  std::printf("all as expected\n");
  return 0;
}
