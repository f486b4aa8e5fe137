// SPDX-License-Identifier: Apache-2.0
#include "nccl/direct/reduce_kernels.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <vector>

#include "core/base/per_process.h"

#ifdef WEIR_REDUCE_IMAGE
// The image that nvcc has made: code for some architectures, and PTX for later ones.
asm(".pushsection .rodata\n"
    ".balign 16\n"
    ".hidden weir_reduce_image\n"
    ".globl weir_reduce_image\n"
    "weir_reduce_image:\n"
    ".incbin \"" WEIR_REDUCE_IMAGE
    "\"\n"
    ".popsection\n");
extern "C" __attribute__((visibility("hidden"))) const unsigned char weir_reduce_image[];
#endif

namespace weir::nccl {

namespace {

const void* image() {
#ifdef WEIR_REDUCE_IMAGE
  return weir_reduce_image;
#else
  return nullptr;
#endif
}

struct Loaded {
  std::mutex lock;
  std::vector<std::unique_ptr<ReduceKernels>> all;
};

// Threads may use it until the process ends, when CUDA frees everything: never destroyed.
Loaded& loaded() {
  static constinit PerProcess<Loaded> it;
  return it.get();
}

void load(const cuda::Driver& driver, ReduceKernels* into) {
  const cuda::RelaxedCapture relaxed(driver);
  cuda::Module module = nullptr;
  cuda::Result result = driver.cuModuleLoadData(&module, image());
  if (result != cuda::kSuccess) {
    into->failure = cuda::failed(driver, "reduction kernels", "cuModuleLoadData", result).text;
    return;
  }
  for (uint32_t i = 0; i < kernels::kReduceCount; ++i) {
    const char* name = kernels::kReduceNames[i];
    result = driver.cuModuleGetFunction(&into->functions[i], module, name);
    if (result != cuda::kSuccess) {
      into->failure = cuda::failed(driver, name, "cuModuleGetFunction", result).text;
      return;
    }
  }
}

}  // namespace

bool has_reduce_kernels(const cuda::Driver& driver, std::string* reason) {
  if (image() == nullptr) {
    *reason = "this library was built without nvcc, so without reduction kernels";
    return false;
  }
  if (!driver.can_launch()) {
    *reason = "this CUDA lacks functions for kernels";
    return false;
  }
  return true;
}

const ReduceKernels* reduce_kernels(const cuda::Driver& driver, std::string* reason) {
  if (!has_reduce_kernels(driver, reason)) return nullptr;
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
    auto made = std::make_unique<ReduceKernels>();
    made->context = context;
    load(driver, made.get());
    known = it.all.insert(it.all.end(), std::move(made));
  }
  if ((*known)->failure.empty()) return known->get();
  *reason = (*known)->failure;
  return nullptr;
}

}  // namespace weir::nccl
