// SPDX-License-Identifier: Apache-2.0
#include "nccl/direct/direct_policy.h"

#include <fmt/format.h>

#include <cstdio>

#include "core/base/log.h"
#include "core/base/settings.h"
#include "cuda/kernels/reduce_arguments.h"
#include "nccl/base/process.h"
#include "nccl/cuda/driver.h"
#include "nccl/direct/reduce_kernels.h"
#include "nccl/host/slices.h"

namespace weir::nccl {

namespace {

bool is_copy(OperationKind kind) {
  return kind == OperationKind::kBroadcast || kind == OperationKind::kAllGather ||
         kind == OperationKind::kAllToAll || kind == OperationKind::kGather ||
         kind == OperationKind::kScatter;
}

}  // namespace

bool goes_direct(const Operation& operation) {
  const Comm& comm = *operation.comm;
  const bool wanted = is_copy(operation.kind) ? comm.devices().copies()
                      : is_message(operation.kind)
                          ? comm.devices().answers() != nullptr
                          : is_reduction(operation.kind) && comm.devices().reduces();
  if (!wanted || operation.options.need_sibling()) return false;
  const Cut whole = cut(operation, 0);
  return operation.count * whole.element_bytes * whole.larger_blocks >= kDirectBytesMin;
}

DirectChoice direct_choice_here() {
  const cuda::Driver* driver = cuda::driver_in_use();
  if (driver == nullptr) return DirectChoice::kNoCuda;
  if (!direct_allowed()) return DirectChoice::kP2pDisabled;
  const Result<Settings>& settings = process_settings();
  // The call that needs the settings reports those that do not parse.
  return direct_choice(settings.ok() ? settings.value().direct : "0", driver->is_stand_in);
}

bool can_reduce_direct(int rank_count, int device, std::string* reason) {
  if (static_cast<uint32_t>(rank_count) > kernels::kRanksMax) {
    *reason = fmt::format("a kernel reduces buffers of {} ranks at most", kernels::kRanksMax);
    return false;
  }
  const cuda::Driver& driver = *cuda::driver_in_use();
  // Loading may wait for the device, so it is done while no stream waits for this library. A thread
  // without a context loads in the device's primary one; where there is none yet, the kernels are
  // loaded with the first queue.
  cuda::Context context = cuda::context_on(driver, device);
  if (context == nullptr) context = cuda::primary_context(driver, device);
  if (context == nullptr) return has_reduce_kernels(driver, reason);
  const cuda::ContextScope scope(driver, nullptr, context);
  return reduce_kernels(driver, reason) != nullptr;
}

void explain(const Comm& comm, const std::string& text) {
  std::string line = fmt::format("communicator of {} ranks", comm.rank_count());
  if (!comm.config().name.empty()) line += fmt::format(" '{}'", comm.config().name);
  line += ": " + text;
  log_info(line);
  const Result<Settings>& settings = process_settings();
  if (settings.ok() && settings.value().explain) std::fprintf(stderr, "%s\n", line.c_str());
}

}  // namespace weir::nccl
