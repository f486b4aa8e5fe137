// SPDX-License-Identifier: Apache-2.0
#include "core/comm/stream/context_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/base/background.h"

namespace weir::comm {

namespace {

// CUDA's driver API: those after which nothing works any more in the context. In this order: an
// invalid context, an ECC error, an invalid handle, an illegal address, a launch that took too
// long, a destroyed context, an assertion, exceptions of kernels, a launch that failed.
constexpr cuda::Result kLost[] = {201, 214, 400, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719};

bool is_of_lost_context(cuda::Result result) {
  return std::find(std::begin(kLost), std::end(kLost), result) != std::end(kLost);
}

}  // namespace

ContextCheck::ContextCheck(const cuda::Driver& driver, cuda::Context context)
    : driver_(driver), context_(context) {
  const cuda::ContextScope scope(driver, nullptr, context);
  if (driver.cuEventCreate(&event_, cuda::kEventDisableTiming) != cuda::kSuccess) event_ = nullptr;
}

ContextCheck::~ContextCheck() {
  if (is_lost()) return;
  const cuda::ContextScope scope(driver_, nullptr, context_);
  const cuda::RelaxedCapture relaxed(driver_);
  if (event_ != nullptr) (void)driver_.cuEventDestroy_v2(event_);
  if (stream_ != nullptr) (void)driver_.cuStreamDestroy_v2(stream_);
}

cuda::Result ContextCheck::ask() {
  const cuda::ContextScope scope(driver_, nullptr, context_);
  const cuda::RelaxedCapture relaxed(driver_);
  cuda::Result result = cuda::kSuccess;
  if (event_ != nullptr && driver_.cuEventQuery != nullptr) result = driver_.cuEventQuery(event_);
  if (is_of_lost_context(result)) return result;
  if (stream_ == nullptr) {
    result = driver_.cuStreamCreate(&stream_, cuda::kStreamNonBlocking);
    if (result != cuda::kSuccess) {
      stream_ = nullptr;
      return result;
    }
  }
  return driver_.cuStreamQuery(stream_);
}

bool ContextCheck::look() {
  if (is_lost() || is_asking_.exchange(true)) return is_lost();
  const cuda::Result result = ask();
  if (is_of_lost_context(result)) {
    std::lock_guard lock(lock_);
    reason_ = fmt::format(
        "CUDA has lost the context of this rank's device ({}), and with it what its streams held: "
        "the device was reset, or a kernel failed. Destroy the communicator; after a reset a new "
        "one can be made, after a kernel's failure in a new process",
        cuda::describe_error(driver_, result));
    is_lost_.store(true, std::memory_order_release);
  }
  is_asking_.store(false);
  return is_lost();
}

void ContextCheck::look_in_background() {
  if (is_lost() || is_asking_.load()) return;
  run_in_background([self = shared_from_this()] { (void)self->look(); });
}

std::string ContextCheck::reason() const {
  std::lock_guard lock(lock_);
  return reason_;
}

}  // namespace weir::comm
