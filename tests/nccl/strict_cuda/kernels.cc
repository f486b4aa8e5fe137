// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cuda/kernels/reduce_host.h"
#include "nccl/strict_cuda/world.h"

using namespace strict_cuda;  // NOLINT: this is a part of it

namespace {

constexpr size_t kElementBytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
int module_of_all = 0;
int functions[weir::kernels::kReduceCount];  // only their addresses count

// What a kernel of the context may touch, as this library reaches it; all else ends the process.
char* reach_from(Context context, const void* pointer, size_t bytes) {
  World& it = world();
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  uintptr_t base = 0;
  const Memory* memory = find_device(it, address, &base);
  const bool allowed = memory != nullptr && (memory->context == context ||
                                             it.access.count({context, memory->context}) != 0);
  char* reached = allowed ? reach(it, address, bytes) : nullptr;
  if (reached != nullptr) return reached;
  std::fprintf(stderr, "strict libcuda: a kernel touches %zu bytes that are not for it\n", bytes);
  std::abort();
}

}  // namespace

STRICT_CUDA_API cuCtxEnablePeerAccess(Context peer, unsigned) {
  World& it = world();
  std::lock_guard lock(it.lock);
  if (const Result result = forbidden(it, "cuCtxEnablePeerAccess"); result != kSuccess) {
    return result;
  }
  if (t_context == nullptr || peer == t_context) return kErrorInvalidContext;
  return it.access.insert({t_context, peer}).second ? kSuccess : kErrorPeerAlreadyEnabled;
}

STRICT_CUDA_API cuModuleLoadData(Module* module, const void* image) {
  World& it = world();
  Submission submission(it);
  if (const Result result = forbidden(it, "cuModuleLoadData"); result != kSuccess) return result;
  if (t_context == nullptr) return kErrorInvalidContext;
  if (image == nullptr) return kErrorInvalidValue;
  if (is_like_a_driver(it)) submission.wait_for_device();
  *module = &module_of_all;
  return kSuccess;
}

STRICT_CUDA_API cuModuleGetFunction(Function* function, Module, const char* name) {
  for (uint32_t i = 0; i < weir::kernels::kReduceCount; ++i) {
    if (std::strcmp(name, weir::kernels::kReduceNames[i]) == 0) {
      *function = &functions[i];
      return kSuccess;
    }
  }
  return kErrorNotFound;
}

STRICT_CUDA_API cuLaunchKernel(Function function, unsigned grid_x, unsigned, unsigned,
                               unsigned block_x, unsigned, unsigned, unsigned, Stream stream,
                               void** arguments, void**) {
  const auto type = static_cast<uint32_t>(static_cast<int*>(function) - functions);
  auto given = *static_cast<const weir::kernels::ReduceArguments*>(arguments[0]);
  const Context context = t_context;
  return issue("cuLaunchKernel", stream, [=]() -> Work {
    return [=] {
      auto all = given;
      const size_t bytes = all.count * kElementBytes[type];
      for (uint32_t i = 0; i < all.source_count; ++i) {
        all.sources[i] = reach_from(context, all.sources[i], bytes);
      }
      for (uint32_t i = 0; all.scaled == weir::kernels::kScaledByMemory && i < all.source_count;
           ++i) {
        const auto* factor = reinterpret_cast<const void*>(static_cast<uintptr_t>(all.scales[i]));
        all.scales[i] =
            reinterpret_cast<uintptr_t>(reach_from(context, factor, kElementBytes[type]));
      }
      for (uint32_t i = 0; i < all.destination_count; ++i) {
        all.destinations[i] = reach_from(context, all.destinations[i], bytes);
      }
      weir::kernels::reduce_on_host(type, all, uint64_t{grid_x} * block_x);
      ++world().kernels;
      return true;
    };
  });
}
