// SPDX-License-Identifier: Apache-2.0
// A program with nvcc's default, the static runtime: it cannot work, and is told why and the
// remedy.
#include <cuda_runtime.h>

#include <cstdio>

int main() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  std::printf("%s\n", cudaGetErrorName(error));
  return error == cudaErrorNotSupported ? 0 : 1;
}
