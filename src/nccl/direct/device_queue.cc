// SPDX-License-Identifier: Apache-2.0
#include "nccl/direct/device_queue.h"

#include <atomic>

namespace weir::nccl {

namespace {

// Between two queries whether the stream has failed.
constexpr std::chrono::milliseconds kQuery{10};

cuda::DevicePointer address(const void* pointer) {
  return static_cast<cuda::DevicePointer>(reinterpret_cast<uintptr_t>(pointer));
}

}  // namespace

Outcome DeviceQueue::make(const cuda::Driver& driver, const char* function,
                          std::shared_ptr<DeviceQueue>* made) {
  std::shared_ptr<DeviceQueue> it(new DeviceQueue(driver));
  cuda::Result result = driver.cuCtxGetCurrent(&it->context_);
  if (result != cuda::kSuccess) return cuda::failed(driver, function, "cuCtxGetCurrent", result);
  Outcome outcome = get_staging(driver, function, 1, 0, &it->flags_);
  if (!outcome.ok()) return outcome;
  const cuda::RelaxedCapture relaxed(driver);
  result = driver.cuStreamCreate(&it->stream_, cuda::kStreamNonBlocking);
  if (result != cuda::kSuccess) return cuda::failed(driver, function, "cuStreamCreate", result);
  *made = std::move(it);
  return {};
}

DeviceQueue::~DeviceQueue() {
  if (stream_ == nullptr) return;
  const bool empty = passed(latest_) && failed_ == cuda::kSuccess;
  const cuda::ContextScope scope(driver_, nullptr, context_);
  const cuda::RelaxedCapture relaxed(driver_);
  (void)driver_.cuStreamDestroy_v2(stream_);
  // The flags are reused only when nothing writes to them any more; otherwise they are never freed.
  if (empty) flags_->mailboxes[0].take();
}

Outcome DeviceQueue::copy(const char* function, void* to, size_t to_stride, const void* from,
                          size_t from_stride, size_t blocks, size_t bytes) {
  if (bytes == 0 || blocks == 0) return {};
  if (failed_ != cuda::kSuccess) return failure(function);
  if (to_stride == bytes && from_stride == bytes) {
    bytes *= blocks;
    blocks = 1;
  }
  for (size_t i = 0; i < blocks; ++i) {
    const cuda::Result result = driver_.cuMemcpyAsync(
        address(static_cast<char*>(to) + i * to_stride),
        address(static_cast<const char*>(from) + i * from_stride), bytes, stream_);
    if (result != cuda::kSuccess) {
      return cuda::failed(driver_, function, "cuMemcpyAsync", result);
    }
  }
  return {};
}

Outcome DeviceQueue::failure(const char* function) const {
  if (failed_ == cuda::kSuccess) return {};
  return cuda::failed(driver_, function, "cuStreamQuery", failed_);
}

Outcome DeviceQueue::mark(const char* function) {
  if (failed_ != cuda::kSuccess) return failure(function);
  const uint32_t next = latest_ + 1;
  const cuda::Result result = driver_.cuStreamWriteValue32_v2(
      stream_, address(&flags_->mailboxes[0].ready), next, cuda::kWriteDefault);
  if (result != cuda::kSuccess) {
    unmarked_ = true;
    return cuda::failed(driver_, function, "cuStreamWriteValue32", result);
  }
  latest_ = next;
  next_query_ = std::chrono::steady_clock::now() + kQuery;
  return {};
}

bool DeviceQueue::passed(uint32_t mark) {
  const bool told = static_cast<int32_t>(flags_->mailboxes[0].rung() - mark) >= 0;
  if (told && !unmarked_) return true;
  const auto now = std::chrono::steady_clock::now();
  if ((unmarked_ || now >= next_query_) && failed_ == cuda::kSuccess) {
    next_query_ = now + kQuery;
    // The calling thread may have no context, or another one.
    const cuda::ContextScope scope(driver_, nullptr, context_);
    const cuda::RelaxedCapture relaxed(driver_);
    const cuda::Result result = driver_.cuStreamQuery(stream_);
    if (result != cuda::kErrorNotReady) {
      failed_ = result;
      unmarked_ = false;
      return told || failed_ != cuda::kSuccess;
    }
  }
  return failed_ != cuda::kSuccess;
}

}  // namespace weir::nccl
