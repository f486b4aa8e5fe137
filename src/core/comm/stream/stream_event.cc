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

Status StreamEvent::record(const cuda::Driver& driver, const char* function, cuda::Stream stream,
                           StreamEvent* event) {
  StreamEvent made;
  made.driver_ = &driver;
  {
    const cuda::RelaxedCapture relaxed(driver);
    destroy_left(driver);
    const cuda::Result result = driver.cuEventCreate(&made.event_, cuda::kEventDisableTiming);
    if (result != cuda::kSuccess) return cuda_failed(driver, function, "cuEventCreate", result);
  }
  *event = std::move(made);
  const cuda::Result result = driver.cuEventRecord(event->get(), stream);
  if (result != cuda::kSuccess) return cuda_failed(driver, function, "cuEventRecord", result);
  return {};
}

Status StreamEvent::wait(const cuda::Driver& driver, const char* function,
                         cuda::Stream stream) const {
  const cuda::Result result = driver.cuStreamWaitEvent(stream, event_, 0);
  if (result != cuda::kSuccess) return cuda_failed(driver, function, "cuStreamWaitEvent", result);
  return {};
}

Status StreamEvent::follow(const cuda::Driver& driver, const char* function, cuda::Stream later,
                           cuda::Stream earlier) {
  StreamEvent reached;
  WEIR_RETURN_IF_ERROR(record(driver, function, earlier, &reached));
  return reached.wait(driver, function, later);
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
