// SPDX-License-Identifier: Apache-2.0
#include "offload/kernels/cores.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>

namespace weir::offload {
namespace {

// The kernel rejects a mask that is smaller than its own.
constexpr int kCoresMin = 1024;
constexpr int kCoresMax = 1 << 16;

struct FreeMask {
  void operator()(cpu_set_t* mask) const { CPU_FREE(mask); }
};
using Mask = std::unique_ptr<cpu_set_t, FreeMask>;

// In ascending order; empty where the kernel does not report them.
std::vector<int> cores_of(pid_t thread) {
  for (int count = kCoresMin; count <= kCoresMax; count *= 4) {
    const Mask mask(CPU_ALLOC(static_cast<size_t>(count)));
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(count));
    if (mask == nullptr) break;
    if (sched_getaffinity(thread, bytes, mask.get()) != 0) continue;
    std::vector<int> cores;
    for (int core = 0; core < count; ++core)
      if (CPU_ISSET_S(static_cast<size_t>(core), bytes, mask.get())) cores.push_back(core);
    return cores;
  }
  return {};
}

}  // namespace

uint32_t usable_core_count() {
  return std::max<uint32_t>(1, static_cast<uint32_t>(cores_of(0).size()));
}

Status check_cores(const std::vector<int>& cores) {
  std::vector<int> allowed = cores_of(getpid());
  for (const int core : cores_of(0)) allowed.push_back(core);
  for (const int core : cores) {
    if (std::find(allowed.begin(), allowed.end(), core) != allowed.end()) continue;
    std::sort(allowed.begin(), allowed.end());
    allowed.erase(std::unique(allowed.begin(), allowed.end()), allowed.end());
    std::string text;
    for (const int each : allowed) text += (text.empty() ? "" : ",") + std::to_string(each);
    return invalid_argument("core " + std::to_string(core) +
                            " is not among those that this process may run on (" + text +
                            "): list others, or widen its affinity (taskset, cpuset)");
  }
  return Status();
}

Status pin(std::thread* thread, int core) {
  const auto count = static_cast<size_t>(std::max(kCoresMin, core + 1));
  const Mask mask(CPU_ALLOC(count));
  if (mask == nullptr) return Status(Code::kNoMemory, "no memory for a mask of cores");
  const size_t bytes = CPU_ALLOC_SIZE(count);
  CPU_ZERO_S(bytes, mask.get());
  CPU_SET_S(static_cast<size_t>(core), bytes, mask.get());
  const int number = pthread_setaffinity_np(thread->native_handle(), bytes, mask.get());
  if (number == 0) return Status();
  return system_error("run a thread on core " + std::to_string(core), number);
}

}  // namespace weir::offload
