// SPDX-License-Identifier: Apache-2.0
#include "core/comm/stream/device_kernels.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <vector>

#include "core/base/per_process.h"
#include "core/comm/stream/cuda_error.h"
#include "cuda/kernels/image.h"
#include "cuda/kernels/message_arguments.h"

namespace weir::comm {

namespace {

struct Loaded {
  std::mutex lock;
  std::vector<std::unique_ptr<DeviceKernels>> all;
};

// Threads may use it until the process ends, when CUDA frees everything: never destroyed.
Loaded& loaded() {
  static constinit PerProcess<Loaded> it;
  return it.get();
}

void load(const cuda::Driver& driver, DeviceKernels* into) {
  const cuda::RelaxedCapture relaxed(driver);
  cuda::Module module = nullptr;
  cuda::Result result = driver.cuModuleLoadData(&module, kernels::image());
  if (result != cuda::kSuccess) {
    into->failure = cuda_failed(driver, "kernels", "cuModuleLoadData", result).text();
    return;
  }
  const auto find = [&](const char* name, cuda::Function* function) {
    if (!into->failure.empty()) return;
    result = driver.cuModuleGetFunction(function, module, name);
    if (result == cuda::kSuccess) return;
    into->failure = cuda_failed(driver, name, "cuModuleGetFunction", result).text();
  };
  for (uint32_t i = 0; i < kernels::kReduceCount; ++i) {
    find(kernels::kReduceNames[i], &into->functions[i]);
  }
  find(kernels::kCopyName, &into->copies);
  find(kernels::kMessageName, &into->messages);
}

}  // namespace

bool has_device_kernels(const cuda::Driver& driver, std::string* reason) {
  if (kernels::image() == nullptr) {
    *reason = "this library was built without nvcc, so without kernels";
    return false;
  }
  if (!driver.can_launch()) {
    *reason = "this CUDA lacks functions for kernels";
    return false;
  }
  return true;
}

const DeviceKernels* device_kernels(const cuda::Driver& driver, std::string* reason) {
  if (!has_device_kernels(driver, reason)) return nullptr;
  cuda::Context context = nullptr;
  if (driver.cuCtxGetCurrent(&context) != cuda::kSuccess || context == nullptr) {
    *reason = "the thread has no CUDA context";
    return nullptr;
  }
  Loaded& it = loaded();
  std::lock_guard lock(it.lock);
  auto known = std::find_if(it.all.begin(), it.all.end(),
                            [&](const auto& one) { return one->context == context; });
  if (known == it.all.end()) {
    auto made = std::make_unique<DeviceKernels>();
    made->context = context;
    load(driver, made.get());
    known = it.all.insert(it.all.end(), std::move(made));
  }
  if ((*known)->failure.empty()) return known->get();
  *reason = (*known)->failure;
  return nullptr;
}

}  // namespace weir::comm
