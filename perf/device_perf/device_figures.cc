// SPDX-License-Identifier: Apache-2.0
#include "perf/device_perf/device_figures.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/kernels/image.h"
#include "cuda/kernels/reduce_arguments.h"
#include "cuda/kernels/reduce_layout.h"
#include "fmt/format.h"
#include "perf/device_perf/cuda_device.h"

namespace weir::perf {
namespace {

constexpr int kCalls = 5;
constexpr int kRounds = 5;
constexpr unsigned kPortable = 1;
constexpr size_t kFloat32 = 7;  // its number in weir.h

double median_us(const std::function<void()>& one, const std::function<void()>& wait) {
  std::vector<double> times_us;
  for (int round = -1; round < kRounds; ++round) {  // the first one warms up
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) one();
    wait();
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - begin;
    if (round >= 0) times_us.push_back(time.count() / kCalls);
  }
  std::sort(times_us.begin(), times_us.end());
  return times_us[kRounds / 2];
}

void tell(const char* what, double bytes, double time_us) {
  fmt::print("| {} | {:.1f} |\n", what, 1e-3 * bytes / time_us);
}

// sums[i] = ones[i] + ones[i], by the library's kernel.
void tell_of_kernel(const CudaDevice& device, const void* ones, void* sums, uint64_t bytes) {
  const cuda::Driver& driver = device.driver();
  if (kernels::image() == nullptr || !driver.can_launch()) {
    fmt::print(
        "| Weir's kernel that adds two arrays | none: built without nvcc, or old driver |\n");
    return;
  }
  cuda::Module module = nullptr;
  cuda::Function kernel = nullptr;
  CudaDevice::check("cuModuleLoadData", driver.cuModuleLoadData(&module, kernels::image()));
  CudaDevice::check("cuModuleGetFunction",
                    driver.cuModuleGetFunction(&kernel, module, kernels::kReduceNames[kFloat32]));
  const size_t count = bytes / 2 / sizeof(float);
  kernels::ReduceArguments arguments;
  arguments.count = count;
  arguments.source_count = 2;
  arguments.destination_count = 1;
  arguments.sources[0] = ones;
  arguments.sources[1] = static_cast<const float*>(ones) + count;
  arguments.destinations[0] = sums;
  const unsigned blocks = kernels::lay_out(&arguments, sizeof(float));
  void* all[] = {&arguments};
  const double time_us = median_us(
      [&] {
        CudaDevice::check("cuLaunchKernel",
                          driver.cuLaunchKernel(kernel, blocks, 1, 1, kernels::kBlockThreads, 1, 1,
                                                0, device.stream(), all, nullptr));
      },
      [&] { device.synchronize(); });
  std::vector<float> got(std::min<size_t>(count, 1000));
  device.copy(got.data(), sums, got.size() * sizeof(float));
  device.synchronize();
  if (got != std::vector<float>(got.size(), 2.0F)) throw std::runtime_error("a sum is wrong");
  tell("Weir's kernel that adds two arrays, read and written",
       3 * static_cast<double>(count) * sizeof(float), time_us);
}

void tell_all(uint64_t bytes) {
  const CudaDevice device(0);
  const cuda::Driver& driver = device.driver();
  cuda::Stream other = nullptr;
  CudaDevice::check("cuStreamCreate", driver.cuStreamCreate(&other, cuda::kStreamNonBlocking));
  void* here[2] = {device.allocate(bytes), device.allocate(bytes)};
  void* pinned[2] = {};
  for (void*& it : pinned) {
    CudaDevice::check("cuMemHostAlloc", driver.cuMemHostAlloc(&it, bytes, kPortable));
    std::fill_n(static_cast<float*>(it), bytes / sizeof(float), 1.0F);
  }
  const auto wait = [&] {
    device.synchronize();
    CudaDevice::check("cuStreamSynchronize", driver.cuStreamSynchronize(other));
  };
  const auto up = [&] { device.copy(here[0], pinned[0], bytes); };
  const auto down = [&](cuda::Stream stream) {
    CudaDevice::check("cuMemcpyAsync",
                      driver.cuMemcpyAsync(reinterpret_cast<uintptr_t>(pinned[1]),
                                           reinterpret_cast<uintptr_t>(here[1]), bytes, stream));
  };
  const auto size = static_cast<double>(bytes);
  fmt::print("{} bytes on {}, medians of {} rounds of {}\n\n", bytes, device.name(), kRounds,
             kCalls);
  fmt::print("| what | GB/s |\n| --- | ---: |\n");
  tell("pinned memory to the device", size, median_us(up, wait));
  tell("copy within the device, read and written", 2 * size,
       median_us([&] { device.copy(here[1], here[0], bytes); }, wait));
  tell_of_kernel(device, here[0], here[1], bytes);
  tell("the device to pinned memory", size, median_us([&] { down(other); }, wait));
  tell("both ways at once, together", 2 * size,
       median_us(
           [&] {
             up();
             down(other);
           },
           wait));
}

}  // namespace

int device_figures(uint64_t bytes) {
  try {
    tell_all(std::max<uint64_t>(bytes, 1 << 12));
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "device_perf: {}\n", error.what());
    return 1;
  }
}

}  // namespace weir::perf
