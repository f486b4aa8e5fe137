// SPDX-License-Identifier: Apache-2.0
#include "core/comm/stream/stream_event.h"

#include <mutex>
#include <utility>
#include <vector>

#include "core/base/per_process.h"
#include "core/comm/stream/cuda_error.h"

namespace weir::comm {

namespace {

// Events that threads without a context had.
struct Left {
  std::mutex lock;
  std::vector<cuda::Event> events;
};
Left& left() {
  static constinit PerProcess<Left> it;
  return it.get();
}

void leave(cuda::Event event) noexcept {
  try {
    const std::lock_guard lock(left().lock);
    left().events.push_back(event);
  } catch (...) {
    // Without memory for the list it is lost.
  }
}

void destroy_left(const cuda::Driver& driver) {
  std::vector<cuda::Event> events;
  {
    const std::lock_guard lock(left().lock);
    events.swap(left().events);
  }
  for (const cuda::Event it : events) (void)driver.cuEventDestroy_v2(it);
}

}  // namespace

Status StreamEvent::make(const cuda::Driver& driver, const char* function, StreamEvent* event) {
  StreamEvent made;
  made.driver_ = &driver;
  const cuda::RelaxedCapture relaxed(driver);
  destroy_left(driver);
  const cuda::Result result = driver.cuEventCreate(&made.event_, cuda::kEventDisableTiming);
  if (result != cuda::kSuccess) return cuda_failed(driver, function, "cuEventCreate", result);
  *event = std::move(made);
  return {};
}

Status StreamEvent::record(const cuda::Driver& driver, const char* function, cuda::Stream stream,
                           StreamEvent* event) {
  WEIR_RETURN_IF_ERROR(make(driver, function, event));
  return event->record_again(function, stream);
}

Status StreamEvent::record_again(const char* function, cuda::Stream stream) const {
  const cuda::Result result = driver_->cuEventRecord(event_, stream);
  if (result != cuda::kSuccess) return cuda_failed(*driver_, function, "cuEventRecord", result);
  return {};
}

Status StreamEvent::wait(const char* function, cuda::Stream stream) const {
  const cuda::Result result = driver_->cuStreamWaitEvent(stream, event_, 0);
  if (result != cuda::kSuccess) return cuda_failed(*driver_, function, "cuStreamWaitEvent", result);
  return {};
}

Status StreamEvent::wait_at_launch(const char* function, cuda::Stream stream) const {
  const cuda::Result result = driver_->cuStreamWaitEvent(stream, event_, cuda::kEventWaitExternal);
  if (result != cuda::kSuccess) return cuda_failed(*driver_, function, "cuStreamWaitEvent", result);
  return {};
}

Status StreamEvent::record_at_launch(const char* function, cuda::Stream stream) const {
  const cuda::Result result =
      driver_->cuEventRecordWithFlags(event_, stream, cuda::kEventRecordExternal);
  if (result == cuda::kSuccess) return {};
  return cuda_failed(*driver_, function, "cuEventRecordWithFlags", result);
}

Status StreamEvent::follow(const cuda::Driver& driver, const char* function, cuda::Stream later,
                           cuda::Stream earlier) {
  StreamEvent reached;
  WEIR_RETURN_IF_ERROR(record(driver, function, earlier, &reached));
  return reached.wait(function, later);
}

void StreamEvent::reset() {
  const cuda::Event event = std::exchange(event_, nullptr);
  if (event == nullptr) return;
  cuda::Context current = nullptr;
  if (driver_->cuCtxGetCurrent(&current) != cuda::kSuccess || current == nullptr) {
    leave(event);
  } else {
    (void)driver_->cuEventDestroy_v2(event);
  }
}

}  // namespace weir::comm
