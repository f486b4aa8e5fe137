// SPDX-License-Identifier: Apache-2.0
// On device 0 of the process's CUDA, in pinned memory. Without a device the program ends with
// status 77.
#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/comm/stream/device_kernels.h"
#include "cuda/driver_table.h"
#include "nccl/kernels/kernel_runner.h"

namespace weir::kernels::test {

namespace {

constexpr int kSkipped = 77;

void need(cuda::Result result, const char* what) {
  if (result == cuda::kSuccess) return;
  std::fprintf(stderr, "%s: CUDA's error %d\n", what, static_cast<int>(result));
  std::abort();
}

struct Device {
  const cuda::Driver* driver = nullptr;
  const comm::DeviceKernels* kernels = nullptr;
  cuda::Stream stream = nullptr;
};

// Making and freeing pinned memory waits for the device, so pieces are used again. By their size, a
// power of two.
struct Pool {
  std::map<size_t, std::vector<void*>> free;
  std::unordered_map<void*, size_t> sizes;
};

Pool& pool() {
  static auto* const it = new Pool();
  return *it;
}

[[noreturn]] void skip(const std::string& reason) {
  std::printf("skipped: %s\n", reason.c_str());
  std::fflush(stdout);
  std::_Exit(kSkipped);
}

const Device& device() {
  static const Device it = [] {
    Device made;
    made.driver = cuda::find_driver(cuda::Look::kAnyhow);
    int count = 0;
    if (made.driver == nullptr || made.driver->cuInit(0) != cuda::kSuccess ||
        made.driver->cuDeviceGetCount(&count) != cuda::kSuccess || count == 0) {
      skip("CUDA has no device here");
    }
    cuda::Context context = nullptr;
    need(made.driver->cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
    need(made.driver->cuCtxSetCurrent(context), "cuCtxSetCurrent");
    std::string reason;
    made.kernels = comm::device_kernels(*made.driver, &reason);
    if (made.kernels == nullptr) skip(reason);
    need(made.driver->cuStreamCreate(&made.stream, 1), "cuStreamCreate");
    return made;
  }();
  return it;
}

}  // namespace

void* allocate(size_t bytes) {
  constexpr unsigned kPortableAndMapped = 3;
  const size_t size = std::bit_ceil(std::max(bytes, size_t{4096}));
  std::vector<void*>& pieces = pool().free[size];
  if (pieces.empty()) {
    void* memory = nullptr;
    need(device().driver->cuMemHostAlloc(&memory, size, kPortableAndMapped), "cuMemHostAlloc");
    pool().sizes[memory] = size;
    return memory;
  }
  void* memory = pieces.back();
  pieces.pop_back();
  return memory;
}

void release(void* memory) { pool().free[pool().sizes.at(memory)].push_back(memory); }

void run(uint32_t type, const ReduceArguments& arguments, unsigned blocks) {
  const Device& it = device();
  ReduceArguments given = arguments;
  void* all[] = {&given};
  need(it.driver->cuLaunchKernel(it.kernels->functions[type], blocks, 1, 1, kBlockThreads, 1, 1, 0,
                                 it.stream, all, nullptr),
       "cuLaunchKernel");
  need(it.driver->cuStreamSynchronize(it.stream), "cuStreamSynchronize");
}

}  // namespace weir::kernels::test
