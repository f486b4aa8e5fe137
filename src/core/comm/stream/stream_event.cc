// SPDX-License-Identifier: Apache-2.0
#include "core/comm/stream/stream_event.h"

#include "core/comm/stream/cuda_error.h"

namespace weir::comm {

Status StreamEvent::record(const cuda::Driver& driver, const char* function, cuda::Stream stream,
                           StreamEvent* event) {
  StreamEvent made;
  made.driver_ = &driver;
  {
    const cuda::RelaxedCapture relaxed(driver);
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
  if (event_ != nullptr) (void)driver_->cuEventDestroy_v2(event_);
  event_ = nullptr;
}

}  // namespace weir::comm
